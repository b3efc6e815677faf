#include "engine/tokenizer/control_tokens.h"

#include <algorithm>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {

ControlTokens::ControlTokens(const Tokenizer& tokenizer) : nodes_(1) {
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

std::vector<TokenId> EncodeWithClientText(const Tokenizer& tokenizer,
                                          const ControlTokens& control_tokens,
                                          std::string_view text,
                                          std::span<const std::pair<size_t, size_t>> client) {
  const std::vector<ControlTokens::Occurrence> occurrences = control_tokens.FindIn(text);
  const auto is_clients = [&](const ControlTokens::Occurrence& occurrence) {
    return std::any_of(client.begin(), client.end(), [&](const auto& span) {
      return occurrence.begin < span.second && span.first < occurrence.end;
    });
  };
  if (std::none_of(occurrences.begin(), occurrences.end(), is_clients)) {
    return tokenizer.Encode(text, SpecialTokens::kParseSpecial);
  }

  // Only the template's own control tokens count; all between them is plain text.
  std::vector<TokenId> ids;
  size_t done = 0;
  const auto add_text_up_to = [&](size_t end) {
    const std::string_view part = text.substr(done, end - done);
    if (part.empty()) return;
    const std::vector<TokenId> more = tokenizer.Encode(part, SpecialTokens::kPlainText);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (const ControlTokens::Occurrence& occurrence : occurrences) {
    if (is_clients(occurrence)) continue;
    add_text_up_to(occurrence.begin);
    ids.push_back(occurrence.id);
    done = occurrence.end;
  }
  add_text_up_to(text.size());
  return ids;
}

}  // namespace tandem::engine
