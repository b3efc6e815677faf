#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tandem::engine {

// Finds stop strings in text that arrives byte by byte (Knuth-Morris-Pratt, one automaton per
// string). Matches do not depend on token borders: the match that ends first counts, and of matches
// that end together the longest.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& strings);  // none empty

  // The index of the string that ends with this byte, if any.
  std::optional<size_t> Feed(char byte);
  // Number of last bytes that may begin a stop string.
  size_t partial() const { return partial_; }
  bool empty() const { return automata_.empty(); }

 private:
  struct Automaton {
    std::string text;
    std::vector<size_t> fallback;  // [i]: longest proper prefix of text that ends text[0, i]
    size_t state = 0;              // bytes matched
  };
  std::vector<Automaton> automata_;
  size_t partial_ = 0;
};

}  // namespace tandem::engine
