#include "engine/tokenizer/bpe_builder.h"

#include <algorithm>
#include <charconv>

#include "engine/base/check.h"
#include "engine/tokenizer/file_errors.h"
#include "engine/tokenizer/unicode.h"

namespace tandem::engine {
namespace {

constexpr int64_t kMaxId = 1 << 24;
constexpr size_t kLongestAddedToken = 1024;  // bytes; bounds the work per position of a search

struct Entry {
  std::string_view spelling;
  TokenId id;
};

void CheckHoles(const std::string& file, const std::string& field, int64_t id, int64_t tokens) {
  if (id < 0 || id >= kMaxId) {
    ThrowBroken(file, field,
                "must be an id in [0, " + std::to_string(kMaxId) + "), got " + std::to_string(id));
  }
  if (id >= tokens + BpeBuilder::kMostHoles) {
    ThrowBroken(file, field,
                "is the id " + std::to_string(id) + " in a vocabulary of only " +
                    std::to_string(tokens) + " tokens");
  }
}

TokenTable ReadVocab(const std::string& file, const std::string& field, JsonValue vocab,
                     bool byte_level, std::unordered_map<std::string, TokenId>& unreachable) {
  if (!vocab.IsObject()) ThrowBroken(file, field, "must be an object of ids");
  std::vector<Entry> entries;
  TokenId highest = -1;
  vocab.ForEachMember([&](std::string_view spelling, JsonValue value) {
    const std::optional<int64_t> id = value.AsInt();
    const std::string where =
        id && *id >= 0 && *id < kMaxId ? "" : field + "." + QuotedSpelling(spelling);
    if (!id) ThrowBroken(file, where, "must be an integer");
    if (*id < 0 || *id >= kMaxId) CheckHoles(file, where, *id, 0);
    entries.push_back({spelling, static_cast<TokenId>(*id)});
    highest = std::max(highest, entries.back().id);
  });
  if (entries.empty()) ThrowBroken(file, field, "is empty");
  CheckHoles(file, field, highest, static_cast<int64_t>(entries.size()));

  TokenTable tokens(entries.size(), highest + 1);
  std::vector<bool> taken(static_cast<size_t>(highest) + 1);
  for (const Entry& entry : entries) {
    const auto id = static_cast<size_t>(entry.id);
    bool fresh = !taken[id];
    taken[id] = true;
    if (!byte_level) {
      fresh = fresh && tokens.Insert(entry.spelling, entry.id);
    } else if (const auto bytes = BytesOfSpelling(entry.spelling)) {
      fresh = fresh && tokens.Insert(*bytes, entry.id);
    } else {
      fresh = fresh && unreachable.emplace(entry.spelling, entry.id).second;
    }
    if (!fresh) {
      ThrowBroken(file, field + "." + QuotedSpelling(entry.spelling),
                  "repeats a spelling or the id " + std::to_string(entry.id));
    }
  }
  return tokens;
}

// The byte that "<0x41>" stands for.
std::optional<char> FallbackByte(std::string_view spelling) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') {
    return std::nullopt;
  }
  unsigned value = 0;
  const auto [end, error] =
      std::from_chars(spelling.data() + 3, spelling.data() + 5, value, /*base=*/16);
  if (error != std::errc() || end != spelling.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

std::string TextOfSpelling(std::string_view spelling, const SpellingRules& rules) {
  if (rules.byte_fallback) {
    if (const auto byte = FallbackByte(spelling)) return std::string(1, *byte);
  }
  std::string text(spelling);
  for (const ReplaceText& rule : rules.replacements) {
    for (size_t at = text.find(rule.from); at != std::string::npos;
         at = text.find(rule.from, at + rule.to.size())) {
      text.replace(at, rule.from.size(), rule.to);
    }
  }
  return text;
}

}  // namespace

BpeBuilder::BpeBuilder(std::string file, bool byte_level, JsonValue vocab, const std::string& field)
    : file_(std::move(file)),
      byte_level_(byte_level),
      tokens_(ReadVocab(file_, field, vocab, byte_level, unreachable_)),
      vocab_size_(tokens_.id_limit()) {}

std::optional<TokenId> BpeBuilder::Find(std::string_view spelling) const {
  TokenId id = -1;
  if (!byte_level_) {
    id = tokens_.Find(spelling);
  } else if (const auto bytes = BytesOfSpelling(spelling)) {
    id = tokens_.Find(*bytes);
  } else if (const auto it = unreachable_.find(std::string(spelling)); it != unreachable_.end()) {
    id = it->second;
  }
  if (id < 0) return std::nullopt;
  return id;
}

void BpeBuilder::AddMerge(std::string_view left, std::string_view right, const std::string& field) {
  const auto find = [&](std::string_view spelling) {
    const std::optional<TokenId> id = Find(spelling);
    if (!id)
      ThrowBroken(file_, field, "names " + QuotedSpelling(spelling) + ", not in the vocabulary");
    return *id;
  };
  if (left.empty() || right.empty()) ThrowBroken(file_, field, "must name two tokens");
  const TokenId left_id = find(left), right_id = find(right);
  const TokenId merged = find(std::string(left).append(right));
  merges_.Set(left_id, right_id, {next_rank_++, merged});
}

void BpeBuilder::AddMerge(std::string_view line, const std::string& field) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    ThrowBroken(file_, field, "must be two tokens with one space between");
  }
  AddMerge(line.substr(0, space), line.substr(space + 1), field);
}

void BpeBuilder::AddAddedToken(AddedToken token, const std::string& field) {
  if (token.content.empty()) return;
  if (token.content.size() > kLongestAddedToken) {
    ThrowBroken(file_, field + ".content",
                "must be at most " + std::to_string(kLongestAddedToken) + " bytes, got " +
                    std::to_string(token.content.size()));
  }
  const auto count = static_cast<int64_t>(added_tokens_.size()) + tokens_.id_limit() + 1;
  CheckHoles(file_, field + ".id", token.id, count);
  const std::optional<TokenId> in_vocab = Find(token.content);
  if (in_vocab && *in_vocab != token.id) {
    ThrowBroken(file_, field + ".id",
                "is " + std::to_string(token.id) + ", but the vocabulary has " +
                    QuotedSpelling(token.content) + " at " + std::to_string(*in_vocab));
  }
  vocab_size_ = std::max(vocab_size_, token.id + 1);
  added_tokens_.push_back(std::move(token));
}

std::vector<std::string> BpeBuilder::Texts(const SpellingRules& rules) const {
  std::vector<std::string> texts(static_cast<size_t>(vocab_size_));
  for (TokenId id = 0; id < tokens_.id_limit(); ++id) {
    const std::string_view token = tokens_.String(id);
    texts[static_cast<size_t>(id)] = byte_level_ ? token : TextOfSpelling(token, rules);
  }
  for (const auto& [spelling, id] : unreachable_) texts[static_cast<size_t>(id)] = spelling;
  for (const AddedToken& token : added_tokens_) {
    texts[static_cast<size_t>(token.id)] = token.content;
  }
  return texts;
}

BpeModel BpeBuilder::BuildModel(BpeOptions options) && {
  TANDEM_CHECK(options.byte_level == byte_level_);
  std::array<TokenId, 256> byte_tokens;
  for (size_t b = 0; b < byte_tokens.size(); ++b) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    const char byte = static_cast<char>(b);
    const std::string fallback = std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">";
    byte_tokens[b] =
        byte_level_ ? tokens_.Find(std::string_view(&byte, 1)) : tokens_.Find(fallback);
  }
  std::vector<TokenId> control;
  for (const AddedToken& token : added_tokens_) {
    if (token.is_control()) control.push_back(token.id);
  }
  return BpeModel(options, std::move(tokens_), std::move(merges_), byte_tokens, control);
}

}  // namespace tandem::engine
