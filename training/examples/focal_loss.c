/* A loss library: the focal loss (Lin et al. 2017, "Focal Loss for Dense Object Detection") of a
 * token with probability p is -(1 - p)^gamma log p. Tokens that the model knows count less.
 *
 *   cc -O2 -shared -fPIC -I. -o focal_loss.so training/examples/focal_loss.c -lm
 *   tandem train spec.yaml train.loss_library=focal_loss.so train.loss_options=gamma=2
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "training/loss/tandem_loss.h"

struct Focal {
  double gamma;
};

static void* open_focal(const char* options, char* error, size_t error_size) {
  double gamma = 2;
  char rest = 0;
  if (options[0] != 0 && (sscanf(options, "gamma=%lf%c", &gamma, &rest) != 1 || !(gamma >= 0))) {
    snprintf(error, error_size, "options must be gamma=NUMBER with a number from 0, got %s",
             options);
    return NULL;
  }
  struct Focal* focal = (struct Focal*)malloc(sizeof *focal);
  if (focal == NULL) {
    snprintf(error, error_size, "out of memory");
    return NULL;
  }
  focal->gamma = gamma;
  return focal;
}

static int compute_focal(void* loss, const TandemLossBatch* batch, double* sum, float* gradients,
                         char* error, size_t error_size) {
  const double gamma = ((const struct Focal*)loss)->gamma;
  (void)error;
  (void)error_size;
  *sum = 0;
  for (int64_t i = 0; i < batch->n_tokens; ++i) {
    const double log_p = batch->log_probs[i];
    const double p = exp(log_p);
    const double miss = 1 - p > 1e-12 ? 1 - p : 1e-12;
    const double factor = pow(miss, gamma);
    *sum -= batch->weights[i] * factor * log_p;
    gradients[i] = (float)(batch->weights[i] * (gamma * factor / miss * p * log_p - factor));
  }
  return 0;
}

static void close_focal(void* loss) { free(loss); }

const TandemLossFunctions* tandem_loss_functions(void) {
  static const TandemLossFunctions functions = {TANDEM_LOSS_VERSION, open_focal, compute_focal,
                                                close_focal};
  return &functions;
}
