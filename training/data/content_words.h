#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "training/data/text_corpus.h"

namespace tandem::training {

// Teaches a story model to take wishes: each story may begin with a line naming one to three of its
// content words,
//
//   Words: dog, ball, happy
//   Once upon a time …
//
// and the chat template of the served model writes the same line from the user's words. Which
// words: those that are typical for this story and not rare in the corpus (tf-idf), no function
// words, no names (words that the corpus mostly writes with a capital inside a sentence). Immutable
// once built; everything is a function of corpus, seed and sample number.
class ContentWords {
 public:
  // Word statistics of at most the first `max_samples` samples.
  explicit ContentWords(const TextCorpus& corpus, int64_t max_samples = 50000);

  // The story's candidates, best first; at most `limit`.
  std::vector<std::string> Rank(std::string_view story, size_t limit) const;

  // The header line with its newline, or an empty string (one story in four goes without). Words
  // are drawn among the best eight and stand in drawn order.
  std::string Header(std::string_view story, uint64_t seed, int64_t sample) const;

 private:
  struct Statistics {
    int64_t documents = 0;    // stories that contain it
    int64_t lower = 0;        // occurrences in lower case
    int64_t capitalised = 0;  // occurrences with a capital not at the start of a sentence
  };

  int64_t n_documents_ = 0;
  std::unordered_map<std::string, Statistics> words_;
};

// "Words: a, b\n"; an empty list gives an empty string.
std::string FormatContentWords(const std::vector<std::string>& words);

}  // namespace tandem::training
