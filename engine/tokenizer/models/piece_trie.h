#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"

namespace tandem::engine {

// Finds the tokens that a text begins with, shortest first. The children of a node are adjacent and
// ordered by byte. Immutable after construction; any thread.
class PieceTrie {
 public:
  using Node = int32_t;
  static constexpr Node kRoot = 0;
  static constexpr Node kNone = -1;

  // Tokens and their ids; empty tokens are skipped. REQUIRES: strings are distinct, ids >= 0.
  explicit PieceTrie(std::vector<std::pair<std::string_view, TokenId>> tokens);

  Node Child(Node node, char byte) const;
  Node Descend(Node node, std::string_view bytes) const;
  TokenId TokenAt(Node node) const { return nodes_[static_cast<size_t>(node)].token; }  // or -1

  // Calls each(size_t length, TokenId) for every token that is a prefix of the text.
  template <class Each>
  void ForEachPrefix(std::string_view text, Each&& each) const {
    Node node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = Child(node, text[i]);
      if (node == kNone) return;
      if (const TokenId id = TokenAt(node); id >= 0) each(i + 1, id);
    }
  }

 private:
  struct Entry {
    Node first_child = 0;
    uint16_t n_children = 0;
    TokenId token = -1;
  };

  std::vector<Entry> nodes_;
  std::vector<unsigned char> bytes_;  // by node: the byte that leads to it
  std::array<Node, 256> roots_;       // children of the root
};

}  // namespace tandem::engine
