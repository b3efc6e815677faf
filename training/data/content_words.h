#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "training/data/text_corpus.h"

namespace tandem::training {

// Prepares a story model for wishes. A story may begin with a line of one to three of its content
// words:
//
//   Words: dog, ball, happy
//   Once upon a time …
//
// The chat template of the served model writes the same line from the user's words. A word
// qualifies when it is typical for this story but not rare in the corpus (tf-idf). Function words
// and names do not qualify; a name is a word that the corpus mostly capitalises inside sentences.
// Immutable; every result depends on corpus, seed and sample number only.
class ContentWords {
 public:
  // Counts words in the first `max_samples` samples.
  explicit ContentWords(const TextCorpus& corpus, int64_t max_samples = 50000);

  // The story's best candidates, best first; at most `limit`.
  std::vector<std::string> Rank(std::string_view story, size_t limit) const;

  // The header line with its newline. Empty for one story in four, and for a story without
  // candidates. Draws words among the best eight and keeps the drawn order.
  std::string Header(std::string_view story, uint64_t seed, int64_t sample) const;

 private:
  struct Statistics {
    int64_t documents = 0;    // stories that contain the word
    int64_t lower = 0;        // occurrences in lower case
    int64_t capitalised = 0;  // occurrences with a capital not at the start of a sentence
  };

  int64_t n_documents_ = 0;
  std::unordered_map<std::string, Statistics> words_;
};

// "Words: a, b\n"; empty for an empty list.
std::string FormatContentWords(const std::vector<std::string>& words);

}  // namespace tandem::training
