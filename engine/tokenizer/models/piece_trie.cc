#include "engine/tokenizer/models/piece_trie.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::engine {

PieceTrie::PieceTrie(std::vector<std::pair<std::string_view, TokenId>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  roots_.fill(kNone);
  nodes_.emplace_back();
  bytes_.push_back(0);
  // Breadth first, so that the children of a node are adjacent. A node covers the tokens in [begin,
  // end), which share their first `depth` bytes.
  struct Range {
    size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, tokens.size(), 0}};
  for (size_t node = 0; node < nodes_.size(); ++node) {
    Range range = ranges[node];
    while (range.begin < range.end && tokens[range.begin].first.size() == range.depth) {
      if (range.depth > 0) nodes_[node].token = tokens[range.begin].second;
      ++range.begin;
    }
    nodes_[node].first_child = static_cast<Node>(nodes_.size());
    for (size_t i = range.begin; i < range.end;) {
      const char byte = tokens[i].first[range.depth];
      size_t next = i + 1;
      while (next < range.end && tokens[next].first[range.depth] == byte) ++next;
      TANDEM_CHECK(nodes_.size() < INT32_MAX);
      if (node == kRoot) {
        roots_[static_cast<unsigned char>(byte)] = static_cast<Node>(nodes_.size());
      }
      nodes_.emplace_back();
      bytes_.push_back(static_cast<unsigned char>(byte));
      ranges.push_back({i, next, range.depth + 1});
      ++nodes_[node].n_children;
      i = next;
    }
  }
}

PieceTrie::Node PieceTrie::Child(Node node, char byte) const {
  const auto wanted = static_cast<unsigned char>(byte);
  if (node == kRoot) return roots_[wanted];
  const Entry& entry = nodes_[static_cast<size_t>(node)];
  const auto begin = bytes_.begin() + entry.first_child;
  const auto end = begin + entry.n_children;
  if (entry.n_children <= 8) {
    const auto found = std::find(begin, end, wanted);
    return found == end ? kNone : static_cast<Node>(found - bytes_.begin());
  }
  // Children are in this order, because strings compare as unsigned bytes.
  const auto found = std::lower_bound(begin, end, wanted);
  return found == end || *found != wanted ? kNone : static_cast<Node>(found - bytes_.begin());
}

PieceTrie::Node PieceTrie::Descend(Node node, std::string_view bytes) const {
  for (const char byte : bytes) {
    node = Child(node, byte);
    if (node == kNone) return kNone;
  }
  return node;
}

}  // namespace tandem::engine
