#pragma once

/* A loss in a library of its own, which replaces cross-entropy in training (spec key
 * train.loss_library). The interface is C99. training/loss/README.md explains it; an example is
 * training/examples/focal_loss.c. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_LOSS_VERSION 1u

/* The trained tokens of one micro-batch. The arrays have n_tokens elements and live until compute
 * returns. Tokens of a sample are consecutive and in order. */
typedef struct TandemLossBatch {
  int64_t n_tokens;
  const int32_t* targets;   /* ids of the tokens to predict */
  const float* log_probs;   /* natural logarithms of their probabilities, at most 0 */
  const float* weights;     /* the data's weight of each token, usually 1; greater than 0 */
  const int64_t* samples;   /* number of the token's sample in the micro-batch, ascending */
  const int64_t* positions; /* of the target in its sample, from 0 */
  int is_training;          /* 0: an evaluation, which ignores gradients */
} TandemLossBatch;

/* `error` receives the reason of a failure: at most error_size bytes, with the final zero. */
typedef struct TandemLossFunctions {
  uint32_t version; /* TANDEM_LOSS_VERSION */
  /* Called once per run with train.loss_options, "" without. Returns the loss; NULL: failure. */
  void* (*open)(const char* options, char* error, size_t error_size);
  /* Writes the sum of the tokens' losses to *sum, and d *sum / d log_probs[i] to gradients[i]. The
   * loss of a step is the sum over its micro-batches, divided by the weights of all its tokens.
   * Returns 0; anything else is a failure, which ends the run. One thread at a time calls it. Equal
   * batches must give equal results, or resumed runs and ranks differ. */
  int (*compute)(void* loss, const TandemLossBatch* batch, double* sum, float* gradients,
                 char* error, size_t error_size);
  /* Called once, after the last compute. May be NULL. */
  void (*close)(void* loss);
} TandemLossFunctions;

/* The symbol that the library exports. The table lives as long as the library. */
const TandemLossFunctions* tandem_loss_functions(void);

#ifdef __cplusplus
}
#endif
