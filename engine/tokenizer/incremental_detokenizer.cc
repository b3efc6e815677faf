#include "engine/tokenizer/incremental_detokenizer.h"

#include <algorithm>

#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

}  // namespace

IncrementalDetokenizer::IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special,
                                               bool continues_text)
    : tokenizer_(&tokenizer),
      decoder_(tokenizer.decoder()),
      looks_at_places_(decoder_ != nullptr && (decoder_->first_differs || decoder_->last_differs)),
      skip_special_(skip_special),
      at_start_(!continues_text) {
  if (decoder_ == nullptr) return;
  for (const TextRule& rule : decoder_->rules) rules_.emplace_back(rule, at_start_);
}

// Returns false when the token does not exist.
bool IncrementalDetokenizer::AppendBytes(TokenId id) {
  if (!looks_at_places_) {
    std::string_view bytes = tokenizer_->TokenBytes(id);
    if (bytes.empty()) return false;
    if (at_start_ && tokenizer_->adds_leading_space() && bytes.front() == ' ') {
      bytes.remove_prefix(1);
    }
    pending_ += bytes;
    return true;
  }
  const auto text = tokenizer_->TextAt(id, {.first = at_start_, .last = false});
  if (!text) return false;
  pending_ += end_if_not_;
  const std::string last =
      decoder_->last_differs ? *tokenizer_->TextAt(id, {.first = at_start_, .last = true}) : *text;
  const size_t shorter = std::min(text->size(), last.size());
  size_t same = 0;
  while (same < shorter && (*text)[same] == last[same]) ++same;
  pending_.append(*text, 0, same);
  end_if_not_ = text->substr(same);
  end_if_last_ = last.substr(same);
  return true;
}

// Returns the pending whole characters; invalid bytes become U+FFFD.
std::string IncrementalDetokenizer::TakeWhole() {
  const std::string joined = std::move(pending_);
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

std::string IncrementalDetokenizer::ApplyRules(std::string text, bool at_end) {
  for (TextRuleState& rule : rules_) {
    text = rule.Push(text);
    if (at_end) text += rule.Flush();
  }
  return text;
}

std::string IncrementalDetokenizer::Push(TokenId id) {
  if (skip_special_ && tokenizer_->IsSpecial(id)) return {};
  if (!AppendBytes(id)) return {};
  at_start_ = false;
  return ApplyRules(TakeWhole(), /*at_end=*/false);
}

std::string IncrementalDetokenizer::Flush() {
  pending_ += end_if_last_;
  end_if_last_.clear();
  end_if_not_.clear();
  std::string text = TakeWhole();
  if (!pending_.empty()) text += kReplacement;
  pending_.clear();
  return ApplyRules(std::move(text), /*at_end=*/true);
}

std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special) {
  IncrementalDetokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (const TokenId id : ids) text += detokenizer.Push(id);
  return text += detokenizer.Flush();
}

}  // namespace tandem::engine
