// Tokenizers in GGUF files: our reader encodes and decodes as with the original files.

#include "convert/formats/gguf/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/stored/sentencepiece_text.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/training/bpe_trainer.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::SpecialTokens;
using engine::TokenizerFiles;
using Json = nlohmann::ordered_json;
using Texts = std::map<std::string, std::string>;

// A source with a tokenizer's files and no model.
class TextsSource final : public ModelSource {
 public:
  explicit TextsSource(Texts texts) : texts_(std::move(texts)) {}

  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file) const override {
    const auto found = texts_.find(std::string(file));
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }
  void ReadPart(int64_t, const Take&) const override {}
  Bytes Read(int64_t, std::vector<std::byte>*) const override { return {}; }

 private:
  const std::string name_ = "source";
  const std::vector<engine::NamedTensor> tensors_;
  const Texts texts_;
};

class GgufTokenizerTest : public testing::Test {
 protected:
  // Writes a file with only the tokenizer and compares the result of reading it.
  void RoundTrip(const Texts& texts, int64_t vocab_size) {
    const TextsSource source(texts);
    engine::ModelConfig config;
    config.vocab_size = vocab_size;
    GgufKeys keys;
    keys.Add("general.architecture", "llama");
    AddGgufTokenizer(source, config, keys, &warnings_);
    fs::remove(file_);
    GgufFileWriter(file_, keys, {}).Finish();
    const auto written = OpenModelFiles(file_, {});
    CompareTokenizers(source, *written, &warnings_);
    was_ = engine::LoadTokenizer("was", [&](auto name) { return source.ReadText(name); });
    is_ = engine::LoadTokenizer("is", [&](auto name) {
      return name == "config.json" ? std::nullopt : written->ReadText(name);
    });
  }
  std::string Refusal(const Texts& texts, int64_t vocab_size) {
    try {
      RoundTrip(texts, vocab_size);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "was not refused";
    return {};
  }
  void ExpectSameIds(const std::string& text) {
    for (const SpecialTokens special : {SpecialTokens::kPlainText, SpecialTokens::kParseSpecial}) {
      EXPECT_EQ(is_->tokenizer->Encode(text, special), was_->tokenizer->Encode(text, special));
    }
  }
  std::string Key(const char* key) {
    const std::string bytes = engine::ModelDir::Open(file_).name();
    const auto mapped = engine::MappedFile::Open(file_);
    return std::string(
        engine::GgufFile::FromBytes(mapped->bytes(), bytes).String(key).value_or(""));
  }
  static std::optional<std::string> Shared(const std::string& path) {
    std::ifstream file(tests::SharedDir() / "data" / path, std::ios::binary);
    if (!file) return std::nullopt;
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  tests::TemporaryDir dir_;
  const fs::path file_ = dir_ / "vocabulary.gguf";
  std::vector<std::string> warnings_;
  std::optional<TokenizerFiles> was_, is_;
};

Json TrainedJson() {
  std::string corpus;
  for (int i = 0; i < 200; ++i) {
    corpus += "the cat sat on the mat, and the hat of " + std::to_string(i * 37) + " cats sat.\n";
  }
  return Json::parse(engine::TrainBpe(
      corpus, {.vocab_size = 400, .special_tokens = {"<bos>", "<end>"}}, [](int64_t, int64_t) {}));
}

Json PatternStage(const std::string& regex) {
  return {{"type", "Sequence"},
          {"pretokenizers", Json::array({{{"type", "Split"},
                                          {"pattern", {{"Regex", regex}}},
                                          {"behavior", "Isolated"},
                                          {"invert", false}},
                                         {{"type", "ByteLevel"},
                                          {"add_prefix_space", false},
                                          {"trim_offsets", true},
                                          {"use_regex", false}}})}};
}
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

TEST_F(GgufTokenizerTest, ATokenizerOfOursComesBackWithWhatSurroundsIt) {
  const int64_t trained = 400;
  RoundTrip({{"tokenizer.json", TrainedJson().dump()},
             {"tokenizer_config.json",
              R"({"bos_token":"<bos>","eos_token":{"content":"<end>"},"add_bos_token":true})"},
             {"chat_template.jinja", "{{ messages }}"}},
            trained + 8);
  EXPECT_EQ(Key("tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(Key("tokenizer.ggml.pre"), "gpt-2");
  ExpectSameIds("the cat <bos>sat<end> on the 1234 mats; ÄÖ 你好\n\n  x");
  EXPECT_EQ(is_->bos, was_->bos);
  EXPECT_EQ(is_->eos, was_->eos);
  EXPECT_TRUE(is_->add_bos);
  EXPECT_EQ(is_->chat_template, "{{ messages }}");
  EXPECT_EQ(is_->tokenizer->vocab_size(), trained + 8);
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
}

TEST_F(GgufTokenizerTest, PatternsHaveNamesByWhatTheyAre) {
  for (const auto& [regex, nfc, ignore_merges, name] :
       {std::tuple{kQwen2, true, false, "qwen2"}, std::tuple{kLlama3, false, true, "llama-bpe"},
        std::tuple{kLlama3, false, false, "smaug-bpe"}}) {
    Json json = TrainedJson();
    json["pre_tokenizer"] = PatternStage(regex);
    json["normalizer"] = nfc ? Json{{"type", "NFC"}} : Json(nullptr);
    json["model"]["ignore_merges"] = ignore_merges;
    RoundTrip({{"tokenizer.json", json.dump()}}, 400);
    EXPECT_EQ(Key("tokenizer.ggml.pre"), name);
    ExpectSameIds("the cat's 12345 hats\r\n\n sat'LL");
  }
}

TEST_F(GgufTokenizerTest, APatternWithoutANameIsRefusedShowingIt) {
  Json json = TrainedJson();
  json["pre_tokenizer"] = PatternStage(R"(\p{L}+|\p{N}{1,7}|\s+|.)");
  const std::string error = Refusal({{"tokenizer.json", json.dump()}}, 400);
  EXPECT_NE(error.find(R"(\p{N}{1,7})"), std::string::npos) << error;
  EXPECT_NE(error.find("llama-bpe"), std::string::npos) << error;
  EXPECT_NE(error.find("native"), std::string::npos) << error;
}

// Like Llama's tokenizer.json: bytes, characters, and tokens that merges create.
Json PieceJson() {
  Json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  const auto add = [&](const std::string& text) { vocab[text] = vocab.size(); };
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (size_t b = 0; b < 256; ++b) {
    add(std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">");
  }
  Json merges = Json::array();
  const std::string space = "\xE2\x96\x81";
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {space, "t"}, {"h", "e"}, {space + "t", "he"}, {space, "a"}, {"a", "t"}}) {
    merges.push_back(left + " " + right);
    for (const std::string& text : {left, right, left + right}) {
      if (!vocab.contains(text)) add(text);
    }
  }
  Json json = {{"version", "1.0"}, {"added_tokens", Json::array()}};
  for (const auto& [text, id] :
       {std::pair{"<unk>", 0}, std::pair{"<s>", 1}, std::pair{"</s>", 2}}) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", text},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  }
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       Json::array({{{"type", "Prepend"}, {"prepend", space}},
                    {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", space}}})}};
  json["pre_tokenizer"] = nullptr;
  json["post_processor"] = nullptr;
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders",
       Json::array({{{"type", "Replace"}, {"pattern", {{"String", space}}}, {"content", " "}},
                    {{"type", "ByteFallback"}},
                    {{"type", "Fuse"}},
                    {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}})}};
  json["model"] = {{"type", "BPE"},    {"dropout", nullptr},    {"unk_token", "<unk>"},
                   {"fuse_unk", true}, {"byte_fallback", true}, {"vocab", vocab},
                   {"merges", merges}};
  return json;
}

TEST_F(GgufTokenizerTest, PiecesAreScoredInTheOrderOfTheirMerges) {
  const Json json = PieceJson();
  const auto size = static_cast<int64_t>(json["model"]["vocab"].size());
  RoundTrip({{"tokenizer.json", json.dump()},
             {"tokenizer_config.json", R"({"bos_token":"<s>","eos_token":"</s>"})"}},
            size + 3);
  EXPECT_EQ(Key("tokenizer.ggml.model"), "llama");
  for (const char* text : {"the that hat", "  a\tthe ätat", "", " ", "你好 the"})
    ExpectSameIds(text);
  EXPECT_EQ(is_->bos, 1);
  EXPECT_EQ(is_->eos, 2);
  EXPECT_EQ(is_->add_bos, was_->add_bos);
}

TEST_F(GgufTokenizerTest, MergesThatNoScoreOrdersAreRefused) {
  Json json = PieceJson();
  const auto size = static_cast<int64_t>(json["model"]["vocab"].size()) + 1;
  json["model"]["vocab"]["th"] = size - 1;
  // Both "t" + "he" and "th" + "e" are tokens, but only one pair merges into "the".
  json["model"]["vocab"]["the"] = size;
  json["model"]["merges"].push_back("t h");
  json["model"]["merges"].push_back("th e");
  const std::string error = Refusal({{"tokenizer.json", json.dump()}}, size + 1);
  EXPECT_NE(error.find("never merge"), std::string::npos) << error;

  json = PieceJson();
  json["model"]["vocab"]["hea"] = size - 1;
  json["model"]["vocab"]["ea"] = size;
  json["model"]["merges"] =
      Json::array({"h e", "e a", "he a", "\xE2\x96\x81 t", "h ea", "\xE2\x96\x81t he"});
  EXPECT_NE(Refusal({{"tokenizer.json", json.dump()}}, size + 1).find("scores cannot express"),
            std::string::npos);
}

std::string SmallSentencePiece(bool is_bpe) {
  engine::SentencePieceText model;
  model.is_bpe = is_bpe;
  model.bos = "<s>";
  model.eos = "</s>";
  model.pieces = {{"<unk>", 0, SentencePieceType::kUnknown},
                  {"<s>", 0, SentencePieceType::kControl},
                  {"</s>", 0, SentencePieceType::kControl},
                  {"\xE2\x96\x81\xE2\x96\x81", 0, SentencePieceType::kUserDefined}};
  constexpr std::string_view kHex = "0123456789ABCDEF";
  for (size_t b = 0; b < 256; ++b) {
    model.pieces.push_back(
        {std::string("<0x") + kHex[b / 16] + kHex[b % 16] + ">", 0, SentencePieceType::kByte});
  }
  float score = 0;
  for (const char* text :
       {"\xE2\x96\x81t", "he", "\xE2\x96\x81the", "\xE2\x96\x81", "t", "h", "e"}) {
    model.pieces.push_back({text, score--, SentencePieceType::kNormal});
  }
  return engine::WriteSentencePiece(model);
}

TEST_F(GgufTokenizerTest, SentencePieceKeepsItsScoresAndTypes) {
  RoundTrip({{"tokenizer.model", SmallSentencePiece(true)}}, 267);
  for (const char* text : {"the  tthe", " het", "<s>the</s>", "ß"}) ExpectSameIds(text);
  EXPECT_EQ(is_->bos, 1);
  EXPECT_TRUE(is_->add_bos);
  EXPECT_TRUE(is_->tokenizer->adds_leading_space());
}

TEST_F(GgufTokenizerTest, WhatGgufHasNoWordsForIsRefused) {
  EXPECT_NE(Refusal({{"tokenizer.model", SmallSentencePiece(false)}}, 267).find("Unigram"),
            std::string::npos);
  EXPECT_NE(Refusal({{"tokenizer.json",
                      R"({"model":{"type":"WordLevel","vocab":{"a":0,"b":1},"unk_token":"a"}})"}},
                    2)
                .find("WordLevel"),
            std::string::npos);
  EXPECT_NE(Refusal({{"tokenizer.json", TrainedJson().dump()}}, 300).find("300"),
            std::string::npos);
}

TEST_F(GgufTokenizerTest, WithoutATokenizerTheFileSaysSo) {
  const TextsSource source({});
  engine::ModelConfig config;
  config.vocab_size = 100;
  config.bos_token = 1;
  config.eos_tokens = {2, 3};
  GgufKeys keys;
  AddGgufTokenizer(source, config, keys, &warnings_);
  GgufFileWriter(file_, keys, {}).Finish();
  EXPECT_EQ(Key("tokenizer.ggml.model"), "no_vocab");
  EXPECT_EQ(warnings_.size(), 1u);
}

// A file with only keys takes megabytes of memory: those of the vocabulary.
TEST_F(GgufTokenizerTest, RealTokenizersEncodeATextAsBefore) {
  const auto text = Shared("text/tinyshakespeare.txt");
  if (!text) GTEST_SKIP() << tests::AbsentData("data/text/tinyshakespeare.txt");
  const std::string part = text->substr(0, 200'000) + "\n你好, Straße! 12345 I'LL <|im_end|>";
  struct Case {
    const char* dir;
    std::vector<const char*> files;
    int64_t vocab_size;
    const char* pre;
  };
  for (const Case& c : {Case{"tokenizers/gpt2", {"tokenizer.json"}, 50257, "gpt-2"},
                        Case{"tokenizers/gpt2", {"vocab.json", "merges.txt"}, 50257, "gpt-2"},
                        Case{"tokenizers/qwen2.5", {"tokenizer.json"}, 152064, "qwen2"},
                        Case{"tokenizers/llama2-spm", {"tokenizer.model"}, 32000, "default"},
                        Case{"tokenizers/mistral-v1-spm", {"tokenizer.model"}, 32000, "default"},
                        Case{"models/stories260K", {"tokenizer.json"}, 512, "default"}}) {
    SCOPED_TRACE(std::string(c.dir) + " " + c.files[0]);
    Texts texts;
    for (const char* name : c.files) {
      texts[name] = Shared(std::string(c.dir) + "/" + name).value();
    }
    RoundTrip(texts, c.vocab_size);
    EXPECT_EQ(Key("tokenizer.ggml.pre"), c.pre);
    ExpectSameIds(part);
    EXPECT_EQ(is_->bos, was_->bos);
    EXPECT_EQ(is_->add_bos, was_->add_bos);
  }
}

}  // namespace
}  // namespace tandem::convert
