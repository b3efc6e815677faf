#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/formats/model_dir.h"
#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"
#include "tests/support/gguf_writer.h"

// Vocabularies of GGUF files, compared with ids recorded from their original tokenizers. The data
// is outside the repository.
namespace tandem::engine {
namespace {

using Ids = std::vector<TokenId>;
using Json = nlohmann::ordered_json;

TokenizerFiles Load(const ModelDir& model) {
  return *LoadTokenizer(
      model.name(),
      [&](std::string_view file) -> std::optional<std::string> {
        // The files contain only a vocabulary.
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
  if (!std::filesystem::exists(base)) GTEST_SKIP() << tests::AbsentData(base);
  ExpectRecordedIds(*Load(ModelDir::Open(base)).tokenizer, base);
}

INSTANTIATE_TEST_SUITE_P(SharedData, GgufVectors, ::testing::Values("gpt-2", "llama-spm", "mpt"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Qwen 2 has texts and ids but no vocabulary file: the test makes one from the model's files.
TEST(GgufVectorsOfQwen2, EncodeAsRecorded) {
  const std::filesystem::path dir = SharedData() / "tokenizers" / "qwen2.5";
  const auto vocab = ReadIfThere(dir / "vocab.json"), merges = ReadIfThere(dir / "merges.txt");
  if (!vocab || !merges) GTEST_SKIP() << tests::AbsentData(dir);
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

// Gemma's converters write user-defined pieces with spaces; all other pieces have U+2581.
TEST(GgufVocabulary, PiecesThatTheUserDefinedAreFoundWhereTheyHoldSpaces) {
  const std::string mark = "\xE2\x96\x81";
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "llama");
  writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "<s>", "</s>", mark, "a",
                                                               "  ", "    ", mark + "a", " a"});
  writer.Add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, -2, 0, 0, -3, 0});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1, 1, 4, 4, 1, 4});
  writer.Add("tokenizer.ggml.add_space_prefix", false);
  const std::string bytes = writer.Bytes();

  const TokenizerFiles files = Load(ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes))));

  EXPECT_EQ(files.tokenizer->Encode("a  a", SpecialTokens::kPlainText), (Ids{4, 5, 4}));
  EXPECT_EQ(files.tokenizer->Encode("a      a", SpecialTokens::kPlainText), (Ids{4, 6, 5, 4}));
  EXPECT_EQ(Decode(*files.tokenizer, Ids{4, 6, 5, 4}, false), "a      a");
  EXPECT_EQ(files.tokenizer->Encode("a a", SpecialTokens::kPlainText), (Ids{4, 7}))
      << "a spelling that is a piece already stays that piece's";
}

// Gemma 4's: pieces with U+2581 that merge by rank, and tokens of single bytes.
TEST(GgufVocabulary, PiecesMergeByRankAndOtherCharactersAreBytes) {
  const std::string mark = "\xE2\x96\x81";
  std::vector<std::string> tokens{"<pad>", "<eos>", "<bos>", "<unk>"};
  std::vector<int32_t> types{3, 3, 3, 2};
  for (int byte = 0; byte < 256; ++byte) {
    std::array<char, 8> text{};
    std::snprintf(text.data(), text.size(), "<0x%02X>", static_cast<unsigned>(byte));
    tokens.emplace_back(text.data());
    types.push_back(6);
  }
  for (const std::string& piece : {mark, std::string("a"), std::string("b"), mark + "a",
                                   std::string("ab"), std::string("\n"), std::string("<tool>")}) {
    types.push_back(piece == "<tool>" ? 4 : 1);
    tokens.push_back(piece);
  }
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gemma4");
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.token_type", types);
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{"a b", mark + " a"});
  writer.Add("tokenizer.ggml.bos_token_id", uint32_t{2});
  const std::string bytes = writer.Bytes();

  const TokenizerFiles files = Load(ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes))));

  const auto encode = [&](std::string_view text) {
    return files.tokenizer->Encode(text, SpecialTokens::kPlainText);
  };
  EXPECT_EQ(encode("ab a"), (Ids{264, 263})) << "the first merge comes first";
  EXPECT_EQ(encode(" ab"), (Ids{260, 264}));
  EXPECT_EQ(encode("a\n\xC3\xA9"), (Ids{261, 265, 4 + 0xC3, 4 + 0xA9}));
  EXPECT_EQ(Decode(*files.tokenizer, Ids{264, 263, 4 + 0xC3, 4 + 0xA9}, false), "ab a\xC3\xA9");
}

tests::GgufWriter VocabularyOfBytes(const std::vector<std::string>& tokens,
                                    const std::vector<int32_t>& types,
                                    const std::vector<std::string>& merges, const char* pre) {
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2");
  if (pre != nullptr) writer.Add("tokenizer.ggml.pre", pre);
  writer.Add("tokenizer.ggml.tokens", tokens);
  writer.Add("tokenizer.ggml.token_type", types);
  writer.Add("tokenizer.ggml.merges", merges);
  return writer;
}

TokenizerFiles LoadBytes(const std::string& bytes) {
  return Load(ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes))));
}

// Returns the log output of `action`.
template <class Action>
std::string LogOf(const Action& action) {
  ::testing::internal::CaptureStderr();
  ConfigureLog("info", LogFormat::kText);
  action();
  spdlog::default_logger()->flush();
  // The vocabularies here have few of the 256 bytes.
  std::istringstream lines(::testing::internal::GetCapturedStderr());
  std::string log;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("tokenizer_drops_text") == std::string::npos) log += line + "\n";
  }
  return log;
}

TEST(GgufVocabulary, AnEndOfTurnThatIsCalledTheUsersIsAControlToken) {
  const std::string of_bytes =
      VocabularyOfBytes({"a", "<|im_end|>", "<|x|>", "<EOT>"}, {1, 4, 4, 4}, {}, "gpt-2").Bytes();
  tests::GgufWriter pieces;
  pieces.Add("tokenizer.ggml.model", "llama");
  pieces.Add("tokenizer.ggml.tokens",
             std::vector<std::string>{"<unk>", "<s>", "</s>", "a", "<end_of_turn>"});
  pieces.Add("tokenizer.ggml.scores", std::vector<float>{0, 0, 0, -1, 0});
  pieces.Add("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 3, 1, 4});
  for (const auto& [bytes, names, ends, end] :
       std::vector<std::tuple<std::string, std::string, std::vector<int>, TokenId>>{
           {of_bytes, "<|im_end|>, <EOT>", {1, 3}, 1}, {pieces.Bytes(), "<end_of_turn>", {4}, 4}}) {
    SCOPED_TRACE(names);
    const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));
    TokenizerFiles files;
    const std::string log = LogOf([&] {
      files = Load(model);
      const Json generation = Json::parse(*model.ReadText("generation_config.json"));
      EXPECT_EQ(generation["eos_token_id"], ends);
    });

    EXPECT_NE(log.find("m.gguf"), std::string::npos) << log;
    EXPECT_NE(log.find("control tokens: " + names + "\n"), std::string::npos) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    const std::string text(files.tokenizer->TokenBytes(end));
    EXPECT_TRUE(files.tokenizer->IsSpecial(end));
    EXPECT_EQ(files.tokenizer->Encode(text, SpecialTokens::kParseSpecial), Ids{end});
    EXPECT_NE(files.tokenizer->Encode(text, SpecialTokens::kPlainText), Ids{end});
  }
}

TEST(GgufVocabulary, WithoutThePatternsNameSaysSoOnce) {
  const auto log_of = [](const char* pre) {
    return LogOf([&] { LoadBytes(VocabularyOfBytes({"a"}, {1}, {}, pre).Bytes()); });
  };

  const std::string log = log_of(nullptr);

  EXPECT_NE(log.find("m.gguf: key 'tokenizer.ggml.pre' is missing"), std::string::npos) << log;
  EXPECT_NE(log.find("convert the model again"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_EQ(log_of("default"), "");
}

TEST(GgufVocabulary, WhereTheFileIsSilentThePatternSaysWhetherTextsBeginWithBos) {
  for (const auto& [pre, adds] : std::vector<std::pair<const char*, bool>>{{"llama-bpe", true},
                                                                           {"falcon3", true},
                                                                           {"pixtral", true},
                                                                           {"tekken", true},
                                                                           {"smaug-bpe", false},
                                                                           {"gpt-2", false}}) {
    SCOPED_TRACE(pre);
    tests::GgufWriter writer = VocabularyOfBytes({"a", "<s>"}, {1, 3}, {}, pre);
    writer.Add("tokenizer.ggml.bos_token_id", uint32_t{1});
    EXPECT_EQ(LoadBytes(writer.Bytes()).add_bos, adds);
    writer.Add("tokenizer.ggml.add_bos_token", !adds);
    EXPECT_EQ(LoadBytes(writer.Bytes()).add_bos, !adds);
  }
}

TEST(GgufVocabulary, FaultsNameTheFileThatIsThere) {
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "llama");
  writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a", "a"});
  writer.Add("tokenizer.ggml.scores", std::vector<float>{0, -1, -2});
  try {
    LoadBytes(writer.Bytes());
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("m.gguf (as tokenizer.model)"))
        << error.what();
  }
}

TEST(GgufVocabulary, AnEndBehindEveryTextIsNotPutThereUnsaid) {
  tests::GgufWriter writer = VocabularyOfBytes({"a", "</s>"}, {1, 3}, {}, "gpt-2");
  writer.Add("tokenizer.ggml.add_eos_token", true);
  const std::string log = LogOf([&] { LoadBytes(writer.Bytes()); });
  EXPECT_NE(log.find("m.gguf: key 'tokenizer.ggml.add_eos_token'"), std::string::npos) << log;
}

TEST(GgufVocabulary, AnEndBehindEveryTextIsTheSuffix) {
  tests::GgufWriter writer = VocabularyOfBytes({"a", "</s>"}, {1, 3}, {}, "gpt-2");
  writer.Add("tokenizer.ggml.eos_token_id", uint32_t{1});
  EXPECT_TRUE(LoadBytes(writer.Bytes()).suffix.empty());

  writer.Add("tokenizer.ggml.add_eos_token", true);

  EXPECT_EQ(LoadBytes(writer.Bytes()).suffix, std::vector<TokenId>{1});
}

TEST(GgufVocabulary, TheTokensOfInfillingAreNamedByTheOldKeysAndTheNew) {
  for (const bool is_old : {true, false}) {
    tests::GgufWriter writer = VocabularyOfBytes({"a", "P", "S", "M"}, {1, 3, 3, 3}, {}, "gpt-2");
    writer.Add(is_old ? "tokenizer.ggml.prefix_token_id" : "tokenizer.ggml.fim_pre_token_id",
               uint32_t{1});
    writer.Add(is_old ? "tokenizer.ggml.suffix_token_id" : "tokenizer.ggml.fim_suf_token_id",
               uint32_t{2});
    EXPECT_FALSE(LoadBytes(writer.Bytes()).infill) << "one is missing";
    writer.Add(is_old ? "tokenizer.ggml.middle_token_id" : "tokenizer.ggml.fim_mid_token_id",
               uint32_t{3});

    const auto infill = LoadBytes(writer.Bytes()).infill;

    ASSERT_TRUE(infill);
    EXPECT_EQ(infill->prefix, 1);
    EXPECT_EQ(infill->suffix, 2);
    EXPECT_EQ(infill->middle, 3);
  }
}

// Where each name's patterns cut, before pieces are spelled in bytes.
TEST(GgufVocabulary, PatternsCutWhereTheProgramsDo) {
  using Pieces = std::vector<std::string>;
  struct Case {
    const char* pre;
    const char* text;
    Pieces expected;
  };
  const Pieces apart = {"it", "'s", " ", "1", "2", " ab"};
  const Pieces tekken = {"Hello", "WORLD", "'s", " ", "1", "2", "!/\n"};
  const Pieces o200k = {"Hello", "WORLD's", " ", "123", "4", "!/\n"};
  const std::vector<Case> cases = {
      {"gpt-4o", "HelloWORLD's 1234!/\n", o200k},
      {"smollm", "it's 12 ab", apart},
      {"starcoder", "it's 12 ab", apart},
      {"refact", "it's 12 ab", apart},
      {"command-r", "it's 12 ab", apart},
      {"gpt-2", "it's 12 ab", {"it", "'s", " 12", " ab"}},
      {"llama-bpe", "it's 1234 ab", {"it", "'s", " ", "123", "4", " ab"}},
      {"qwen2", "it's 12 ab", apart},
      {"tekken", "HelloWORLD's 12!/\n", tekken},
      {"falcon",
       "it's 12345 `x \u00bd",
       {"it", "'", "s", " ", "123", "45", " ", "`", "x", " \u00bd"}},
      {"default",
       "it's 12345 `x \u00bd",
       {"it", "'", "s", " ", "123", "45", " `", "x", " ", "\u00bd"}},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(item.pre);
    const std::string bytes = VocabularyOfBytes({"a"}, {1}, {}, item.pre).Bytes();
    const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));
    const Json json = Json::parse(*model.ReadText("tokenizer.json"));
    std::vector<Pretokenizer::Stage> stages;
    for (const Json& stage : json["pre_tokenizer"]["pretokenizers"]) {
      if (stage["type"] != "Split") continue;
      stages.emplace_back(
          PatternSplit{Pattern::Compile(stage["pattern"]["Regex"].get<std::string>(), ""),
                       SplitBehavior::kIsolated});
    }
    Pieces pieces;
    Pretokenizer(std::move(stages)).ForEachPiece(item.text, true, [&](std::string_view piece) {
      pieces.emplace_back(piece);
    });
    EXPECT_EQ(pieces, item.expected);
  }
}

}  // namespace
}  // namespace tandem::engine
