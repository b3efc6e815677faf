#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

struct BpeTrainerOptions {
  int64_t vocab_size = 4096;                // total, with special tokens and the 256 bytes
  int64_t min_pair_count = 2;               // rarer pairs are not merged
  std::vector<std::string> special_tokens;  // get the first ids, in this order
};

// Trains byte-level BPE (GPT-2 pattern) on a text and returns a complete Hugging Face
// `tokenizer.json`. Deterministic: on a tie the pair with the smaller (left, right) byte strings
// wins. Special tokens in the corpus separate pieces and are not learnt.
std::string TrainBpe(
    std::string_view corpus, const BpeTrainerOptions& options,
    const std::function<void(int64_t merges_done, int64_t merges_total)>& progress);

}  // namespace tandem::engine
