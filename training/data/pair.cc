#include "training/data/pair.h"

#include <algorithm>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

void CutPrompt(int64_t max_tokens, Sample* sample) {
  const auto answer = std::find(sample->trained.begin(), sample->trained.end(), uint8_t{1});
  const auto too_many = answer - sample->trained.begin() - static_cast<std::ptrdiff_t>(max_tokens);
  if (too_many <= 0) return;
  sample->tokens.erase(sample->tokens.begin(), sample->tokens.begin() + too_many);
  sample->trained.erase(sample->trained.begin(), sample->trained.begin() + too_many);
}

}  // namespace

Sample JoinPair(Sample chosen, Sample rejected, int64_t max_prompt_tokens) {
  if (chosen.tokens == rejected.tokens) {
    throw Error(ErrorCode::kInvalidArgument,
                "the two answers have the same tokens, so neither is preferred");
  }
  if (max_prompt_tokens > 0) {
    CutPrompt(max_prompt_tokens, &chosen);
    CutPrompt(max_prompt_tokens, &rejected);
  }
  Sample pair = std::move(chosen);
  pair.second = pair.tokens.size();
  pair.tokens.insert(pair.tokens.end(), rejected.tokens.begin(), rejected.tokens.end());
  pair.trained.insert(pair.trained.end(), rejected.trained.begin(), rejected.trained.end());
  return pair;
}

}  // namespace tandem::training
