#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/incremental_detokenizer.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"
#include "tests/support/sanitized.h"

// Megabytes of one character, of spaces, of marks, and of near matches. An algorithm of quadratic
// time would take hours.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// A sanitizer sees the same accesses in an eighth; the time of a megabyte is bounded without one.
constexpr size_t kBytes = tests::kIsSanitized ? 1 << 17 : 1 << 20;

std::string Repeat(std::string_view part) {
  std::string text;
  while (text.size() < kBytes) text += part;
  return text;
}

const std::vector<std::string>& HardTexts() {
  static const std::vector<std::string> texts = {Repeat("a"),
                                                 Repeat(" "),
                                                 Repeat("\n"),
                                                 Repeat("\u0301"),
                                                 Repeat("\u0315\u0300"),
                                                 Repeat("ab"),
                                                 Repeat("."),
                                                 Repeat("\u2581"),
                                                 Repeat("<s"),
                                                 Repeat("\u4e2d"),
                                                 Repeat("\u00e9"),
                                                 Repeat("\xFF"),
                                                 Repeat("\xE2\x96"),
                                                 Repeat("\t a"),
                                                 Repeat("'"),
                                                 Repeat("1"),
                                                 Repeat("\U0001F468\u200d"),
                                                 Repeat("z"),
                                                 Repeat("aab "),
                                                 Repeat("a\xFF")};
  return texts;
}

// Runs of 2^n equal characters: each can merge with itself repeatedly.
std::vector<std::string> Runs() {
  std::vector<std::string> runs;
  for (const char* unit : {"a", "b", "\u2581", " ", ".", "\u00e9", "1"}) {
    std::string run = unit;
    for (int i = 0; i < 5; ++i, run += run) runs.push_back(run);
  }
  return runs;
}

Json Bpe(const Json& options) {
  Json vocab = {{"<unk>", 0}}, merges = Json::array();
  for (const std::string& run : Runs()) vocab[run] = vocab.size();
  for (const std::string& run : Runs()) {
    if (vocab.contains(run + run)) merges.push_back({run, run});
  }
  Json model = {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocab}, {"merges", merges}};
  model.update(options);
  return model;
}

Json Unigram() {
  Json vocab = Json::array({Json::array({"<unk>", 0.0})});
  for (const std::string& run : Runs()) {
    vocab.push_back(Json::array({run, -1.0 - static_cast<double>(vocab.size())}));
  }
  return {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
}

Json Words(const char* type) {
  Json vocab = {{"<unk>", 0}};
  for (const std::string& run : Runs()) {
    vocab[run] = vocab.size();
    vocab["##" + run] = vocab.size();
  }
  return {{"type", type},
          {"unk_token", "<unk>"},
          {"continuing_subword_prefix", "##"},
          {"max_input_chars_per_word", 1'000'000'000},
          {"vocab", vocab}};
}

std::vector<Json> Files() {
  const auto sequence = [](const char* name, Json items) {
    return Json{{"type", "Sequence"}, {name, std::move(items)}};
  };
  const Json bert = {{"type", "BertNormalizer"}}, nfkc = {{"type", "NFKC"}},
             strip = {{"type", "Strip"}};
  const Json metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"split", false}};
  const Json llama3 = {
      {"type", "Split"},
      {"pattern",
       {{"Regex",
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"}};
  const Json added = {{{"id", 0}, {"content", "<unk>"}, {"special", true}, {"lstrip", true}},
                      {{"id", 200}, {"content", "<s><s>"}, {"rstrip", true}, {"lstrip", true}},
                      {{"id", 201}, {"content", "aaaaaaaaz"}, {"single_word", true}}};
  return {
      {{"added_tokens", added}, {"model", Bpe(Json::object())}},
      {{"normalizer", sequence("normalizers", {nfkc, strip})},
       {"pre_tokenizer", metaspace},
       {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}}},
       {"model", Bpe({{"fuse_unk", true}})}},
      {{"pre_tokenizer", llama3}, {"model", Bpe({{"ignore_merges", true}})}},
      {{"pre_tokenizer", {{"type", "Whitespace"}}},
       {"model", Bpe({{"end_of_word_suffix", "</w>"}})}},
      {{"normalizer", bert},
       {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
       {"model", Words("WordPiece")}},
      {{"model", Words("WordPiece")}},
      {{"pre_tokenizer", {{"type", "UnicodeScripts"}}}, {"model", Words("WordLevel")}},
      {{"pre_tokenizer", metaspace}, {"model", Unigram()}},
      {{"normalizer", {{"type", "NFD"}}}, {"added_tokens", added}, {"model", Unigram()}},
      {{"pre_tokenizer",
        sequence("pretokenizers", {Json{{"type", "Digits"}}, Json{{"type", "Punctuation"}},
                                   Json{{"type", "ByteLevel"}}})},
       {"decoder", {{"type", "WordPiece"}}},
       {"model", Bpe(Json::object())}},
  };
}

TEST(LinearTime, AMegabyteOfAnythingIsNoTrouble) {
  for (const Json& file : Files()) {
    SCOPED_TRACE(file.dump().substr(0, 120));
    const TokenizerFiles files = LoadJson(file.dump());
    for (const std::string& text : HardTexts()) {
      SCOPED_TRACE(text.substr(0, 8));
      const auto ids = files.tokenizer->Encode(text, SpecialTokens::kParseSpecial);
      EXPECT_LE(ids.size(), 2 * text.size());
      IncrementalDetokenizer detokenizer(*files.tokenizer, false);
      for (size_t i = 0; i < std::min<size_t>(ids.size(), 1 << 14); ++i) detokenizer.Push(ids[i]);
      detokenizer.Flush();
    }
  }
}

}  // namespace
}  // namespace tandem::engine
