#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/packer.h"
#include "training/program/executor.h"
#include "training/step/preference.h"

namespace tandem::training {

// The input of one run of the program: packed rows, concatenated. Owns its memory.
struct MicroBatch {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<TokenId> targets;
  std::vector<float> weights;
  std::vector<Segment> segments;
  std::vector<DropoutRow> sources;
  std::vector<PairRows> pairs;  // segments that hold the two answers to one prompt

  void Clear();
  void Append(const PackedRow& row);
  // Sets the reference log-probabilities of the pairs; `reference` is indexed by PairRows::index.
  void SetReference(std::span<const PairLogProbs> reference);
  double weight() const;
  int64_t rows_of_samples() const;  // rows that are not padding
  // The view borrows this batch.
  ProgramBatch View(uint64_t dropout_seed) const;
};

}  // namespace tandem::training
