#include "engine/tokenizer/vocabulary.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

constexpr size_t kLongestAddedToken = 1024;  // bytes; bounds the work per position of a search

struct Entry {
  std::string_view spelling;
  TokenId id;
};

void CheckHoles(const std::string& file, const std::string& field, int64_t id, int64_t tokens) {
  if (id < 0 || id >= Vocabulary::kMostTokens) {
    ThrowBroken(file, field,
                "must be an id in [0, " + std::to_string(Vocabulary::kMostTokens) + "), got " +
                    std::to_string(id));
  }
  if (id >= tokens + Vocabulary::kMostHoles) {
    ThrowBroken(file, field,
                "is the id " + std::to_string(id) + ", which is too high for a vocabulary of " +
                    std::to_string(tokens) + " tokens");
  }
}

}  // namespace

Vocabulary::Vocabulary(std::string file, bool byte_level, size_t id_limit)
    : file_(std::move(file)),
      byte_level_(byte_level),
      tokens_(id_limit, static_cast<TokenId>(id_limit)),
      vocab_size_(static_cast<TokenId>(id_limit)) {
  TANDEM_CHECK(id_limit <= static_cast<size_t>(kMostTokens));
}

Vocabulary Vocabulary::FromObject(std::string file, bool byte_level, JsonValue vocab,
                                  const std::string& field) {
  if (!vocab.IsObject()) ThrowBroken(file, field, "must be an object that maps tokens to ids");
  std::vector<Entry> entries;
  TokenId highest = -1;
  vocab.ForEachMember([&](std::string_view spelling, JsonValue value) {
    const std::optional<int64_t> id = value.AsInt();
    const std::string where =
        id && *id >= 0 && *id < kMostTokens ? "" : field + "." + Quoted(spelling);
    if (!id) ThrowBroken(file, where, "must be an integer");
    if (*id < 0 || *id >= kMostTokens) CheckHoles(file, where, *id, 0);
    entries.push_back({spelling, static_cast<TokenId>(*id)});
    highest = std::max(highest, entries.back().id);
  });
  if (entries.empty()) ThrowBroken(file, field, "is empty");
  CheckHoles(file, field, highest, static_cast<int64_t>(entries.size()));

  Vocabulary read(std::move(file), byte_level, static_cast<size_t>(highest) + 1);
  std::vector<bool> taken(static_cast<size_t>(highest) + 1);
  for (const Entry& entry : entries) {
    const auto id = static_cast<size_t>(entry.id);
    bool fresh = !taken[id];
    taken[id] = true;
    if (!byte_level) {
      fresh = fresh && read.Add(entry.spelling, entry.id);
    } else if (const auto bytes = BytesOfSpelling(entry.spelling)) {
      fresh = fresh && read.Add(*bytes, entry.id);
    } else {
      // Not all of its characters stand for bytes.
      fresh = fresh && read.AddUnreachable(entry.spelling, entry.id);
    }
    if (!fresh) {
      ThrowBroken(read.file_, field + "." + Quoted(entry.spelling),
                  "repeats a spelling or the id " + std::to_string(entry.id));
    }
  }
  return read;
}

bool Vocabulary::AddUnreachable(std::string_view spelling, TokenId id) {
  TANDEM_CHECK(id >= 0 && id < vocab_size_);
  return unreachable_.emplace(spelling, id).second;
}

std::optional<TokenId> Vocabulary::Find(std::string_view spelling) const {
  TokenId id = -1;
  if (!byte_level_) {
    id = tokens_.Find(spelling);
  } else if (const auto bytes = BytesOfSpelling(spelling)) {
    id = tokens_.Find(*bytes);
  }
  if (id < 0) {
    const auto it = unreachable_.find(std::string(spelling));
    if (it != unreachable_.end()) id = it->second;
  }
  if (id < 0) return std::nullopt;
  return id;
}

void Vocabulary::AddAddedToken(AddedToken token, const std::string& field) {
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
                    Quoted(token.content) + " at " + std::to_string(*in_vocab));
  }
  vocab_size_ = std::max(vocab_size_, token.id + 1);
  added_tokens_.push_back(std::move(token));
}

std::vector<TokenId> Vocabulary::control_ids() const {
  std::vector<TokenId> ids;
  for (const AddedToken& token : added_tokens_) {
    if (token.is_control()) ids.push_back(token.id);
  }
  return ids;
}

std::array<TokenId, 256> Vocabulary::ByteTokens() const {
  std::array<TokenId, 256> ids;
  for (size_t b = 0; b < ids.size(); ++b) {
    constexpr std::string_view kHex = "0123456789ABCDEF";
    const char byte = static_cast<char>(b);
    const std::string fallback = std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">";
    ids[b] = byte_level_ ? tokens_.Find(std::string_view(&byte, 1)) : Find(fallback).value_or(-1);
  }
  return ids;
}

std::vector<std::string> Vocabulary::Spellings() const {
  std::vector<std::string> spellings(static_cast<size_t>(vocab_size_));
  for (TokenId id = 0; id < tokens_.id_limit(); ++id) {
    spellings[static_cast<size_t>(id)] = tokens_.String(id);
  }
  for (const auto& [spelling, id] : unreachable_) spellings[static_cast<size_t>(id)] = spelling;
  for (const AddedToken& token : added_tokens_) {
    spellings[static_cast<size_t>(token.id)] = token.content;
  }
  return spellings;
}

void MergeRules::Add(std::string_view left, std::string_view right, const std::string& field) {
  const std::string& file = vocabulary_->file();
  const auto find = [&](std::string_view spelling) {
    const std::optional<TokenId> id = vocabulary_->Find(spelling);
    if (!id)
      ThrowBroken(file, field, "names " + Quoted(spelling) + ", which is not in the vocabulary");
    return *id;
  };
  if (left.empty() || right.empty()) ThrowBroken(file, field, "must name two tokens");
  if (!right.starts_with(prefix_)) {
    ThrowBroken(file, field, "must have a right token that starts with " + Quoted(prefix_));
  }
  const TokenId left_id = find(left), right_id = find(right);
  const TokenId merged = find(std::string(left).append(right.substr(prefix_.size())));
  merges_.Set(left_id, right_id, {next_rank_++, merged});
}

void MergeRules::Add(std::string_view line, const std::string& field) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
    ThrowBroken(vocabulary_->file(), field, "must be two tokens separated by one space");
  }
  Add(line.substr(0, space), line.substr(space + 1), field);
}

PairTable MergesByRank(const TokenTable& tokens,
                       const std::vector<std::pair<TokenId, uint32_t>>& ranked) {
  struct Rule {
    TokenId left, right;
    PairTable::Merge merge;
  };
  std::vector<Rule> rules;
  for (const auto& [id, rank] : ranked) {
    const std::string_view token = tokens.String(id);
    TANDEM_CHECK(token.size() <= kLongestRanked);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const TokenId left = tokens.Find(token.substr(0, cut));
      if (left < 0) continue;
      const TokenId right = tokens.Find(token.substr(cut));
      if (right >= 0) rules.push_back({left, right, {rank, id}});
    }
  }
  PairTable merges(rules.size());
  for (const Rule& rule : rules) merges.Set(rule.left, rule.right, rule.merge);
  return merges;
}

}  // namespace tandem::engine
