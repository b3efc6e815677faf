#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/tokenizer/models/piece_trie.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

// Whole tokenizers of every model type, compared with plain definitions.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// Random words over few letters, so that a text has many segmentations.
std::vector<std::string> RandomPieces(std::mt19937_64& random, size_t count) {
  std::vector<std::string> pieces = {"a", "b", "c", "\u00e9"};
  while (pieces.size() < count) {
    std::string piece;
    for (uint64_t i = 0; i < 2 + random() % 4; ++i) piece += pieces[random() % 4];
    if (std::find(pieces.begin(), pieces.end(), piece) == pieces.end()) pieces.push_back(piece);
  }
  return pieces;
}

std::string RandomWord(std::mt19937_64& random, size_t characters, const char* unknown) {
  const std::vector<std::string> letters = {"a", "b", "c", "\u00e9", "a", "b", unknown};
  std::string word;
  for (size_t i = 0; i < characters; ++i) word += letters[random() % letters.size()];
  return word;
}

TEST(PieceTrie, FindsEveryPrefixShortestFirst) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    const std::vector<std::string> pieces = RandomPieces(random, 60);
    std::vector<std::pair<std::string_view, TokenId>> tokens;
    for (size_t i = 0; i < pieces.size(); ++i) {
      tokens.emplace_back(pieces[i], static_cast<TokenId>(i));
    }
    const PieceTrie trie(tokens);
    const std::string text = RandomWord(random, 20, "d");

    std::vector<std::pair<size_t, TokenId>> found, expected;
    trie.ForEachPrefix(text, [&](size_t size, TokenId id) { found.emplace_back(size, id); });
    for (size_t size = 1; size <= text.size(); ++size) {
      const auto it = std::find(pieces.begin(), pieces.end(), text.substr(0, size));
      if (it != pieces.end()) expected.emplace_back(size, it - pieces.begin());
    }
    ASSERT_EQ(found, expected) << "seed " << seed;
  }
}

// Unigram, by trying every segmentation.
struct BestPath {
  const std::map<std::string, std::pair<TokenId, double>>& pieces;
  double unk_score;
  std::map<std::string, std::pair<double, Ids>> known;

  std::pair<double, Ids> Of(const std::string& text) {
    if (text.empty()) return {0, {}};
    if (const auto it = known.find(text); it != known.end()) return it->second;
    std::pair<double, Ids> best{-INFINITY, {}};
    const size_t character = text[0] == '\xC3' ? 2 : 1;
    for (size_t size = 1; size <= text.size(); ++size) {
      const auto it = pieces.find(text.substr(0, size));
      if (it == pieces.end() && (size != character || pieces.contains(text.substr(0, size)))) {
        continue;
      }
      const auto [id, score] = it == pieces.end() ? std::pair{TokenId{0}, unk_score} : it->second;
      auto [rest, ids] = Of(text.substr(size));
      if (score + rest <= best.first) continue;
      ids.insert(ids.begin(), id);
      best = {score + rest, ids};
    }
    return known[text] = best;
  }
};

TEST(Unigram, FindsTheBestOfAllWays) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::map<std::string, std::pair<TokenId, double>> pieces;
    Json vocab = Json::array({Json::array({"<unk>", 0.0})});
    std::vector<double> scores = {0};
    double least = 0;
    for (const std::string& piece : RandomPieces(random, 25)) {
      const double score = -1.0 - static_cast<double>(random() % 1'000'003) / 77'777.0;
      pieces[piece] = {static_cast<TokenId>(vocab.size()), score};
      scores.push_back(score);
      vocab.push_back(Json::array({piece, score}));
      least = std::min(least, score);
    }
    const Json file = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}}}};
    const TokenizerFiles files = LoadJson(file.dump());
    for (int i = 0; i < 20; ++i) {
      const std::string text = RandomWord(random, 1 + random() % 14, "z");
      // Several segmentations may have the same tokens in another order, so sums are compared.
      double sum = 0;
      for (const TokenId id : files.tokenizer->Encode(text, kTextOnly)) {
        if (id != 0) sum += scores[static_cast<size_t>(id)];
      }
      sum += (least - 10) * static_cast<double>(std::count(text.begin(), text.end(), 'z'));
      BestPath best{pieces, least - 10, {}};
      ASSERT_NEAR(sum, best.Of(text).first, 1e-9) << text;
    }
  }
}

Json WordPieceFile(const std::vector<std::string>& pieces) {
  Json vocab = {{"[UNK]", 0}};
  for (const std::string& piece : pieces) vocab[piece] = vocab.size();
  return {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", false}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 12},
            {"vocab", vocab}}}};
}

TEST(WordPiece, TakesTheLongestTokenEachTime) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<std::string> pieces = RandomPieces(random, 20);
    for (const std::string& piece : RandomPieces(random, 20)) pieces.push_back("##" + piece);
    pieces.erase(pieces.begin() + 1);  // b is unknown unless a longer piece contains it
    const TokenizerFiles files = LoadJson(WordPieceFile(pieces).dump());
    for (int i = 0; i < 20; ++i) {
      const size_t characters = 1 + random() % 14;
      const std::string word = RandomWord(random, characters, "a");
      Ids expected;
      size_t at = 0;
      while (at < word.size()) {
        size_t end = word.size();
        auto found = pieces.end();
        for (; end > at; --end) {
          found = std::find(pieces.begin(), pieces.end(),
                            (at > 0 ? "##" : "") + word.substr(at, end - at));
          if (found != pieces.end()) break;
        }
        if (end == at) break;
        expected.push_back(static_cast<TokenId>(found - pieces.begin()) + 1);
        at = end;
      }
      if (at < word.size() || characters > 12) expected = {0};
      ASSERT_EQ(files.tokenizer->Encode(word, kTextOnly), expected) << word;
    }
  }
}

TEST(WordPiece, WordsAreJoinedBySpacesAndTheirPartsAreNot) {
  const TokenizerFiles files = LoadJson(WordPieceFile({"ab", "##c", "c", "##"}).dump());

  EXPECT_EQ(files.tokenizer->Encode("abc c abx", kTextOnly), (Ids{1, 2, 3, 0}));
  EXPECT_EQ(Decode(*files.tokenizer, Ids{1, 2, 3}, false), "abc c");
  EXPECT_EQ(Decode(*files.tokenizer, Ids{2, 1, 2}, false), "##c abc");
  EXPECT_EQ(Decode(*files.tokenizer, Ids{4, 4, 1}, false), "## ab");
  EXPECT_EQ(files.tokenizer->TokenBytes(1), " ab");
}

TEST(WordLevel, WordsAreTokensOrUnknown) {
  const Json file = {{"pre_tokenizer", {{"type", "Whitespace"}}},
                     {"model",
                      {{"type", "WordLevel"},
                       {"unk_token", "<unk>"},
                       {"vocab", {{"<unk>", 0}, {"the", 1}, {"dog", 2}, {".", 3}}}}}};
  const TokenizerFiles files = LoadJson(file.dump());

  EXPECT_EQ(files.tokenizer->Encode("the dog. cat", kTextOnly), (Ids{1, 2, 3, 0}));
  // Without a decoder, tokens are joined by spaces.
  EXPECT_EQ(Decode(*files.tokenizer, Ids{1, 2, 3}, false), "the dog .");
}

TEST(WordLevel, WithoutATokenForUnknownWordsTheTextIsAtFault) {
  const Json file = {{"model", {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", {{"a", 0}}}}}};
  const TokenizerFiles files = LoadJson(file.dump());

  EXPECT_EQ(files.tokenizer->Encode("a", kTextOnly), Ids{0});
  try {
    files.tokenizer->Encode("b", kTextOnly);
    ADD_FAILURE() << "encoded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
}

TEST(Models, PlainTextNeverBecomesControlTokens) {
  const Json added = {{{"id", 0}, {"content", "[MASK]"}, {"special", true}}};
  Json pieces = Json::array();
  for (const char* piece : {"[MASK]", "<unk>", "[", "MASK", "]"}) {
    pieces.push_back(Json::array({piece, pieces.empty() ? 5.0 : -1.0}));
  }
  const Json unigram = {{"added_tokens", added},
                        {"model", {{"type", "Unigram"}, {"unk_id", 1}, {"vocab", pieces}}}};
  const Json words = {
      {"added_tokens", added},
      {"model",
       {{"type", "WordLevel"}, {"unk_token", "<unk>"}, {"vocab", {{"[MASK]", 0}, {"<unk>", 1}}}}}};

  EXPECT_EQ(LoadJson(unigram.dump()).tokenizer->Encode("[MASK]", kTextOnly), (Ids{2, 3, 4}));
  EXPECT_EQ(LoadJson(words.dump()).tokenizer->Encode("[MASK]", kTextOnly), Ids{1});
  EXPECT_EQ(LoadJson(words.dump()).tokenizer->Encode("[MASK]", SpecialTokens::kParseSpecial),
            Ids{0});
}

TEST(Models, CharactersOfWordsMayCarryMarks) {
  const Json file = {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
                     {"decoder", {{"type", "BPEDecoder"}, {"suffix", "</w>"}}},
                     {"model",
                      {{"type", "BPE"},
                       {"end_of_word_suffix", "</w>"},
                       {"vocab", {{"a", 0}, {"b</w>", 1}, {"ab</w>", 2}, {"a</w>", 3}, {"ab", 4}}},
                       {"merges", {"a b</w>"}}}}};
  const TokenizerFiles files = LoadJson(file.dump());

  EXPECT_EQ(files.tokenizer->Encode("ab a aab", kTextOnly), (Ids{2, 3, 0, 2}));
  EXPECT_EQ(Decode(*files.tokenizer, Ids{2, 3, 0, 2}, false), "ab a aab");
}

}  // namespace
}  // namespace tandem::engine
