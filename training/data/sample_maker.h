#pragma once

#include <cstdint>
#include <optional>

#include "engine/tokenizer/tokenizer.h"
#include "training/data/content_words.h"
#include "training/data/sample.h"
#include "training/data/text_corpus.h"

namespace tandem::training {

struct SampleOptions {
  std::optional<TokenId> bos;  // begins every sample when set
  std::optional<TokenId> eos;  // ends every sample when set
  bool content_word_header = false;
  uint64_t seed = 0;
};

// Turns the i-th text of a corpus into a Sample on demand. Tokenising costs far less than training
// on the result, so nothing is cached. Borrows corpus and tokenizer; const and thread-safe.
class SampleMaker {
 public:
  SampleMaker(const TextCorpus& corpus, const engine::Tokenizer& tokenizer,
              const SampleOptions& options);

  int64_t size() const { return corpus_.size(); }
  Sample Make(int64_t i) const;
  // The text before tokenising, header included.
  std::string Text(int64_t i) const;

 private:
  const TextCorpus& corpus_;
  const engine::Tokenizer& tokenizer_;
  SampleOptions options_;
  std::optional<ContentWords> words_;
};

}  // namespace tandem::training
