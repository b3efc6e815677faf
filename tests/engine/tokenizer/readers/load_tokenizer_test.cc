#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/base/error.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

// Loads the tiny tokenizer's file with a change.
TokenizerFiles LoadChanged(const std::function<void(Json&)>& change) {
  Json file = Json::parse(TinyTokenizerJson());
  change(file);
  return LoadJson(file.dump());
}

TokenizerFiles LoadWithConfig(std::string config, std::optional<std::string> jinja = {}) {
  return *LoadTokenizer({.source = "test",
                         .tokenizer_json = TinyTokenizerJson(),
                         .vocab_json = {},
                         .merges_txt = {},
                         .tokenizer_config_json = std::move(config),
                         .chat_template_jinja = std::move(jinja)});
}

Json Added(TokenId id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", false}};
}

// A Llama-style file: characters, metaspaces, byte fallback, merges over the whole text.
Json LlamaStyle(bool byte_fallback) {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  int next = 3;
  for (int b = 0; b < 256 && byte_fallback; ++b) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(b));
    vocab[name] = next++;
  }
  Json merges = Json::array();
  const auto token = [&](const std::string& spelling) {
    if (!vocab.contains(spelling)) vocab[spelling] = next++;
  };
  for (const char* c : {"\u2581", "a", "b", "c", "\u00e9"}) token(c);
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"a", "b"}, {"\u2581", "ab"}, {"\u2581", "\u2581"}, {"\u2581ab", "c"}, {"c", "\u00e9"}};
  for (const auto& [left, right] : pairs) {
    token(left + right);
    merges.push_back({left, right});
  }
  const Json special = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  Json added = Json::array();
  for (const auto& [content, id] : special.items()) {
    added.push_back({{"id", id}, {"content", content}, {"special", true}});
  }
  return {{"added_tokens", added},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", byte_fallback},
            {"vocab", vocab},
            {"merges", merges}}}};
}

TEST(LoadTokenizer, WithoutAnyFileThereIsNone) {
  TokenizerTexts texts;
  texts.chat_template_jinja = "x";

  EXPECT_FALSE(LoadTokenizer(texts));
}

TEST(LoadTokenizer, AnyBytesRoundTrip) {
  const TokenizerFiles files = LoadJson(TinyTokenizerJson());
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string text = RandomText(random, 50, /*with_invalid=*/true);
    for (const SpecialTokens special : {kTextOnly, kParse}) {
      std::string bytes;
      for (const TokenId id : files.tokenizer->Encode(text, special)) {
        EXPECT_FALSE(special == kTextOnly && files.tokenizer->IsSpecial(id));
        bytes += files.tokenizer->TokenBytes(id);
      }
      EXPECT_EQ(bytes, text);
    }
  }
}

TEST(LoadTokenizer, IdsWithoutTokensAreEmptyViews) {
  const TokenizerFiles files =
      LoadChanged([](Json& file) { file["added_tokens"].push_back(Added(500, "<far>")); });

  EXPECT_EQ(files.tokenizer->vocab_size(), 501);
  EXPECT_EQ(files.tokenizer->TokenBytes(500), "<far>");
  for (const TokenId id : {-1, 450, 501, INT32_MAX, INT32_MIN}) {
    EXPECT_TRUE(files.tokenizer->TokenBytes(id).empty());
    EXPECT_FALSE(files.tokenizer->IsSpecial(id));
  }
}

TEST(LoadTokenizer, PlainTextNeverBecomesMarkupButKeepsOtherAddedTokens) {
  const TokenizerFiles files = LoadChanged([](Json& file) {
    file["added_tokens"].push_back(Added(420, "<tool_call>"));
    file["added_tokens"].push_back(Added(421, "zebra"));
  });
  const auto count = [&](std::string_view text, SpecialTokens special, TokenId id) {
    const Ids ids = files.tokenizer->Encode(text, special);
    return std::count(ids.begin(), ids.end(), id);
  };

  EXPECT_EQ(count("<tool_call>zebra<|end|>", kParse, 420), 1);
  EXPECT_EQ(count("<tool_call>zebra<|end|>", kParse, 0), 1);
  EXPECT_EQ(count("<tool_call>zebra<|end|>", kTextOnly, 420), 0);
  EXPECT_EQ(count("<tool_call>zebra<|end|>", kTextOnly, 0), 0);
  EXPECT_EQ(count("<tool_call>zebra<|end|>", kTextOnly, 421), 1);
}

TEST(LoadTokenizer, NormalizedAddedTokensAreFoundAfterNormalising) {
  const TokenizerFiles files = LoadChanged([](Json& file) {
    file["normalizer"] = {{"type", "NFC"}};
    Json raw = Added(420, "\u00e9raw"), normalized = Added(421, "e\u0301nor");
    normalized["normalized"] = true;
    file["added_tokens"].push_back(raw);
    file["added_tokens"].push_back(normalized);
  });

  EXPECT_EQ(files.tokenizer->Encode("\u00e9raw", kTextOnly), Ids{420});
  EXPECT_EQ(files.tokenizer->Encode("\u00e9nor", kTextOnly), Ids{421});
  EXPECT_EQ(files.tokenizer->Encode("e\u0301nor", kTextOnly), Ids{421});
  EXPECT_NE(files.tokenizer->Encode("e\u0301raw", kTextOnly), Ids{420});
}

TEST(LoadTokenizer, Llama3StyleSplitsIgnoresMergesAndAddsBos) {
  const TokenizerFiles files = LoadChanged([](Json& file) {
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"},
           {"pattern",
            {{"Regex",
              R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
           {"behavior", "Isolated"},
           {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
    file["model"]["ignore_merges"] = true;
    file["model"]["vocab"]["1234"] = 420;  // four digits: the pattern never keeps them together
    file["model"]["vocab"]["789"] = 421;   // no merge creates it
    file["post_processor"] = {
        {"type", "Sequence"},
        {"processors",
         {{{"type", "ByteLevel"}},
          {{"type", "TemplateProcessing"},
           {"single",
            {{{"SpecialToken", {{"id", "<|user|>"}, {"type_id", 0}}}},
             {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
           {"special_tokens",
            {{"<|user|>", {{"id", "<|user|>"}, {"ids", {1}}, {"tokens", {"<|user|>"}}}}}}}}}};
  });

  EXPECT_EQ(files.bos, 1);
  EXPECT_TRUE(files.add_bos);
  EXPECT_EQ(files.tokenizer->Encode("789", kTextOnly), Ids{421});
  EXPECT_EQ(files.tokenizer->Encode("1234", kTextOnly).size(), 4u);
}

TEST(LoadTokenizer, LlamaStylePrefixesFallsBackToBytesAndStrips) {
  const TokenizerFiles files = LoadJson(LlamaStyle(true).dump());
  const Tokenizer& tokenizer = *files.tokenizer;
  const auto id = [&](const char* spelling) { return *tokenizer.FindToken(spelling); };

  EXPECT_TRUE(tokenizer.adds_leading_space());
  EXPECT_EQ(tokenizer.Encode("abc ab", kTextOnly), (Ids{id("\u2581abc"), id("\u2581ab")}));
  EXPECT_EQ(tokenizer.Encode("z", kTextOnly), (Ids{id("\u2581"), 3 + 'z'}));
  EXPECT_EQ(tokenizer.TokenBytes(3 + 'z'), "z");
  EXPECT_EQ(tokenizer.TokenBytes(id("\u2581ab")), " ab");
  EXPECT_EQ(tokenizer.FindToken(" ab"), id("\u2581ab"));
  EXPECT_EQ(tokenizer.Encode("", kTextOnly), Ids{});
  EXPECT_EQ(tokenizer.Encode("a</s>", kParse), (Ids{id("\u2581"), id("a"), 2}));
  for (const char* text : {"abc", " ab  c\u00e9", "\u4e2d\n", "  ", "a<s>b", "\xFF\xC3"}) {
    const Ids ids = tokenizer.Encode(text, kTextOnly);
    std::string bytes;
    for (const TokenId token : ids) bytes += tokenizer.TokenBytes(token);
    EXPECT_TRUE(bytes == text || bytes == " " + std::string(text)) << text;
  }
  EXPECT_EQ(Decode(tokenizer, tokenizer.Encode("  abc", kTextOnly), true), "  abc");
}

TEST(LoadTokenizer, WithoutByteFallbackUnknownCharactersFuse) {
  const TokenizerFiles files = LoadJson(LlamaStyle(false).dump());
  const Tokenizer& tokenizer = *files.tokenizer;

  EXPECT_EQ(tokenizer.Encode("\u4e2d\u6587a", kTextOnly),
            (Ids{*tokenizer.FindToken("\u2581"), 0, *tokenizer.FindToken("a")}));
}

TEST(LoadTokenizer, CuttingAtMetaspacesChangesNothing) {
  // A token with a metaspace after a letter forbids the cut. It is unreachable here, so ids are
  // equal.
  Json uncut = LlamaStyle(true);
  uncut["model"]["vocab"]["b\u2581b"] = 400;
  const TokenizerFiles with_cut = LoadJson(LlamaStyle(true).dump()),
                       without = LoadJson(uncut.dump());
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    std::string text;
    for (int i = 0; i < 120; ++i) text += "  abc\xC3\xA9"[random() % 5];
    ASSERT_EQ(with_cut.tokenizer->Encode(text, kTextOnly),
              without.tokenizer->Encode(text, kTextOnly))
        << "seed " << seed;
  }
}

TEST(LoadTokenizer, PrefixSpaceOfByteLevelIsHiddenByDecoding) {
  const TokenizerFiles files =
      LoadChanged([](Json& file) { file["pre_tokenizer"]["add_prefix_space"] = true; });

  const Ids ids = files.tokenizer->Encode("dog", kTextOnly);

  EXPECT_EQ(ids, files.tokenizer->Encode(" dog", kTextOnly));
  EXPECT_EQ(Decode(*files.tokenizer, ids, false), "dog");
}

TEST(LoadTokenizer, DigitsAreCutOneByOneOrTogether) {
  const auto pieces = [](bool individual) {
    const TokenizerFiles files = LoadChanged([&](Json& file) {
      file["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Digits"}, {"individual_digits", individual}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}};
      file["model"]["vocab"]["99"] = 420;
      file["model"]["merges"].push_back("9 9");
    });
    return files.tokenizer->Encode("99", kTextOnly).size();
  };

  EXPECT_EQ(pieces(true), 2u);
  EXPECT_EQ(pieces(false), 1u);
}

TEST(LoadTokenizer, VocabAndMergesEqualTheOneFile) {
  const Json file = Json::parse(TinyTokenizerJson());
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : file["model"]["merges"]) merges += merge.get<std::string>() + "\r\n";
  const auto two = LoadTokenizer({.source = "test",
                                  .tokenizer_json = {},
                                  .vocab_json = file["model"]["vocab"].dump(),
                                  .merges_txt = merges,
                                  .tokenizer_config_json = R"({"eos_token": "<|end|>",
                                    "additional_special_tokens": ["<|user|>"]})",
                                  .chat_template_jinja = {}});
  const TokenizerFiles one = LoadJson(TinyTokenizerJson());

  EXPECT_EQ(two->eos, 0);
  for (const SpecialTokens special : {kTextOnly, kParse}) {
    EXPECT_EQ(two->tokenizer->Encode(TinyCorpus() + "<|user|>", special),
              one.tokenizer->Encode(TinyCorpus() + "<|user|>", special));
  }
}

TEST(LoadTokenizer, ConfigNamesTokensAsTextOrObject) {
  const TokenizerFiles files = LoadWithConfig(
      R"({"bos_token": "<|user|>", "eos_token": {"content": "<|end|>", "lstrip": false}, "add_bos_token": true})");

  EXPECT_EQ(files.bos, 1);
  EXPECT_EQ(files.eos, 0);
  EXPECT_TRUE(files.add_bos);
  EXPECT_FALSE(files.chat_template);
}

TEST(LoadTokenizer, NullTokensAreNone) {
  const TokenizerFiles files =
      LoadWithConfig(R"({"bos_token": null, "eos_token": null, "add_bos_token": true})");

  EXPECT_FALSE(files.bos);
  EXPECT_FALSE(files.eos);
  EXPECT_FALSE(files.add_bos);
}

TEST(LoadTokenizer, ChatTemplateIsOneTextTheDefaultOfSeveralOrAFile) {
  EXPECT_EQ(LoadWithConfig(R"({"chat_template": "T"})").chat_template, "T");
  EXPECT_EQ(LoadWithConfig(R"({"chat_template": [{"name": "tool_use", "template": "U"},
                              {"name": "default", "template": "D"}]})")
                .chat_template,
            "D");
  EXPECT_EQ(LoadWithConfig(R"({"chat_template": [{"name": "x", "template": "X"}]})").chat_template,
            "X");
  EXPECT_EQ(LoadWithConfig(R"({"chat_template": "T"})", "J").chat_template, "J");
}

TEST(LoadTokenizer, ThreadsEncodeAlike) {
  const TokenizerFiles files = LoadChanged([](Json& file) {
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", R"(\s?\w+|.)"}}}, {"behavior", "Isolated"}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  });
  const Ids expected = files.tokenizer->Encode(TinyCorpus(), kParse);

  std::vector<Ids> found(4);
  {
    std::vector<std::jthread> threads;
    for (Ids& ids : found) {
      threads.emplace_back([&] { ids = files.tokenizer->Encode(TinyCorpus(), kParse); });
    }
  }

  for (const Ids& ids : found) EXPECT_EQ(ids, expected);
}

}  // namespace
}  // namespace tandem::engine
