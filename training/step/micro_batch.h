#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "training/data/packer.h"
#include "training/program/executor.h"
#include "training/spec/distill_options.h"
#include "training/step/preference.h"

namespace tandem::training {

// The k likeliest tokens of a teacher for each row of a micro-batch (Distillation of
// training/ops/distillation.h), zeros for rows that are not trained.
struct TeacherRows {
  int64_t k = 0;
  std::vector<TokenId> ids;     // [rows, k]
  std::vector<float> logprobs;  // [rows, k]
};

// The input of one run of the program: packed rows, concatenated. Owns its memory.
struct MicroBatch {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions;
  std::vector<TokenId> targets;
  std::vector<float> weights;
  std::vector<Segment> segments;
  std::vector<DropoutRow> sources;
  std::vector<PairRows> pairs;  // segments that hold the two answers to one prompt
  TeacherRows teacher;          // for distillation; else empty

  void Clear();
  void Append(const PackedRow& row);
  // Sets the reference log-probabilities of the pairs; `reference` is indexed by PairRows::index.
  void SetReference(std::span<const PairLogProbs> reference);
  double weight() const;
  int64_t rows_of_samples() const;  // rows that are not padding
  // The view borrows this batch.
  ProgramBatch View(uint64_t dropout_seed) const;
  // The teacher's figures with these options. Borrows this batch. REQUIRES: `teacher` is filled.
  Distillation ViewTeacher(const DistillOptions& options) const;
};

}  // namespace tandem::training
