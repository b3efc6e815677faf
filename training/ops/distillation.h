#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/ids.h"
#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::training {

// Distillation (Hinton et al., 2015) from the k likeliest tokens of a teacher at each row. With the
// tokens 1 … k and one bucket for all others, let a be the teacher's and s the student's
// log-probabilities of these k + 1 events. The loss of a row is
//
//   (1 - alpha) * cross-entropy + alpha * T^2 * KL(softmax(a / T) || softmax(s / T))
//
// With T = 1 the divergence is that of the two distributions, seen as k + 1 events.
struct Distillation {
  double alpha = 0.5;
  double temperature = 1;           // T
  int64_t k = 0;                    // at most the vocabulary, which then leaves no bucket
  std::span<const TokenId> ids;     // [rows, k]; distinct in a row; unread where the row is not
                                    // trained
  std::span<const float> logprobs;  // [rows, k] of the teacher, without a temperature
};

// T^2 KL of one row, from the teacher's k log-probabilities and the student's of the same events.
// `student` has k values, or k + 1 with the bucket last. slopes[i] = derivative by student[i].
double TemperedDivergence(std::span<const float> teacher, std::span<const double> student,
                          double temperature, std::span<double> slopes);

// The distillation of one tile of logits. Borrows all its arguments.
class DistilledTile {
 public:
  // Computes the divergences. `row_of` has the batch's row of each row of the tile. `logits` [rows,
  // vocab] is changed meanwhile and then restored; `lse` has the log-sum-exp of its rows.
  DistilledTile(engine::OpsContext& ops, const Distillation& distillation,
                std::span<const int64_t> row_of, float* logits, int64_t vocab, const float* lse);

  double divergence(int64_t row) const { return divergences_[static_cast<size_t>(row)]; }

  struct GradientArgs {
    int64_t target;
    float weight;
    float soft_cap;  // 0: off
    float z_loss;
  };
  // Writes the gradient of weight * (loss + z_loss * log-sum-exp^2) by the row's logits before the
  // cap to the same row of `dz`, as TrainingKernelTable::cross_entropy_gradient_… does.
  void FormGradient(int64_t row, const GradientArgs& args, const engine::Matrix& dz) const;

 private:
  void SumOthers();
  void Compare(int64_t row);
  std::span<const TokenId> IdsOf(int64_t row) const;
  int64_t n_events() const { return distillation_.k + (has_bucket_ ? 1 : 0); }

  engine::OpsContext& ops_;
  const Distillation& distillation_;
  std::span<const int64_t> row_of_;
  float* const logits_;
  const int64_t vocab_;
  const float* const lse_;
  const bool has_bucket_;
  std::vector<float> lse_of_others_;  // [rows], with a bucket
  std::vector<double> divergences_;   // [rows]
  std::vector<double> slopes_;        // [rows, n_events]
};

}  // namespace tandem::training
