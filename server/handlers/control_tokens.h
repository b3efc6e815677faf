#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {
class Tokenizer;
}

namespace tandem::server {

// The spellings of a tokenizer's control tokens, to find them in text: `<|im_end|>` written by a
// client must stay text. Immutable; built once per model.
class ControlTokens {
 public:
  ControlTokens() : nodes_(1) {}
  explicit ControlTokens(const engine::Tokenizer& tokenizer);

  struct Occurrence {
    size_t begin = 0;
    size_t end = 0;
    TokenId id = 0;
  };
  // From left to right, longest first, without overlaps.
  std::vector<Occurrence> FindIn(std::string_view text) const;

 private:
  struct Node {
    std::map<char, size_t> next;  // index into nodes_
    TokenId id = -1;              // of the spelling that ends here
  };
  std::vector<Node>
      nodes_;  // a trie; hostile text costs no more than its length times a spelling's
};

}  // namespace tandem::server
