#include "engine/tokenizer/incremental_detokenizer.h"

#include "engine/tokenizer/unicode.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

std::string IncrementalDetokenizer::Push(TokenId id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
  std::string_view bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return {};
  if (at_start_ && tokenizer_->adds_leading_space() && bytes.front() == ' ') {
    bytes.remove_prefix(1);
  }
  at_start_ = false;

  const std::string joined = std::move(pending_.append(bytes));
  pending_.clear();
  std::string out;
  out.reserve(joined.size());
  std::string_view left = joined;
  while (!left.empty()) {
    if (const size_t valid = ValidUtf8Prefix(left); valid > 0) {
      out.append(left.substr(0, valid));
      left.remove_prefix(valid);
      continue;
    }
    const Utf8Unit unit = NextUtf8(left);
    if (unit.kind == Utf8Kind::kTruncated) {
      pending_ = left;
      break;
    }
    out.append(kReplacement);
    left.remove_prefix(unit.size);
  }
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return std::string(unfinished ? kReplacement : "");
}

std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text += detokenizer.Flush();
}

}  // namespace tandem::engine
