#include "training/step/micro_batch.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace tandem::training {

void MicroBatch::Clear() {
  tokens.clear();
  positions.clear();
  targets.clear();
  weights.clear();
  segments.clear();
  sources.clear();
  pairs.clear();
  teacher = {};
}

void MicroBatch::Append(const PackedRow& row) {
  auto first_row = static_cast<int64_t>(tokens.size());
  const size_t first_segment = segments.size();
  for (const int64_t length : row.segment_lengths) {
    segments.push_back({first_row, length});
    first_row += length;
  }
  for (const PackedPair& pair : row.pairs) {
    const size_t chosen = first_segment + static_cast<size_t>(pair.segment);
    pairs.push_back({segments[chosen], segments[chosen + 1], pair.index, {}});
  }
  // A sample's number counts through all epochs, so the number alone keys dropout.
  for (size_t i = 0; i < row.samples.size(); ++i) {
    sources.push_back(
        {static_cast<uint64_t>(row.samples[i]), static_cast<uint32_t>(row.positions[i])});
  }
  tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
  positions.insert(positions.end(), row.positions.begin(), row.positions.end());
  targets.insert(targets.end(), row.targets.begin(), row.targets.end());
  weights.insert(weights.end(), row.weights.begin(), row.weights.end());
}

void MicroBatch::SetReference(std::span<const PairLogProbs> reference) {
  for (PairRows& pair : pairs) {
    TANDEM_CHECK(pair.index < static_cast<int64_t>(reference.size()));
    pair.reference = reference[static_cast<size_t>(pair.index)];
  }
}

double MicroBatch::weight() const { return std::accumulate(weights.begin(), weights.end(), 0.0); }

int64_t MicroBatch::rows_of_samples() const {
  if (sources.empty()) return static_cast<int64_t>(tokens.size());
  return std::count_if(sources.begin(), sources.end(), IsOfSample);
}

Distillation MicroBatch::ViewTeacher(const DistillOptions& options) const {
  TANDEM_CHECK(teacher.k > 0 &&
               teacher.ids.size() == tokens.size() * static_cast<size_t>(teacher.k));
  return {options.alpha, options.temperature, teacher.k, teacher.ids, teacher.logprobs};
}

ProgramBatch MicroBatch::View(uint64_t dropout_seed) const {
  ProgramBatch batch;
  batch.tokens = tokens;
  batch.positions = positions;
  batch.segments = segments;
  batch.targets = targets;
  batch.weights = weights;
  batch.sources = sources;
  batch.dropout_seed = dropout_seed;
  return batch;
}

}  // namespace tandem::training
