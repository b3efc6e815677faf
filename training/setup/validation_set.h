#pragma once

#include <span>
#include <vector>

#include "engine/base/thread_pool.h"
#include "training/setup/model_files.h"
#include "training/spec/spec.h"
#include "training/step/micro_batch.h"

namespace tandem::training {

// The validation data as micro-batches, packed once, in order. Nothing is cut off, except from
// pairs and from samples that a teacher scores, which are treated as in training.
class ValidationSet {
 public:
  ValidationSet(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool);

  std::span<const MicroBatch> batches() const { return batches_; }
  std::span<MicroBatch> batches() { return batches_; }
  double bytes() const { return bytes_; }  // of the predicted text

 private:
  std::vector<MicroBatch> batches_;
  double bytes_ = 0;
};

}  // namespace tandem::training
