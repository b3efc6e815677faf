#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "training/step/micro_batch.h"
#include "training/teacher/teacher_answer.h"
#include "training/teacher/teacher_figures.h"

namespace tandem::training {

// From packed samples to the prompts of a teacher, and from its figures back to rows. Every sample
// is one whole segment, cut as the packer cuts it.

// Index of the sample with this number (SampleOrder::IndexOf).
using SampleIndex = std::function<int64_t(int64_t number)>;

// The samples of a batch that have a learned token, each up to the last one.
std::vector<TeacherPrompt> TeacherPromptsOf(const MicroBatch& batch, const SampleIndex& index_of);

// Fills batch->teacher. Throws kFailedPrecondition when a sample has no figures, or not as many as
// learned tokens.
void FillTeacherRows(const TeacherFigures& figures, const SampleIndex& index_of, MicroBatch* batch);

// Fills batch->teacher with figures of no teacher, for measurements of time: the first k tokens
// share half of the probability.
void FillEvenTeacherRows(int64_t k, MicroBatch* batch);

}  // namespace tandem::training
