#include <gtest/gtest.h>

#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/text/unicode.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;

const Tokenizer& Tiny() {
  static const TokenizerFiles files = LoadJson(TinyTokenizerJson());
  return *files.tokenizer;
}

Ids OneTokenPerByte(std::string_view bytes) {
  Ids ids;
  for (const char& byte : bytes) ids.push_back(*Tiny().FindToken(std::string_view(&byte, 1)));
  return ids;
}

std::string PushAll(IncrementalDetokenizer detokenizer, const Ids& ids) {
  std::string text;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.Push(id);
    EXPECT_EQ(ValidUtf8Prefix(part), part.size());
    text += part;
  }
  return text + detokenizer.Flush();
}

TEST(Detokenizer, ReplacesAsTheUnicodeStandardsTableDoes) {
  // Table 3-8 of the Unicode standard, and the neighbouring tables for overlong forms and
  // surrogates.
  const std::string r = "\uFFFD";
  const auto decode = [](std::string_view bytes) {
    return Decode(Tiny(), OneTokenPerByte(bytes), false);
  };

  EXPECT_EQ(decode("a\xF1\x80\x80\xE1\x80\xC2"
                   "b\x80"
                   "c\x80\xBF"
                   "d"),
            std::string("a") + r + r + r + "b" + r + "c" + r + r + "d");
  EXPECT_EQ(decode("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(decode("\xF0\x9F\x98"), r);
}

TEST(Detokenizer, TextDoesNotDependOnHowBytesAreSharedAmongTokens) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string text = RandomText(random, 30, /*with_invalid=*/true);
    const Ids ids = Tiny().Encode(text, SpecialTokens::kPlainText);

    const std::string decoded = Decode(Tiny(), ids, false);

    EXPECT_EQ(decoded, Decode(Tiny(), OneTokenPerByte(text), false));
    EXPECT_EQ(decoded, PushAll(IncrementalDetokenizer(Tiny(), false), ids));
    if (ValidUtf8Prefix(text) == text.size()) {
      EXPECT_EQ(decoded, text);
    }
  }
}

TEST(Detokenizer, PushedPartsOfRandomIdsJoinToTheDecodedText) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Ids ids;
    for (int i = 0; i < 50; ++i) {
      // Includes invalid ids.
      ids.push_back(
          static_cast<TokenId>(random() % static_cast<uint64_t>(Tiny().vocab_size() + 4)) - 2);
    }
    for (const bool skip_special : {false, true}) {
      EXPECT_EQ(PushAll(IncrementalDetokenizer(Tiny(), skip_special), ids),
                Decode(Tiny(), ids, skip_special));
    }
  }
}

TEST(Detokenizer, UnfinishedCharacterWaitsAndIsReplacedOnce) {
  IncrementalDetokenizer detokenizer(Tiny(), false);
  const Ids bytes = OneTokenPerByte("\xF0\x9F\x98\x82\xF0\x9F");

  EXPECT_EQ(detokenizer.Push(bytes[0]), "");
  EXPECT_EQ(detokenizer.Push(bytes[1]), "");
  EXPECT_EQ(detokenizer.Push(bytes[2]), "");
  EXPECT_EQ(detokenizer.Push(bytes[3]), "\U0001F602");
  EXPECT_EQ(detokenizer.Push(bytes[4]), "");
  EXPECT_EQ(detokenizer.Push(bytes[5]), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Detokenizer, SpecialTokensAreLeftOutOnRequest) {
  const Ids ids = Tiny().Encode("a<|end|>b", SpecialTokens::kParseSpecial);

  EXPECT_EQ(Decode(Tiny(), ids, false), "a<|end|>b");
  EXPECT_EQ(Decode(Tiny(), ids, true), "ab");
}

}  // namespace
}  // namespace tandem::engine
