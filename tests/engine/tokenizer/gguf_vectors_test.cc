#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/io/model_dir.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"
#include "tests/support/gguf_writer.h"

// Vocabularies of GGUF files against ids recorded from the tokenizers that they were made from, in
// data that stands beside the repository.
namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;
using Json = nlohmann::ordered_json;

TokenizerFiles Load(const ModelDir& model) {
  return *LoadTokenizer(
      model.name(),
      [&](std::string_view file) -> std::optional<std::string> {
        // The files hold nothing but a vocabulary.
        return file == "config.json" ? std::nullopt : model.ReadText(file);
      },
      [&](std::string_view file) { return model.Describe(file); });
}

// NAME.inp: texts with a line between them; NAME.out: a line of ids for each, without BOS.
void ExpectRecordedIds(const Tokenizer& tokenizer, const std::filesystem::path& base) {
  const auto texts = ReadIfThere(base.string() + ".inp"),
             lines = ReadIfThere(base.string() + ".out");
  ASSERT_TRUE(texts && lines) << base;
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  std::istringstream expected(*lines);
  size_t at = 0, checked = 0;
  for (std::string line; std::getline(expected, line); ++checked) {
    const size_t end = texts->find(kBetween, at);
    ASSERT_NE(end, std::string::npos);
    const std::string text = texts->substr(at, end - at);
    at = end + kBetween.size();
    Ids ids;
    std::istringstream numbers(line);
    for (TokenId id = 0; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(tokenizer.Encode(text, SpecialTokens::kPlainText), ids) << "'" << text << "'";
  }
  EXPECT_EQ(checked, 46u);
}

class GgufVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufVectors, EncodeAsRecorded) {
  const std::filesystem::path base = SharedData() / "tokenizers" / "gguf-vocab" /
                                     (std::string("ggml-vocab-") + GetParam() + ".gguf");
  if (!std::filesystem::exists(base)) GTEST_SKIP() << "absent: " << base;
  ExpectRecordedIds(*Load(ModelDir::Open(base)).tokenizer, base);
}

INSTANTIATE_TEST_SUITE_P(SharedData, GgufVectors, ::testing::Values("gpt-2", "llama-spm", "mpt"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Of Qwen 2 the texts and ids are there, but no vocabulary: it is made of the model's own files.
TEST(GgufVectorsOfQwen2, EncodeAsRecorded) {
  const std::filesystem::path dir = SharedData() / "tokenizers" / "qwen2.5";
  const auto vocab = ReadIfThere(dir / "vocab.json"), merges = ReadIfThere(dir / "merges.txt");
  if (!vocab || !merges) GTEST_SKIP() << "absent: " << dir;
  std::vector<std::string> tokens, rules;
  const auto read = nlohmann::json::parse(*vocab);
  tokens.resize(read.size());
  for (const auto& [token, id] : read.items()) tokens.at(id.get<size_t>()) = token;
  std::istringstream lines(*merges);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && !line.starts_with("#version")) rules.push_back(line);
  }
  std::vector<int32_t> types(tokens.size(), 1);
  for (const char* control : {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}) {
    tokens.emplace_back(control);
    types.push_back(3);
  }
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "qwen2");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.token_type", types);
  writer.Add("tokenizer.ggml.merges", rules);
  const std::string bytes = writer.Bytes();

  const TokenizerFiles files =
      Load(ModelDir::FromBytes("qwen2.gguf", std::as_bytes(std::span(bytes))));

  ExpectRecordedIds(*files.tokenizer,
                    SharedData() / "tokenizers" / "gguf-vocab" / "ggml-vocab-qwen2.gguf");
  EXPECT_EQ(files.tokenizer->Encode("<|im_end|>", SpecialTokens::kParseSpecial), Ids{151645});
  EXPECT_GT(files.tokenizer->Encode("<|im_end|>", SpecialTokens::kPlainText).size(), 1u);
}

TEST(GgufVocabulary, SentencePieceKeepsFlagsAndLeavesPaddingAlone) {
  tests::GgufWriter writer;
  std::vector<std::string> tokens = {"<unk>",
                                     "<s>",
                                     "</s>",
                                     "\xE2\x96\x81",
                                     "a",
                                     "\xE2\x96\x81"
                                     "a",
                                     "[PAD6]"};
  writer.Add("tokenizer.ggml.model", "llama");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, -2, -3, -1000});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1, 1, 1, 5});
  writer.Add("tokenizer.ggml.add_space_prefix", false);
  writer.Add("tokenizer.ggml.add_bos_token", false);
  writer.Add("tokenizer.chat_template", "{{ messages }}");
  const std::string bytes = writer.Bytes();

  const TokenizerFiles files = Load(ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes))));

  EXPECT_EQ(files.tokenizer->Encode("a a", SpecialTokens::kPlainText), (Ids{4, 5}));
  EXPECT_EQ(files.tokenizer->vocab_size(), 7);
  EXPECT_EQ(files.bos, 1) << "Llama 2's, where the file is silent";
  EXPECT_FALSE(files.add_bos);
  EXPECT_EQ(files.chat_template, "{{ messages }}");
}

TEST(GgufVocabulary, OfBytesKeepsControlTokensOutOfPlainText) {
  tests::GgufWriter writer;
  std::vector<std::string> tokens;
  for (const char* token : {"a", "b", "ab", "<|end|>", "  "}) tokens.emplace_back(token);
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "gpt-2");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 1, 3, 4});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b"});
  const std::string bytes = writer.Bytes();

  const TokenizerFiles files = Load(ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes))));

  EXPECT_EQ(files.tokenizer->Encode("ab<|end|>a", SpecialTokens::kParseSpecial), (Ids{2, 3, 0}));
  EXPECT_EQ(files.tokenizer->Encode("ab  a", SpecialTokens::kPlainText), (Ids{2, 4, 0}));
  EXPECT_EQ(Decode(*files.tokenizer, Ids{2, 4, 0}, false), "ab  a");
}

}  // namespace
}  // namespace tandem::engine
