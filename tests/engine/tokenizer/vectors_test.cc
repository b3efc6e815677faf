#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/io/sha256.h"
#include "engine/tokenizer/incremental_detokenizer.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

// Whole tokenizers, compared with ids recorded from the tokenizers library. The data is outside the
// repository.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<TokenId>;

TokenizerFiles LoadShared(const std::filesystem::path& dir, bool prefer_json) {
  TokenizerTexts texts;
  texts.source = dir.filename();
  if (dir.filename().string().ends_with("-spm")) {
    texts.tokenizer_model = ReadIfThere(SharedData() / dir / "tokenizer.model");
  } else if (prefer_json) {
    texts.tokenizer_json = ReadIfThere(SharedData() / dir / "tokenizer.json");
  } else {
    texts.vocab_json = ReadIfThere(SharedData() / dir / "vocab.json");
    texts.merges_txt = ReadIfThere(SharedData() / dir / "merges.txt");
  }
  if (dir.filename() == "qwen2.5" && !prefer_json) {
    texts.tokenizer_config_json = R"({"tokenizer_class": "Qwen2Tokenizer", "added_tokens_decoder": {
      "151643": {"content": "<|endoftext|>", "special": true},
      "151644": {"content": "<|im_start|>", "special": true},
      "151645": {"content": "<|im_end|>", "special": true}}})";
  }
  return *LoadTokenizer(texts);
}

std::string Unhex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

struct Source {
  const char* vectors;
  const char* dir;
  bool json;
};

class Vectors : public ::testing::TestWithParam<Source> {};

TEST_P(Vectors, EncodeAndDecodeAsRecorded) {
  const auto vectors =
      ReadIfThere(SharedData() / "tokenizer_vectors" / (std::string(GetParam().vectors) + ".json"));
  const std::filesystem::path dir = GetParam().dir;
  const bool is_spm = dir.string().ends_with("-spm");
  const char* file = is_spm ? "tokenizer.model" : GetParam().json ? "tokenizer.json" : "vocab.json";
  if (!vectors || !std::filesystem::exists(SharedData() / dir / file)) {
    GTEST_SKIP() << tests::AbsentData(SharedData() / dir) << " (or its vectors)";
  }
  const TokenizerFiles files = LoadShared(dir, GetParam().json);
  const Tokenizer& tokenizer = *files.tokenizer;

  int checked = 0;
  const Json recorded = Json::parse(*vectors);
  for (const Json& item : recorded.at("cases")) {
    const std::string name = item.at("name"), text = item.at("text");
    // Qwen's two bare files have fewer added tokens.
    if (!GetParam().json && (name.starts_with("special_fim") || name.starts_with("special_vis") ||
                             name.starts_with("special_tool"))) {
      continue;
    }
    SCOPED_TRACE(name);
    // SentencePiece does not parse control tokens.
    const Ids ids =
        tokenizer.Encode(text, is_spm ? SpecialTokens::kPlainText : SpecialTokens::kParseSpecial);
    EXPECT_EQ(ids, item.at("ids").get<Ids>());
    if (item.contains("ids_special_as_text")) {
      EXPECT_EQ(tokenizer.Encode(text, SpecialTokens::kPlainText),
                item.at("ids_special_as_text").get<Ids>());
    }
    // U+2581 is the space of Llama-style vocabularies, so it is not preserved.
    if (text.find("\u2581") == std::string::npos) {
      EXPECT_EQ(Decode(tokenizer, ids, false), item.value("decoded", text));
    }
    if (item.contains("pieces_hex")) {
      for (size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(tokenizer.TokenBytes(ids[i]), Unhex(item.at("pieces_hex").at(i)));
      }
    }
    ++checked;
  }
  EXPECT_GT(checked, 100);
}

INSTANTIATE_TEST_SUITE_P(Recorded, Vectors,
                         ::testing::Values(Source{"gpt2", "tokenizers/gpt2", true},
                                           Source{"gpt2", "tokenizers/gpt2", false},
                                           Source{"qwen2.5", "tokenizers/qwen2.5", true},
                                           Source{"qwen2.5", "tokenizers/qwen2.5", false},
                                           Source{"llama2-spm", "tokenizers/llama2-spm", false},
                                           Source{"mistral-v1-spm", "tokenizers/mistral-v1-spm",
                                                  false},
                                           Source{"stories260K", "models/stories260K", true}),
                         [](const auto& test) {
                           std::string name = test.param.vectors;
                           std::erase(name, '.');
                           std::erase(name, '-');
                           if (name.ends_with("spm")) return name;
                           return name +
                                  (test.param.json ? "_tokenizer_json" : "_vocab_and_merges");
                         });

TEST(Vectors, WholeFilesHashAsRecorded) {
  const auto list = ReadIfThere(SharedData() / "tokenizer_vectors/full_files.json");
  if (!list) GTEST_SKIP() << tests::AbsentData(SharedData() / "tokenizer_vectors/full_files.json");
  const Json recorded = Json::parse(*list);
  for (const Json& item : recorded.at("cases")) {
    const std::string name = item.at("tokenizer");
    const auto text = ReadIfThere(SharedData() / item.at("file").get<std::string>());
    if (!text) continue;
    SCOPED_TRACE(name + " " + item.at("file").get<std::string>());
    const TokenizerFiles files = LoadShared("tokenizers/" + name, true);

    const Ids ids = files.tokenizer->Encode(
        *text, name.ends_with("-spm") ? SpecialTokens::kPlainText : SpecialTokens::kParseSpecial);

    EXPECT_EQ(ids.size(), item.at("n_tokens").get<size_t>());
    EXPECT_EQ(ToHex(Sha256Of(std::as_bytes(std::span(ids)))), item.at("ids_sha256_u32le"));
    EXPECT_EQ(Decode(*files.tokenizer, ids, false), *text);
  }
}

// Texts and ids that another program recorded, for vocabularies that we have in another format.
class RecordedLines : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(RecordedLines, EncodeAlike) {
  const auto [name, dir] = GetParam();
  const std::filesystem::path base = SharedData() / "tokenizers/gguf-vocab" / name;
  const auto texts = ReadIfThere(base.string() + ".gguf.inp");
  const auto expected = ReadIfThere(base.string() + ".gguf.out");
  if (!texts || !expected) GTEST_SKIP() << tests::AbsentData(base);
  const TokenizerFiles files = LoadShared(dir, true);
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";

  std::istringstream lines(*expected);
  int checked = 0;
  size_t begin = 0;
  for (std::string line; std::getline(lines, line); ++checked) {
    const size_t end = texts->find(kBetween, begin);
    const std::string text = texts->substr(begin, end - begin);
    begin = end == std::string::npos ? texts->size() : end + kBetween.size();
    Ids ids;
    std::istringstream numbers(line);
    for (TokenId id; numbers >> id;) ids.push_back(id);
    EXPECT_EQ(files.tokenizer->Encode(text, SpecialTokens::kPlainText), ids) << text;
  }
  EXPECT_EQ(checked, 46);
}

INSTANTIATE_TEST_SUITE_P(Recorded, RecordedLines,
                         ::testing::Values(std::pair{"ggml-vocab-gpt-2", "tokenizers/gpt2"},
                                           std::pair{"ggml-vocab-qwen2", "tokenizers/qwen2.5"},
                                           std::pair{"ggml-vocab-llama-spm",
                                                     "tokenizers/llama2-spm"}),
                         [](const auto& test) {
                           std::string name = test.param.first;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Vectors, StoriesAddsBosAndLeadingSpace) {
  if (!std::filesystem::exists(SharedData() / "models/stories260K")) {
    GTEST_SKIP() << tests::AbsentData(SharedData() / "models/stories260K");
  }

  const TokenizerFiles files = LoadShared("models/stories260K", true);

  EXPECT_EQ(files.bos, 1);
  EXPECT_TRUE(files.add_bos);
  EXPECT_TRUE(files.tokenizer->adds_leading_space());
  EXPECT_TRUE(files.tokenizer->IsSpecial(1));
  EXPECT_EQ(files.tokenizer->vocab_size(), 512);
}

}  // namespace
}  // namespace tandem::engine
