#pragma once

#include <span>
#include <vector>

#include "training/data/text_corpus.h"
#include "training/micro_batch.h"
#include "training/model_files.h"
#include "training/spec.h"

namespace tandem::training {

// The validation text as micro-batches, packed once: in order, nothing cut off.
class ValidationSet {
 public:
  ValidationSet(const TrainSpec& spec, const ModelFiles& files);

  std::span<const MicroBatch> batches() const { return batches_; }
  double bytes() const { return bytes_; }  // of the predicted text

 private:
  TextCorpus corpus_;
  std::vector<MicroBatch> batches_;
  double bytes_ = 0;
};

}  // namespace tandem::training
