#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

class Tokenizer;

// The spellings of a tokenizer's control tokens, to find them in text: `<|im_end|>` written by a
// client must stay text. Immutable; built once per model.
class ControlTokens {
 public:
  ControlTokens() : nodes_(1) {}
  explicit ControlTokens(const Tokenizer& tokenizer);

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

// The ids of a text in which clients wrote the `client` spans ([begin, end) in bytes, in order):
// what they wrote never becomes a control token, everything else is tokenised as the text would be
// in one piece. What serving feeds a model, and training with it.
std::vector<TokenId> EncodeWithClientText(const Tokenizer& tokenizer,
                                          const ControlTokens& control_tokens,
                                          std::string_view text,
                                          std::span<const std::pair<size_t, size_t>> client);

}  // namespace tandem::engine
