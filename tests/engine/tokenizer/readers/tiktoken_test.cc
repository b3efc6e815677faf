#include "engine/tokenizer/readers/tiktoken.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "engine/tokenizer/files/base64.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;

std::string Encode64(std::string_view bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const std::string_view part = bytes.substr(i, 3);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) {
      bits = bits << 8 | (j < part.size() ? static_cast<unsigned char>(part[j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) {
      out += j <= part.size() ? kAlphabet[bits >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

// All bytes at their own ranks, then "ab", "bc", "abc" and digits.
std::string Ranks() {
  std::string lines;
  int rank = 0;
  const auto add = [&](std::string_view token) {
    lines += Encode64(token) + " " + std::to_string(rank++) + "\n";
  };
  for (int b = 0; b < 256; ++b) add(std::string(1, static_cast<char>(b)));
  for (const char* token : {"bc", "ab", "abc", "12", "123", "34"}) add(token);
  return lines;
}

TokenizerTexts Texts(std::string ranks, std::string config, std::string tokenizer_config = "{}") {
  TokenizerTexts texts;
  texts.source = "test";
  texts.tokenizer_model = std::move(ranks);
  texts.config_json = std::move(config);
  texts.tokenizer_config_json = std::move(tokenizer_config);
  return texts;
}

TEST(Base64, DecodesWhatTheStandardLists) {
  EXPECT_EQ(DecodeBase64(""), "");
  EXPECT_EQ(DecodeBase64("Zg=="), "f");
  EXPECT_EQ(DecodeBase64("Zm8="), "fo");
  EXPECT_EQ(DecodeBase64("Zm9vYmFy"), "foobar");
  for (const char* broken : {"Z", "Zg", "Zg=", "Zh==", "Zm9=", "====", "Zm 8", "Zg==Zg=="}) {
    EXPECT_FALSE(DecodeBase64(broken)) << broken;
  }
}

TEST(Tiktoken, MergesTheLowestRankAndCutsAsTheFamilyDoes) {
  const auto llama = LoadTokenizer(Texts(Ranks(), R"({"model_type": "llama"})"));
  const auto qwen = LoadTokenizer(Texts(Ranks(), R"({"model_type": "qwen"})"));

  // A piece that is a token needs no merges; elsewhere bc (256) merges before ab (257).
  EXPECT_EQ(llama->tokenizer->Encode("abc", kTextOnly), Ids{258});
  EXPECT_EQ(llama->tokenizer->Encode("xabc", kTextOnly), (Ids{'x', 258}));
  EXPECT_EQ(llama->tokenizer->Encode("xabcab", kTextOnly), (Ids{'x', 258, 257}));
  EXPECT_EQ(llama->tokenizer->Encode("1234", kTextOnly), (Ids{260, '4'}));
  EXPECT_EQ(qwen->tokenizer->Encode("1234", kTextOnly), (Ids{'1', '2', '3', '4'}));
  // Qwen composes its text (NFC).
  EXPECT_EQ(qwen->tokenizer->Encode("e\u0301", kTextOnly), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(llama->tokenizer->Encode("e\u0301", kTextOnly), (Ids{'e', 0xCC, 0x81}));
}

TEST(Tiktoken, KnowsTheControlTokensOfTheFamily) {
  const auto llama = LoadTokenizer(Texts(Ranks(), R"({"model_type": "llama"})"));
  const auto qwen = LoadTokenizer(Texts(Ranks(), "{}", R"({"tokenizer_class": "QWenTokenizer"})"));

  EXPECT_EQ(llama->bos, 262);
  EXPECT_TRUE(llama->add_bos);
  EXPECT_EQ(llama->tokenizer->FindToken("<|eot_id|>"), 262 + 9);
  EXPECT_EQ(qwen->tokenizer->FindToken("<|im_end|>"), 262 + 2);
  EXPECT_EQ(qwen->tokenizer->FindToken("<|extra_204|>"), 262 + 207);
  EXPECT_FALSE(qwen->add_bos);
  EXPECT_EQ(qwen->tokenizer->Encode("<|im_end|>", SpecialTokens::kParseSpecial), Ids{264});
}

TEST(Tiktoken, WhatTheConfigurationNamesWins) {
  const auto files = LoadTokenizer(
      Texts(Ranks(), R"({"model_type": "llama"})",
            R"({"added_tokens_decoder": {"270": {"content": "<|eom_id|>", "special": true}}})"));

  EXPECT_EQ(files->tokenizer->FindToken("<|eom_id|>"), 270);
  EXPECT_EQ(files->tokenizer->FindToken("<|eot_id|>"), 271);
}

TEST(Tiktoken, ThePatternIsNeverGuessed) {
  for (const char* config : {"{}", R"({"model_type": "gpt_oss"})"}) {
    try {
      LoadTokenizer(Texts(Ranks(), config));
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_NE(std::string(error.what()).find("tokenizer_class"), std::string::npos);
    }
  }
}

TEST(Tiktoken, AnyTextRoundTrips) {
  const auto files = LoadTokenizer(Texts(Ranks(), R"({"model_type": "llama"})"));
  for (uint64_t seed = 0; seed < 500; ++seed) {
    std::mt19937_64 random(seed);
    const std::string text = RandomText(random, 40, /*with_invalid=*/true);
    std::string bytes;
    for (const TokenId id : files->tokenizer->Encode(text, kTextOnly)) {
      bytes += files->tokenizer->TokenBytes(id);
    }
    ASSERT_EQ(bytes, text) << "seed " << seed;
  }
}

TEST(Tiktoken, BrokenLinesAreNamed) {
  const std::vector<std::pair<std::string, const char*>> corpus = {
      {"", "empty"},
      {"IQ== 0\nzz\n", "line 2 must be"},
      {"IQ== x\n", "line 1 has the rank 'x'"},
      {"IQ== -1\n", "the rank '-1'"},
      {"IQ== 99999999999\n", "rank"},
      {"I*== 1\n", "base64"},
      {" 1\n", "base64"},
      {"IQ== 1\nIQ== 2\n", "twice"},
      {"IQ== 1\nIg== 1\n", "twice"},
      {"IQ== 1\n", "the byte 0 has no rank"},
      {"IQ== 16000000\n", "too high"},
      {Encode64(std::string(3000, 'a')) + " 1\n", "more than the limit of 1024"},
  };
  for (const auto& [ranks, message] : corpus) {
    SCOPED_TRACE(ranks.substr(0, 40));
    try {
      LoadTiktoken(ranks, "test", TiktokenFamily::kQwen, {});
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
