#include "engine/tokenizer/training/bpe_trainer.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "engine/tokenizer/text/unicode.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Pair = std::pair<std::string, std::string>;

std::string Spelling(const std::string& bytes) {
  std::string spelling;
  AppendByteSpelling(bytes, spelling);
  return spelling;
}

// The definition: counts all pairs again for every merge.
std::vector<std::string> MergesByHand(const std::string& corpus, size_t merges, int64_t min_count) {
  std::map<std::vector<std::string>, int64_t> words;
  ForEachGpt2Piece(corpus, [&](std::string_view piece) {
    std::vector<std::string> word;
    for (const char c : piece) word.emplace_back(1, c);
    ++words[word];
  });
  std::vector<std::string> rules;
  std::map<std::string, int> tokens;
  while (tokens.size() < merges) {
    std::map<Pair, int64_t> counts;
    for (const auto& [word, count] : words) {
      for (size_t i = 0; i + 1 < word.size(); ++i) counts[{word[i], word[i + 1]}] += count;
    }
    const Pair* best = nullptr;
    int64_t most = min_count - 1;
    for (const auto& [pair, count] : counts) {
      if (count > most) {
        best = &pair;
        most = count;
      }
    }
    if (best == nullptr) break;
    const Pair chosen = *best;
    rules.push_back(Spelling(chosen.first) + " " + Spelling(chosen.second));
    ++tokens[chosen.first + chosen.second];
    std::map<std::vector<std::string>, int64_t> merged;
    for (const auto& [word, count] : words) {
      std::vector<std::string> next;
      for (size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == chosen.first && word[i + 1] == chosen.second) {
          next.push_back(word[i] + word[i + 1]);
          ++i;
        } else {
          next.push_back(word[i]);
        }
      }
      merged[next] += count;
    }
    words = std::move(merged);
  }
  return rules;
}

TEST(BpeTrainer, LearnsTheMergesThatTheDefinitionGives) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string corpus;
    // Few letters, so that ties, overlaps ("aaa") and two ways to one token are common.
    for (int i = 0; i < 300; ++i) corpus += " aaabbc"[random() % 7];

    const Json file = Json::parse(
        TrainBpe(corpus, {.vocab_size = 256 + 25, .min_pair_count = 2, .special_tokens = {}}, {}));

    EXPECT_EQ(file.at("model").at("merges").get<std::vector<std::string>>(),
              MergesByHand(corpus, 25, 2));
  }
}

TEST(BpeTrainer, TheSameTextGivesTheSameFile) {
  const BpeTrainerOptions options{
      .vocab_size = 350, .min_pair_count = 2, .special_tokens = {"<|end|>"}};

  EXPECT_EQ(TrainBpe(TinyCorpus(), options, {}), TrainBpe(std::string(TinyCorpus()), options, {}));
}

TEST(BpeTrainer, TheFileLoadsAndItsTokensRoundTrip) {
  const TokenizerFiles files = LoadJson(TinyTokenizerJson());
  const Tokenizer& tokenizer = *files.tokenizer;

  EXPECT_EQ(tokenizer.vocab_size(), 340);
  EXPECT_EQ(tokenizer.FindToken("<|end|>"), 0);
  EXPECT_EQ(tokenizer.FindToken("<|user|>"), 1);
  EXPECT_TRUE(tokenizer.IsSpecial(1));
  EXPECT_FALSE(tokenizer.IsSpecial(2));
  EXPECT_EQ(tokenizer.FindToken("!"), 2);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    EXPECT_FALSE(tokenizer.TokenBytes(id).empty());
    EXPECT_EQ(tokenizer.FindToken(tokenizer.TokenBytes(id)), id);
  }
  const auto ids = tokenizer.Encode(TinyCorpus(), SpecialTokens::kParseSpecial);
  EXPECT_LT(ids.size() * 3, TinyCorpus().size());
  EXPECT_EQ(Decode(tokenizer, ids, false), TinyCorpus());
}

TEST(BpeTrainer, NothingIsLearntFromOrAcrossSpecialTokens) {
  std::string corpus;
  for (int i = 0; i < 20; ++i) corpus += "x<|q|>";

  const Json file = Json::parse(
      TrainBpe(corpus, {.vocab_size = 300, .min_pair_count = 2, .special_tokens = {"<|q|>"}}, {}));

  EXPECT_TRUE(file.at("model").at("merges").empty());
}

TEST(BpeTrainer, RarePairsAndInvalidBytesAreFine) {
  const std::string corpus = "ab \xFF\xFE\xFF\xFE ab \xC3";

  const Json file = Json::parse(
      TrainBpe(corpus, {.vocab_size = 300, .min_pair_count = 3, .special_tokens = {}}, {}));

  EXPECT_TRUE(file.at("model").at("merges").empty());
  EXPECT_EQ(file.at("model").at("vocab").size(), 256u);
  EXPECT_EQ(Json::parse(TrainBpe("", {}, {})).at("model").at("vocab").size(), 256u);
}

TEST(BpeTrainer, ReportsProgressToTheEnd) {
  int64_t last = -1, all = -1;

  TrainBpe(TinyCorpus(), {.vocab_size = 256 + 70, .min_pair_count = 1, .special_tokens = {}},
           [&](int64_t done, int64_t total) {
             EXPECT_GE(done, last);
             last = done;
             all = total;
           });

  EXPECT_EQ(last, 70);
  EXPECT_EQ(all, 70);
}

TEST(BpeTrainer, RefusesImpossibleOptions) {
  const auto refuses = [](BpeTrainerOptions options) {
    try {
      TrainBpe("text", options, {});
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };

  EXPECT_TRUE(refuses({.vocab_size = 255, .min_pair_count = 2, .special_tokens = {}}));
  EXPECT_TRUE(refuses({.vocab_size = 256, .min_pair_count = 2, .special_tokens = {"<a>"}}));
  EXPECT_TRUE(refuses({.vocab_size = 999, .min_pair_count = 2, .special_tokens = {""}}));
  EXPECT_TRUE(refuses({.vocab_size = 999, .min_pair_count = 2, .special_tokens = {"!"}}));
  EXPECT_TRUE(refuses({.vocab_size = 999, .min_pair_count = 2, .special_tokens = {"<a>", "<a>"}}));
  EXPECT_TRUE(refuses({.vocab_size = 999, .min_pair_count = 2, .special_tokens = {"\xFF\xFF"}}));
}

}  // namespace
}  // namespace tandem::engine
