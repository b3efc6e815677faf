#include "server/handlers/control_tokens.h"

#include "engine/tokenizer/tokenizer.h"

namespace tandem::server {

ControlTokens::ControlTokens(const engine::Tokenizer& tokenizer) : nodes_(1) {
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view spelling = tokenizer.TokenBytes(id);
    if (!tokenizer.IsSpecial(id) || spelling.empty()) continue;
    size_t node = 0;
    for (const char c : spelling) {
      const auto [next, is_new] = nodes_[node].next.try_emplace(c, nodes_.size());
      node = next->second;
      if (is_new) nodes_.emplace_back();
    }
    nodes_[node].id = id;
  }
}

std::vector<ControlTokens::Occurrence> ControlTokens::FindIn(std::string_view text) const {
  std::vector<Occurrence> out;
  size_t begin = 0;
  while (begin < text.size()) {
    Occurrence longest{begin, begin, -1};
    size_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      const auto next = nodes_[node].next.find(text[i]);
      if (next == nodes_[node].next.end()) break;
      node = next->second;
      if (nodes_[node].id >= 0) longest = {begin, i + 1, nodes_[node].id};
    }
    if (longest.id < 0) {
      ++begin;
    } else {
      out.push_back(longest);
      begin = longest.end;
    }
  }
  return out;
}

}  // namespace tandem::server
