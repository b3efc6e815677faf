#include "engine/tokenizer/models/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;

// A vocabulary over the bytes 'a'..'d' with random merges, and rules to apply them naively.
struct Toy {
  std::vector<std::string> strings;
  std::map<std::pair<TokenId, TokenId>, std::pair<uint32_t, TokenId>> rules;

  explicit Toy(uint64_t seed) {
    std::mt19937_64 random(seed);
    for (const char c : std::string_view("abcd")) strings.emplace_back(1, c);
    std::map<std::string, TokenId> ids;
    for (size_t i = 0; i < strings.size(); ++i) ids[strings[i]] = static_cast<TokenId>(i);
    for (uint32_t rank = 0; rank < 40; ++rank) {
      const auto left = static_cast<TokenId>(random() % strings.size());
      const auto right = static_cast<TokenId>(random() % strings.size());
      const std::string joined = strings[size_t(left)] + strings[size_t(right)];
      if (joined.size() > 12 || rules.contains({left, right})) continue;
      const auto [it, added] = ids.emplace(joined, static_cast<TokenId>(strings.size()));
      if (added) strings.push_back(joined);
      rules[{left, right}] = {rank, it->second};
    }
  }

  BpeModel Model() const {
    TokenTable tokens(strings.size(), static_cast<TokenId>(strings.size()));
    std::array<TokenId, 256> bytes;
    bytes.fill(-1);
    for (size_t i = 0; i < strings.size(); ++i) {
      EXPECT_TRUE(tokens.Insert(strings[i], static_cast<TokenId>(i)));
      if (i < 4) bytes[static_cast<unsigned char>(strings[i][0])] = static_cast<TokenId>(i);
    }
    PairTable merges(rules.size());
    for (const auto& [pair, rule] : rules) {
      merges.Set(pair.first, pair.second, {rule.first, rule.second});
    }
    return BpeModel({.byte_level = true}, std::move(tokens), std::move(merges), bytes, {});
  }

  Ids MergeByHand(std::string_view piece) const {
    Ids ids;
    for (const char c : piece) ids.push_back(c - 'a');
    while (true) {
      uint32_t best = UINT32_MAX;
      size_t at = 0;
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto rule = rules.find({ids[i], ids[i + 1]});
        if (rule != rules.end() && rule->second.first < best) {
          best = rule->second.first;
          at = i;
        }
      }
      if (best == UINT32_MAX) return ids;
      ids[at] = rules.at({ids[at], ids[at + 1]}).second;
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
  }
};

TEST(Bpe, EveryLengthMergesAsByHand) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    const Toy toy(seed);
    const BpeModel model = toy.Model();
    std::mt19937_64 random(seed + 1000);
    BpeModel::Scratch scratch;
    // Up to 64 symbols are merged in an array, more in a heap.
    for (const size_t length : {1, 2, 3, 7, 20, 63, 64, 65, 66, 150, 400}) {
      std::string piece;
      for (size_t i = 0; i < length; ++i) {
        piece += random() % 3 == 0 ? 'a' : static_cast<char>('a' + random() % 4);
      }
      Ids ids;
      model.Encode(piece, scratch, ids);
      ASSERT_EQ(ids, toy.MergeByHand(piece)) << piece;
    }
    for (const std::string& token : toy.strings) {
      Ids ids;
      model.Encode(token, scratch, ids);
      ASSERT_EQ(ids, toy.MergeByHand(token)) << token;
    }
  }
}

// a, aa, aaaa, ...: every symbol of a run of one letter can merge repeatedly.
BpeModel Doubling(int levels) {
  TokenTable tokens(static_cast<size_t>(levels), levels);
  PairTable merges(static_cast<size_t>(levels));
  std::array<TokenId, 256> bytes;
  bytes.fill(-1);
  bytes['a'] = 0;
  for (TokenId level = 0; level < levels; ++level) {
    tokens.Insert(std::string(size_t{1} << level, 'a'), level);
    if (level > 0) merges.Set(level - 1, level - 1, {static_cast<uint32_t>(level), level});
  }
  return BpeModel({.byte_level = true}, std::move(tokens), std::move(merges), bytes, {});
}

TEST(Bpe, WorkPerByteOfOneEndlessWordIsBounded) {
  const BpeModel model = Doubling(6);
  for (const size_t length : {size_t{1} << 10, size_t{1} << 15, size_t{1} << 20}) {
    BpeModel::Scratch scratch;
    Ids ids;

    model.Encode(std::string(length, 'a'), scratch, ids);

    EXPECT_EQ(ids.size(), length / 32);
    // Each symbol is placed once and causes at most three heap entries.
    EXPECT_LE(scratch.steps, static_cast<int64_t>(4 * length));
  }
}

TEST(Bpe, WorkPerByteOfShortWordsIsBounded) {
  const BpeModel model = Doubling(3);
  BpeModel::Scratch scratch;
  Ids ids;
  for (size_t i = 0; i < 1000; ++i) model.Encode(std::string(64, 'a'), scratch, ids);

  EXPECT_LE(scratch.steps, 1000 * (64 + 64 * 64));
}

TEST(Bpe, ControlTokensAreNotReachedByTheirSpelling) {
  TokenTable tokens(3, 3);
  tokens.Insert("a", 0);
  tokens.Insert("b", 1);
  tokens.Insert("ab", 2);
  std::array<TokenId, 256> bytes;
  bytes.fill(-1);
  bytes['a'] = 0;
  bytes['b'] = 1;
  const BpeModel model({.byte_level = true, .ignore_merges = true}, std::move(tokens), PairTable(0),
                       bytes, {2});
  BpeModel::Scratch scratch;
  Ids ids;

  model.Encode("ab", scratch, ids);

  EXPECT_EQ(ids, (Ids{0, 1}));
}

TEST(Bpe, ControlTokensAreNotReachedByMerges) {
  TokenTable tokens(3, 3);
  tokens.Insert("a", 0);
  tokens.Insert("b", 1);
  tokens.Insert("ab", 2);
  std::array<TokenId, 256> bytes;
  bytes.fill(-1);
  bytes['a'] = 0;
  bytes['b'] = 1;
  PairTable merges(1);
  merges.Set(0, 1, {0, 2});
  const BpeModel model({.byte_level = true}, std::move(tokens), std::move(merges), bytes, {2});
  BpeModel::Scratch scratch;
  Ids ids;

  model.Encode("ab", scratch, ids);

  EXPECT_EQ(ids, (Ids{0, 1}));
}

TEST(Bpe, BytesWithoutATokenBecomeUnknownOrNothing) {
  const auto encode = [](BpeOptions options) {
    TokenTable tokens(2, 2);
    tokens.Insert("?", 0);
    tokens.Insert("a", 1);
    std::array<TokenId, 256> bytes;
    bytes.fill(-1);
    bytes['a'] = 1;
    const BpeModel model(options, std::move(tokens), PairTable(0), bytes, {});
    BpeModel::Scratch scratch;
    Ids ids;
    model.Encode("xxa", scratch, ids);
    return ids;
  };

  EXPECT_EQ(encode({.byte_level = true}), (Ids{1}));
  EXPECT_EQ(encode({.byte_level = true, .unk = 0}), (Ids{0, 0, 1}));
  EXPECT_EQ(encode({.byte_level = true, .unk = 0, .fuse_unk = true}), (Ids{0, 1}));
}

// As in the tokenizers library, a character without a token vanishes when no unknown token takes
// its place. A load warns of such a vocabulary.
TEST(BpeModel, SaysWhetherItMayDropText) {
  const auto model = [](BpeOptions options, bool has_all_bytes) {
    TokenTable tokens(256, 256);
    std::array<TokenId, 256> bytes;
    bytes.fill(-1);
    for (TokenId id = 0; id < (has_all_bytes ? 256 : 128); ++id) {
      const char byte = static_cast<char>(id);
      EXPECT_TRUE(tokens.Insert(std::string(1, byte), id));
      bytes[static_cast<size_t>(id)] = id;
    }
    return BpeModel(std::move(options), std::move(tokens), PairTable(0), bytes, {});
  };
  EXPECT_FALSE(model({.byte_level = true}, true).may_drop_text());
  EXPECT_TRUE(model({.byte_level = true}, false).may_drop_text());
  EXPECT_FALSE(model({.byte_level = true, .unk = 0}, false).may_drop_text());
  EXPECT_TRUE(model({.byte_level = false}, true).may_drop_text());
  EXPECT_FALSE(model({.byte_level = false, .byte_fallback = true}, true).may_drop_text());

  const BpeModel lossy = model({.byte_level = true}, false);
  const auto scratch = lossy.MakeScratch();
  Ids ids;
  lossy.Encode("a\xC3\xA9z", *scratch, ids);
  EXPECT_EQ(ids, (Ids{'a', 'z'}));
}

}  // namespace
}  // namespace tandem::engine
