#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

// Broken, hostile or unsupported files: each gives one Error with one line that names the file and
// the field.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

struct Broken {
  const char* name;
  std::function<void(Json&)> change;
  ErrorCode code;
  const char* message;  // appears in the message
};

Json TinyFile() { return Json::parse(TinyTokenizerJson()); }

Json Added(Json id, Json content) { return {{"id", id}, {"content", content}}; }

// A token with `ids` ids, `n` times, before a text.
Json LongTemplate(size_t n, size_t ids) {
  Json single = Json::array();
  for (size_t i = 0; i < n; ++i) single.push_back({{"SpecialToken", {{"id", "x"}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"special_tokens", {{"x", {{"ids", Json(ids, 0)}}}}}};
}

const std::vector<Broken>& Corpus() {
  constexpr auto kLoss = ErrorCode::kDataLoss;
  constexpr auto kUnsupported = ErrorCode::kUnsupported;
  static const std::vector<Broken> corpus = {
      {"no model", [](Json& f) { f.erase("model"); }, kLoss, "model is missing"},
      {"model is a list", [](Json& f) { f["model"] = Json::array(); }, kLoss, "model"},
      {"file is a list", [](Json& f) { f = Json::array(); }, kLoss, "the file"},
      {"vocab is a list", [](Json& f) { f["model"]["vocab"] = Json::array(); }, kLoss,
       "model.vocab"},
      {"vocab is empty", [](Json& f) { f["model"]["vocab"] = Json::object(); }, kLoss,
       "model.vocab"},
      {"id is text", [](Json& f) { f["model"]["vocab"]["q"] = "7"; }, kLoss, "model.vocab.'q'"},
      {"id is a fraction", [](Json& f) { f["model"]["vocab"]["q"] = 7.5; }, kLoss,
       "model.vocab.'q'"},
      {"id is negative", [](Json& f) { f["model"]["vocab"]["q"] = -1; }, kLoss, "got -1"},
      {"id is huge", [](Json& f) { f["model"]["vocab"]["q"] = 1 << 24; }, kLoss, "got 16777216"},
      {"id beyond 64 bits", [](Json& f) { f["model"]["vocab"]["q"] = 1e300; }, kLoss, "'q'"},
      {"id far beyond the others", [](Json& f) { f["model"]["vocab"]["q"] = 16'000'000; }, kLoss,
       "16000000"},
      {"id twice", [](Json& f) { f["model"]["vocab"]["zq"] = 7; }, kLoss, "'zq'"},
      {"no merges", [](Json& f) { f["model"].erase("merges"); }, kLoss, "model.merges is missing"},
      {"merges is an object", [](Json& f) { f["model"]["merges"] = Json::object(); }, kLoss,
       "model.merges"},
      {"merge is a number", [](Json& f) { f["model"]["merges"][3] = 5; }, kLoss, "model.merges[3]"},
      {"merge of one", [](Json& f) { f["model"]["merges"][3] = "ab"; }, kLoss, "model.merges[3]"},
      {"merge of three", [](Json& f) { f["model"]["merges"][3] = "a b c"; }, kLoss,
       "model.merges[3]"},
      {"merge list of three",
       [](Json& f) {
         f["model"]["merges"][3] = {"a", "b", "c"};
       },
       kLoss, "model.merges[3]"},
      {"merge list of numbers",
       [](Json& f) {
         f["model"]["merges"][3] = {1, 2};
       },
       kLoss, "model.merges[3]"},
      {"merge of nothing", [](Json& f) { f["model"]["merges"][3] = " "; }, kLoss,
       "model.merges[3]"},
      {"merge of an unknown token", [](Json& f) { f["model"]["merges"][3] = "nope e"; }, kLoss,
       "names 'nope'"},
      {"merge into an unknown token", [](Json& f) { f["model"]["merges"][3] = "# %"; }, kLoss,
       "names '#%'"},
      {"unknown unk", [](Json& f) { f["model"]["unk_token"] = "<nope>"; }, kLoss,
       "model.unk_token"},
      {"flag is text", [](Json& f) { f["model"]["byte_fallback"] = "yes"; }, kLoss,
       "model.byte_fallback"},
      {"added token without id",
       [](Json& f) {
         f["added_tokens"].push_back({{"content", "<x>"}});
       },
       kLoss, "added_tokens[2].id is missing"},
      {"added id is negative", [](Json& f) { f["added_tokens"].push_back(Added(-5, "<x>")); },
       kLoss, "added_tokens[2].id"},
      {"added id is huge", [](Json& f) { f["added_tokens"].push_back(Added(1ull << 40, "<x>")); },
       kLoss, "added_tokens[2].id"},
      {"added id is far away",
       [](Json& f) { f["added_tokens"].push_back(Added(15'000'000, "<x>")); }, kLoss,
       "added_tokens[2].id"},
      {"added content is a number", [](Json& f) { f["added_tokens"].push_back(Added(420, 1)); },
       kLoss, "added_tokens[2].content"},
      {"added content is endless",
       [](Json& f) { f["added_tokens"].push_back(Added(420, std::string(5000, 'x'))); }, kLoss,
       "added_tokens[2].content"},
      {"added twice", [](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); }, kLoss,
       "added_tokens[2]"},
      {"added against the vocabulary",
       [](Json& f) { f["added_tokens"].push_back(Added(420, "!")); }, kLoss, "'!' at 2"},
      {"added_tokens is an object", [](Json& f) { f["added_tokens"] = Json::object(); }, kLoss,
       "added_tokens"},
      {"bos beyond the vocabulary",
       [](Json& f) {
         f["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "x"}}}}}},
                                {"special_tokens", {{"x", {{"ids", {77777}}}}}}};
       },
       kLoss, "post_processor"},
      {"template of many tokens", [](Json& f) { f["post_processor"] = LongTemplate(1025, 1); },
       kLoss, "post_processor.single adds 1025 tokens around a text, more than the limit of 1024"},
      {"template of tokens with many ids",
       [](Json& f) { f["post_processor"] = LongTemplate(1000, 10000); }, kLoss,
       "post_processor.special_tokens.'x'.ids adds 10000 tokens around a text"},
      {"many post processors",
       [](Json& f) {
         Json processors = Json::array();
         for (int i = 0; i < 100; ++i) processors.push_back(LongTemplate(100, 1));
         f["post_processor"] = {{"type", "Sequence"}, {"processors", processors}};
       },
       kLoss, "tokens around a text, more than the limit of 1024"},
      {"template of an unknown token",
       [](Json& f) {
         f["post_processor"] = LongTemplate(1, 1);
         f["post_processor"]["special_tokens"] = Json::object();
       },
       kLoss, "which special_tokens does not define"},
      {"split without pattern",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Split"}, {"behavior", "Isolated"}};
       },
       kLoss, "pre_tokenizer.pattern is missing"},
      {"split of unknown behavior",
       [](Json& f) {
         f["pre_tokenizer"] = {
             {"type", "Split"}, {"behavior", "Melted"}, {"pattern", {{"String", "x"}}}};
       },
       kLoss, "pre_tokenizer.behavior"},
      {"replacing nothing",
       [](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}};
       },
       kLoss, "normalizer.pattern.String"},

      {"unknown model", [](Json& f) { f["model"]["type"] = "Trigram"; }, kUnsupported,
       "model.type 'Trigram'"},
      {"unigram without scores", [](Json& f) { f["model"]["type"] = "Unigram"; }, kLoss,
       "model.vocab"},
      {"word piece without unk", [](Json& f) { f["model"]["type"] = "WordPiece"; }, kLoss,
       "model.unk_token is missing"},
      {"dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }, kUnsupported, "model.dropout"},
      {"merge without the prefix", [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; },
       kLoss, "model.merges[0]"},
      {"unknown normalizer",
       [](Json& f) {
         f["normalizer"] = {{"type", "Sequence"},
                            {"normalizers", {{{"type", "NFC"}}, {{"type", "Uppercase"}}}}};
       },
       kUnsupported, "normalizer.normalizers[1].type 'Uppercase'"},
      {"unknown pre-tokenizer",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Syllables"}};
       },
       kUnsupported, "pre_tokenizer.type 'Syllables'"},
      {"split behind byte level",
       [](Json& f) {
         const Json level = f["pre_tokenizer"];
         f["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {level, level}}};
       },
       kUnsupported, "pre_tokenizer.pretokenizers[1]"},
      {"unknown decoder",
       [](Json& f) {
         f["decoder"] = {{"type", "CTC"}};
       },
       kUnsupported, "decoder.type 'CTC'"},
      {"word pieces behind fusing",
       [](Json& f) {
         f["decoder"] = {{"type", "Sequence"},
                         {"decoders", {{{"type", "Fuse"}}, {{"type", "WordPiece"}}}}};
       },
       kUnsupported, "decoder.decoders[1]"},
      {"byte level normalizer and pre-tokenizer",
       [](Json& f) {
         f["normalizer"] = {{"type", "ByteLevel"}};
       },
       kUnsupported, "pre_tokenizer"},
      {"replacing what may be nothing",
       [](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", " *"}}}, {"content", "x"}};
       },
       kUnsupported, "normalizer.pattern.Regex"},
      {"charsmap that is no base64",
       [](Json& f) {
         f["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}};
       },
       kLoss, "normalizer.precompiled_charsmap"},
      {"charsmap that is too short",
       [](Json& f) {
         f["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}};
       },
       kLoss, "normalizer.precompiled_charsmap"},
      {"metaspace of two characters",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "ab"}};
       },
       kLoss, "pre_tokenizer.replacement"},
      {"unknown post-processor",
       [](Json& f) {
         f["post_processor"] = {{"type", "ErnieProcessing"}};
       },
       kUnsupported, "post_processor.type 'ErnieProcessing'"},
      {"pattern of another dialect",
       [](Json& f) {
         f["pre_tokenizer"] = {
             {"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "[a&&b]"}}}};
       },
       kUnsupported, "pre_tokenizer.pattern.Regex"},
  };
  return corpus;
}

TEST(BrokenFiles, EveryBrokenTokenizerJsonIsNamedInOneLine) {
  for (const Broken& broken : Corpus()) {
    SCOPED_TRACE(broken.name);
    Json file = TinyFile();
    broken.change(file);
    try {
      LoadJson(file.dump());
      ADD_FAILURE() << "loaded";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.code(), broken.code) << message;
      EXPECT_TRUE(message.starts_with("test/tokenizer.json: ")) << message;
      EXPECT_NE(message.find(broken.message), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      EXPECT_LT(message.size(), 200u) << message;
    }
  }
}

ErrorCode LoadError(TokenizerTexts texts, std::string* message) {
  texts.source = "test";
  try {
    LoadTokenizer(texts);
  } catch (const Error& error) {
    *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "loaded";
  return ErrorCode::kInternal;
}

TEST(BrokenFiles, DeepNestingIsRefused) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 100'000; ++i) text += open;
    TokenizerTexts texts;
    texts.tokenizer_json = text;
    std::string message;

    EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);
  }
}

TEST(BrokenFiles, HostileSpellingsDoNotReachTheMessage) {
  Json file = TinyFile();
  file["model"]["vocab"]["\n\x1b[31m" + std::string(10'000, 'x')] = -1;
  std::string message;
  TokenizerTexts texts;
  texts.tokenizer_json = file.dump();

  EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);

  EXPECT_LT(message.size(), 200u);
  EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos);
}

TEST(BrokenFiles, VocabAndMergesAreCheckedAlike) {
  std::string message;
  TokenizerTexts texts;
  texts.merges_txt = "a b\n";
  EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);
  EXPECT_EQ(message, "test/merges.txt: the file cannot be used without vocab.json");

  texts.vocab_json = R"({"a": 0, "b": 1})";
  EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);
  EXPECT_EQ(message, "test: merges.txt line 1 names 'ab', which is not in the vocabulary");

  texts.vocab_json = R"({"a": 0, "b": "1"})";
  EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);
  EXPECT_EQ(message, "test: vocab.json.'b' must be an integer");

  texts.vocab_json = R"({"a": 0, "b": 1, "ab": 2})";
  texts.tokenizer_config_json = R"({"tokenizer_class": "BloomTokenizer"})";
  EXPECT_EQ(LoadError(texts, &message), ErrorCode::kUnsupported);
  EXPECT_NE(message.find("tokenizer_class"), std::string::npos) << message;
}

TEST(BrokenFiles, ConfigIsCheckedFieldByField) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {R"([])", "the file"},
      {R"({"bos_token": 3})", "bos_token"},
      {R"({"eos_token": "<nope>"})", "eos_token"},
      {R"({"bos_token": {"text": "<s>"}})", "bos_token"},
      {R"({"add_bos_token": "yes"})", "add_bos_token"},
      {R"({"chat_template": 3})", "chat_template"},
      {R"({"chat_template": [{"name": "x"}]})", "chat_template[0]"},
      {R"({"added_tokens_decoder": {"x": {"content": "y"}}})", "added_tokens_decoder.'x'"},
      {R"({"added_tokens_decoder": {"999999999999": {"content": "y"}}})", "added_tokens_decoder"},
      {R"({"tokenizer_class": 1})", "tokenizer_class"},
      {R"({"bos_token": )", "JSON"},
  };
  for (const auto& [config, field] : cases) {
    SCOPED_TRACE(config);
    TokenizerTexts texts;
    texts.tokenizer_json = TinyTokenizerJson();
    texts.tokenizer_config_json = config;
    std::string message;

    EXPECT_EQ(LoadError(texts, &message), ErrorCode::kDataLoss);

    EXPECT_NE(message.find(field), std::string::npos) << message;
    EXPECT_TRUE(message.starts_with("test/tokenizer_config.json: ")) << message;
  }
}

// Loads and uses the tokenizer. Anything but an Error about the input is a bug.
void Survives(const TokenizerTexts& texts) {
  try {
    const auto files = LoadTokenizer(texts);
    const auto ids =
        files->tokenizer->Encode("I'll be <|end|> there  42!", SpecialTokens::kParseSpecial);
    Decode(*files->tokenizer, ids, true);
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kDataLoss || error.code() == ErrorCode::kUnsupported ||
                error.code() == ErrorCode::kInvalidArgument)
        << error.what();
  }
}

TEST(BrokenFiles, TruncatedAnywhereOrWithBytesChangedNothingCrashes) {
  const std::string whole = TinyFile().dump();
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    TokenizerTexts texts;
    texts.source = "test";
    std::string text = whole;
    if (seed % 3 == 0) {
      text.resize(random() % text.size());
    } else {
      for (uint64_t i = 0; i <= random() % 4; ++i) {
        // Characters with a meaning in JSON find more faults than random bytes.
        text[random() % text.size()] = "{}[]\",:0123456789-e \\nult\xFF"[random() % 26];
      }
    }
    texts.tokenizer_json = std::move(text);
    Survives(texts);
  }
}

TEST(BrokenFiles, MergesTextCutAnywhereNothingCrashes) {
  const Json file = TinyFile();
  std::string merges = "#version: 0.2\n";
  for (const Json& merge : file["model"]["merges"]) merges += merge.get<std::string>() + "\n";
  for (size_t length = 0; length < merges.size(); length += 7) {
    TokenizerTexts texts;
    texts.source = "test";
    texts.vocab_json = file["model"]["vocab"].dump();
    texts.merges_txt = merges.substr(0, length);
    Survives(texts);
  }
}

}  // namespace
}  // namespace tandem::engine
