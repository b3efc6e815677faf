#include "training/setup/teacher_rows.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

// Calls use(sample, segment, its learned rows) for all segments with learned rows.
template <class Use>
void EachLearned(const MicroBatch& batch, const SampleIndex& index_of, const Use& use) {
  for (const Segment& segment : batch.segments) {
    std::vector<int64_t> learned;
    for (int64_t row = segment.first_row; row < segment.first_row + segment.n_rows; ++row) {
      if (batch.targets[static_cast<size_t>(row)] >= 0) learned.push_back(row);
    }
    if (learned.empty()) continue;
    const DropoutRow& source = batch.sources[static_cast<size_t>(segment.first_row)];
    use(index_of(static_cast<int64_t>(source.sample)), segment, learned);
  }
}

}  // namespace

std::vector<TeacherPrompt> TeacherPromptsOf(const MicroBatch& batch, const SampleIndex& index_of) {
  std::vector<TeacherPrompt> prompts;
  const auto add = [&](int64_t sample, const Segment& segment,
                       const std::vector<int64_t>& learned) {
    TeacherPrompt prompt;
    prompt.sample = sample;
    const int64_t last = learned.back();
    prompt.tokens.assign(batch.tokens.begin() + segment.first_row, batch.tokens.begin() + last + 1);
    prompt.tokens.push_back(batch.targets[static_cast<size_t>(last)]);
    for (const int64_t row : learned) prompt.scored.push_back(row - segment.first_row + 1);
    prompts.push_back(std::move(prompt));
  };
  EachLearned(batch, index_of, add);
  return prompts;
}

void FillTeacherRows(const TeacherFigures& figures, const SampleIndex& index_of,
                     MicroBatch* batch) {
  TeacherRows& teacher = batch->teacher;
  teacher.k = figures.header().top_k;
  const auto k = static_cast<size_t>(teacher.k);
  teacher.ids.assign(batch->tokens.size() * k, 0);
  teacher.logprobs.assign(batch->tokens.size() * k, 0.0f);
  EachLearned(*batch, index_of,
              [&](int64_t sample, const Segment&, const std::vector<int64_t>& learned) {
                const int64_t n = figures.TokensOf(sample);
                if (n != static_cast<int64_t>(learned.size())) {
                  throw Error(ErrorCode::kFailedPrecondition,
                              "sample " + std::to_string(sample) + " has " +
                                  std::to_string(learned.size()) +
                                  " learned tokens, and the teacher's figures are of " +
                                  std::to_string(std::max<int64_t>(n, 0)) +
                                  ": delete the directory teacher/ of the run to ask anew");
                }
                for (int64_t i = 0; i < n; ++i) {
                  const size_t at = static_cast<size_t>(learned[static_cast<size_t>(i)]) * k;
                  figures.Copy(sample, i, &teacher.ids[at], &teacher.logprobs[at]);
                }
              });
}

void FillEvenTeacherRows(int64_t k, MicroBatch* batch) {
  TeacherRows& teacher = batch->teacher;
  teacher.k = k;
  teacher.ids.clear();
  for (size_t row = 0; row < batch->tokens.size(); ++row) {
    for (int64_t i = 0; i < k; ++i) teacher.ids.push_back(static_cast<TokenId>(i));
  }
  teacher.logprobs.assign(teacher.ids.size(),
                          static_cast<float>(-std::log(2 * static_cast<double>(k))));
}

}  // namespace tandem::training
