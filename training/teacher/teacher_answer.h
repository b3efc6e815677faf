#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "training/teacher/teacher_figures.h"

namespace tandem::training {

// A sample as the teacher reads it.
struct TeacherPrompt {
  int64_t sample = 0;
  std::vector<TokenId> tokens;
  std::vector<int64_t> scored;  // indexes of the learned tokens, from 1, ascending
};

struct TeacherLimits {
  int64_t top_k = 0;
  int64_t vocab_size = 0;  // of the student
};

struct TeacherAnswer {
  std::vector<ScoredSample> samples;  // in the order of the prompts
  std::string fingerprint;            // of the served model; empty: the server tells none
};

// The body of POST /v1/completions that asks for the log-probabilities of the prompts' tokens.
std::string TeacherRequest(const std::string& model, std::span<const TeacherPrompt> prompts,
                           int64_t top_k);

// Reads the answer to TeacherRequest. Throws kDataLoss, beginning with `where`, for an answer that
// is not one: other tokens, fewer log-probabilities, or values that cannot be log-probabilities.
TeacherAnswer ParseTeacherAnswer(std::string_view text, std::span<const TeacherPrompt> prompts,
                                 const TeacherLimits& limits, const std::string& where);

}  // namespace tandem::training
