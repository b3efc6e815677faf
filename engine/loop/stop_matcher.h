#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tandem::engine {

// Looks for stop strings in text that arrives byte by byte (Knuth-Morris-Pratt, one automaton per
// string), so that what is found does not depend on how the text was cut into tokens: the match
// that ends first counts, and of those that end together the longest.
class StopMatcher {
 public:
  explicit StopMatcher(const std::vector<std::string>& strings);  // none empty

  // The string that ends with this byte, if any.
  std::optional<size_t> Feed(char byte);
  // How many of the last bytes may be the beginning of a stop string.
  size_t partial() const { return partial_; }
  bool empty() const { return automata_.empty(); }

 private:
  struct Automaton {
    std::string text;
    std::vector<size_t> fallback;  // [i]: longest proper beginning of text that ends text[0, i]
    size_t state = 0;              // bytes matched
  };
  std::vector<Automaton> automata_;
  size_t partial_ = 0;
};

}  // namespace tandem::engine
