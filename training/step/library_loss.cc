#include "training/step/library_loss.h"

#include <vector>

namespace tandem::training {

double ApplyLoss(LossLibrary& library, const MicroBatch& batch,
                 std::span<const float> token_logprobs, std::span<float> weights) {
  std::vector<size_t> rows;
  std::vector<int32_t> targets;
  std::vector<float> log_probs, token_weights;
  std::vector<int64_t> samples, positions;
  int64_t sample = 0;
  for (const Segment& segment : batch.segments) {
    bool is_trained = false;
    for (int64_t i = 0; i < segment.n_rows; ++i) {
      const auto row = static_cast<size_t>(segment.first_row + i);
      if (batch.weights[row] == 0 || batch.targets[row] < 0) continue;
      is_trained = true;
      rows.push_back(row);
      targets.push_back(batch.targets[row]);
      log_probs.push_back(token_logprobs[row]);
      token_weights.push_back(batch.weights[row]);
      samples.push_back(sample);
      positions.push_back(int64_t{batch.positions[row]} + 1);
    }
    sample += is_trained ? 1 : 0;
  }
  if (rows.empty()) return 0;
  std::vector<float> gradients(rows.size(), 0.0f);
  const double sum = library.Compute({.n_tokens = static_cast<int64_t>(rows.size()),
                                      .targets = targets.data(),
                                      .log_probs = log_probs.data(),
                                      .weights = token_weights.data(),
                                      .samples = samples.data(),
                                      .positions = positions.data(),
                                      .is_training = weights.empty() ? 0 : 1},
                                     gradients);
  // Cross-entropy is -weight * log p: its gradient is -weight.
  for (size_t i = 0; i < rows.size() && !weights.empty(); ++i) weights[rows[i]] = -gradients[i];
  return sum;
}

}  // namespace tandem::training
