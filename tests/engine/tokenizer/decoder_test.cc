#include "engine/tokenizer/decoder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/tokenizer/incremental_detokenizer.h"
#include "engine/tokenizer/text/unicode.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

std::string Stream(const TextRule& rule, const std::vector<std::string>& parts) {
  TextRuleState state(rule, /*at_start=*/true);
  std::string out;
  for (const std::string& part : parts) out += state.Push(part);
  return out + state.Flush();
}

TEST(TextRule, StripsOnlyAtTheEnds) {
  const TextRule rule{.kind = TextRule::Kind::kStrip, .from = " ", .start = 1, .stop = 2};

  EXPECT_EQ(Stream(rule, {"  a  b   "}), " a  b ");
  EXPECT_EQ(Stream(rule, {" ", " ", "a", " ", " ", " "}), " a ");
  EXPECT_EQ(Stream(rule, {"", "a "}), "a");
  EXPECT_EQ(Stream(rule, {" "}), "");
}

TEST(TextRule, ReplacesAcrossParts) {
  const TextRule rule{.kind = TextRule::Kind::kReplace, .from = "aab", .to = "-"};

  EXPECT_EQ(Stream(rule, {"a", "a", "a", "b", "aa"}), "a-aa");
  EXPECT_EQ(Stream(rule, {"aabaab"}), "--");
}

TEST(TextRule, HowTheTextIsCutChangesNothing) {
  const std::vector<TextRule> rules = {
      {.kind = TextRule::Kind::kStrip, .from = "a", .start = 2, .stop = 3},
      {.kind = TextRule::Kind::kReplace, .from = "aba", .to = "b"},
      {.kind = TextRule::Kind::kReplace, .from = "b", .to = ""}};
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<std::string> parts;
    std::string whole;
    for (uint64_t i = 0; i < random() % 10; ++i) {
      parts.emplace_back();
      for (uint64_t j = 0; j < random() % 4; ++j) parts.back() += "aab"[random() % 3];
      whole += parts.back();
    }
    for (const TextRule& rule : rules) {
      ASSERT_EQ(Stream(rule, parts), Stream(rule, {whole})) << "seed " << seed;
    }
  }
}

// A vocabulary with pieces for every decoder.
TokenizerFiles WithDecoder(const Json& decoder) {
  Json vocab = Json::object();
  for (const char* piece :
       {"<unk>", "a", "##b", "##", "b</w>", "</w>", "\u2581", "\u2581a", "\u2581\u2581", "<0xC3>",
        "<0xA9>", "<0x20>", "\u0120x", "\u00C3", "\u00A9", " ", "  ", "ab", "ba"}) {
    vocab[piece] = vocab.size();
  }
  return LoadJson(Json{{"decoder", decoder},
                       {"added_tokens", {{{"id", 30}, {"content", "<|x|>"}, {"special", true}}}},
                       {"model", {{"type", "WordLevel"}, {"unk_token", "<unk>"}, {"vocab", vocab}}}}
                      .dump());
}

std::vector<Json> Decoders() {
  const auto sequence = [](Json decoders) {
    return Json{{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  };
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const Json fuse = {{"type", "Fuse"}}, fallback = {{"type", "ByteFallback"}};
  const auto strip = [](const char* content, int start, int stop) {
    return Json{{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}};
  };
  const Json suffix = {{"type", "BPEDecoder"}, {"suffix", "</w>"}};
  return {Json(nullptr),
          {{"type", "ByteLevel"}},
          {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}},
          suffix,
          {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}},
          {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "never"}},
          sequence({replace("\u2581", " "), fallback, fuse, strip(" ", 1, 0)}),
          sequence({fallback, fuse, strip(" ", 0, 2), replace("ab", "-")}),
          sequence({fuse, suffix}),
          sequence({suffix, strip("a", 1, 0)}),
          strip(" ", 1, 1)};
}

TEST(Decoders, WhatIsGivenOutIsNeverTakenBack) {
  for (const Json& decoder : Decoders()) {
    SCOPED_TRACE(decoder.dump());
    const TokenizerFiles files = WithDecoder(decoder);
    for (uint64_t seed = 0; seed < 300; ++seed) {
      SCOPED_TRACE(seed);
      std::mt19937_64 random(seed);
      Ids ids;
      for (uint64_t i = 0; i < random() % 12; ++i) {
        ids.push_back(static_cast<TokenId>(random() % 33) - 1);
      }
      for (const bool skip_special : {false, true}) {
        IncrementalDetokenizer detokenizer(*files.tokenizer, skip_special);
        std::string text;
        for (size_t i = 0; i < ids.size(); ++i) {
          const std::string part = detokenizer.Push(ids[i]);
          EXPECT_EQ(ValidUtf8Prefix(part), part.size());
          text += part;
          // The emitted text is a prefix of the final text.
          const Ids so_far(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          EXPECT_TRUE(Decode(*files.tokenizer, so_far, skip_special).starts_with(text));
        }
        EXPECT_EQ(text + detokenizer.Flush(), Decode(*files.tokenizer, ids, skip_special));
        EXPECT_EQ(detokenizer.Flush(), "");
      }
    }
  }
}

// Another program once used "<0x-1>" as an index before its table.
TEST(Decoders, WhatOnlyLooksLikeAByteIsText) {
  Json vocab = {{"<unk>", 0}};
  const std::vector<std::string> spellings = {"<0x-1>", "<0x+1>",  "<0x1G>", "<0x 1>",
                                              "<0x1>",  "<0x100>", "<0x41",  "<0X41>"};
  for (const std::string& spelling : spellings) vocab[spelling] = vocab.size();
  const TokenizerFiles files =
      LoadJson(Json{{"decoder", {{"type", "ByteFallback"}}},
                    {"model", {{"type", "WordLevel"}, {"unk_token", "<unk>"}, {"vocab", vocab}}}}
                   .dump());

  for (size_t i = 0; i < spellings.size(); ++i) {
    EXPECT_EQ(Decode(*files.tokenizer, std::vector{static_cast<TokenId>(i + 1)}, false),
              spellings[i]);
  }
}

TEST(Decoders, TheLastTokenLosesItsSuffixTheOthersKeepASpace) {
  const TokenizerFiles files = WithDecoder({{"type", "BPEDecoder"}, {"suffix", "</w>"}});
  IncrementalDetokenizer detokenizer(*files.tokenizer, false);
  const TokenId b = *files.tokenizer->FindToken("b</w>");

  EXPECT_EQ(detokenizer.Push(b), "b");
  EXPECT_EQ(detokenizer.Push(b), " b");
  EXPECT_EQ(detokenizer.Flush(), "");
}

TEST(Decoders, MetaspacesOfTheFirstTokenWereAdded) {
  const TokenizerFiles files =
      WithDecoder({{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}});
  const TokenId a = *files.tokenizer->FindToken("\u2581a");

  EXPECT_EQ(Decode(*files.tokenizer, Ids{a, a}, false), "a a");
  EXPECT_EQ(files.tokenizer->TokenBytes(a), " a");
  EXPECT_TRUE(files.tokenizer->adds_leading_space());
}

}  // namespace
}  // namespace tandem::engine
