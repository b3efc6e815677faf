#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/packer.h"
#include "training/program/executor.h"
#include "training/step/preference.h"

namespace tandem::training {

// Packed rows side by side: what one run of the program reads. Owns its memory.
struct MicroBatch {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<TokenId> targets;
  std::vector<float> weights;
  std::vector<Segment> segments;
  std::vector<DropoutRow> sources;
  std::vector<PairRows> pairs;  // of segments that are two answers to one prompt

  void Clear();
  void Append(const PackedRow& row);
  // What the model began with thought of the pairs, by their index.
  void SetReference(std::span<const PairLogProbs> reference);
  double weight() const;
  // Borrows.
  ProgramBatch View(uint64_t dropout_seed) const;
};

}  // namespace tandem::training
