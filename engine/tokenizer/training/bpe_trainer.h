#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

struct BpeTrainerOptions {
  int64_t vocab_size = 4096;   // tokens in all, special ones and the 256 bytes included
  int64_t min_pair_count = 2;  // pairs seen less often are not merged
  std::vector<std::string> special_tokens;  // get the first ids, in this order
};

// Trains byte-level BPE (GPT-2 pattern) on a text and returns a complete `tokenizer.json` in the
// Hugging Face format. Deterministic: ties go to the pair whose (left, right) byte strings are
// smaller. Special tokens spelled in the corpus separate pieces and are not learnt from.
std::string TrainBpe(
    std::string_view corpus, const BpeTrainerOptions& options,
    const std::function<void(int64_t merges_done, int64_t merges_total)>& progress);

}  // namespace tandem::engine
