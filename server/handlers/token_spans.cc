#include "server/handlers/token_spans.h"

#include <algorithm>

namespace tandem::server {
namespace {

// Control tokens may swallow white space around them; no more of it than this.
constexpr size_t kMaxSwallowed = 64;

}  // namespace

std::vector<std::pair<size_t, size_t>> TokenSpans(const engine::Tokenizer& tokenizer,
                                                  std::string_view text,
                                                  const std::vector<TokenId>& ids) {
  std::vector<std::pair<size_t, size_t>> spans;
  spans.reserve(ids.size());
  size_t at = 0;
  for (const TokenId id : ids) {
    std::string_view bytes = tokenizer.TokenBytes(id);
    size_t begin = at;
    if (!text.substr(at).starts_with(bytes)) {
      const size_t found =
          text.substr(0, std::min(text.size(), at + kMaxSwallowed + bytes.size())).find(bytes, at);
      if (found != std::string_view::npos) {
        begin = found;
      } else if (bytes.starts_with(' ')) {
        bytes.remove_prefix(1);
      }
    }
    at = std::min(begin + bytes.size(), text.size());
    spans.emplace_back(begin, at);
  }
  return spans;
}

std::vector<bool> LossMask(const engine::Tokenizer& tokenizer, const EncodedChat& chat) {
  std::vector<bool> mask(chat.ids.size(), false);
  std::vector<std::pair<size_t, size_t>> learned;
  size_t end = 0;
  for (const engine::RenderedPiece& piece : chat.pieces) {
    if (piece.is_learned) learned.emplace_back(end, end + piece.text.size());
    end += piece.text.size();
  }
  if (learned.empty()) return mask;

  const auto spans = TokenSpans(tokenizer, engine::JoinPieces(chat.pieces), chat.ids);
  size_t next = 0;
  for (size_t i = 0; i < spans.size(); ++i) {
    while (next < learned.size() && learned[next].second <= spans[i].first) ++next;
    mask[i] = next < learned.size() && learned[next].first < spans[i].second &&
              spans[i].first < learned[next].second;
    const bool ends_turn = !mask[i] && next > 0 && learned[next - 1].second == spans[i].first &&
                           tokenizer.IsSpecial(chat.ids[i]);
    if (ends_turn) mask[i] = true;
  }
  return mask;
}

}  // namespace tandem::server
