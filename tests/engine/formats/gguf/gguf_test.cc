#include "engine/formats/gguf/gguf.h"

#include <nlohmann/json.hpp>

#include "engine/formats/model_dir.h"
#include "engine/io/sha256.h"
#include "tests/engine/io/file_helpers.h"
#include "tests/support/gguf_writer.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

GgufFile Read(const std::string& bytes) {
  return GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "test.gguf");
}

TEST(Gguf, KeysAndTensorsComeBackAsWritten) {
  for (const uint32_t version : {2u, 3u}) {
    tests::GgufWriter writer;
    writer.version = version;
    writer.Add("text", "name");
    writer.Add("count", uint32_t{7});
    writer.Add("share", 0.5f);
    writer.Add("flag", true);
    writer.Add("texts", std::vector<std::string>{"a", "", "b"});
    writer.Add("numbers", std::vector<int32_t>{-1, 2});
    writer.Add("floats", std::vector<float>{1.5f});
    writer.AddTensor("w", tests::kGgufF32, {2, 3}, std::string(24, 'w'));
    const std::string bytes = writer.Bytes();

    const GgufFile file = Read(bytes);

    EXPECT_EQ(file.String("text"), "name");
    EXPECT_EQ(file.Int("count"), 7);
    EXPECT_EQ(file.Number("share"), 0.5);
    EXPECT_EQ(file.Number("count"), 7);
    EXPECT_EQ(file.Bool("flag"), true);
    EXPECT_EQ(file.Strings("texts"), (std::vector<std::string_view>{"a", "", "b"}));
    EXPECT_EQ(file.Ints("numbers"), (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(file.Floats("floats"), std::vector<float>{1.5f});
    EXPECT_EQ(file.Int("absent"), std::nullopt);
    ASSERT_NE(file.Find("w"), nullptr);
    EXPECT_EQ(file.Find("w")->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.Find("w")->data.size(), 24u);
    EXPECT_EQ(file.Find("w")->data[0], std::byte{'w'});
  }
}

TEST(Gguf, AKeyOfAnotherKindIsAnError) {
  tests::GgufWriter writer;
  writer.Add("text", "name");
  writer.Add("count", uint32_t{7});
  const std::string bytes = writer.Bytes();
  const GgufFile file = Read(bytes);

  ExpectError(ErrorCode::kDataLoss, {"'text'", "integer"}, [&] { file.Int("text"); });
  ExpectError(ErrorCode::kDataLoss, {"'count'", "string"}, [&] { file.String("count"); });
  ExpectError(ErrorCode::kDataLoss, {"'count'", "boolean"}, [&] { file.Bool("count"); });
  ExpectError(ErrorCode::kDataLoss, {"'count'", "array"}, [&] { file.Strings("count"); });
}

// Files contain other programs' whole tokenizers under keys that we never read.
TEST(Gguf, WhatNobodyAsksForIsOnlyPassedOver) {
  const std::string one = tests::U32(4) + tests::U64(1) + tests::U32(7);
  tests::GgufWriter writer;
  writer.Add("long", std::string(3 << 20, 'x'));
  writer.Add("longs", std::vector<std::string>{std::string(1 << 17, 'x'), "y"});
  writer.AddRaw("odd", 8, tests::GgufString("\xff"));
  writer.AddRaw("arrays", 9, tests::U32(9) + tests::U64(2) + one + one);
  writer.Add("after", uint32_t{7});
  const std::string bytes = writer.Bytes();

  const GgufFile file = Read(bytes);

  EXPECT_EQ(file.Int("after"), 7);
  ExpectError(ErrorCode::kDataLoss, {"'long'", "limit of 1048576"}, [&] { file.String("long"); });
  ExpectError(ErrorCode::kDataLoss, {"'longs'", "item 0", "limit of 65536"},
              [&] { file.Strings("longs"); });
  ExpectError(ErrorCode::kDataLoss, {"'odd'", "UTF-8"}, [&] { file.String("odd"); });
  ExpectError(ErrorCode::kDataLoss, {"'arrays'", "integers"}, [&] { file.Ints("arrays"); });
  ExpectError(ErrorCode::kDataLoss, {"'arrays'", "strings"}, [&] { file.Strings("arrays"); });
}

TEST(Gguf, TensorsMayLeaveHolesAndUseAnotherAlignment) {
  tests::GgufWriter writer;
  writer.alignment = 64;
  writer.Add("general.alignment", uint32_t{64});
  writer.AddTensorRaw("b", tests::kGgufF32, {1}, 128, std::string(192, '\0'));
  writer.AddTensorRaw("a", tests::kGgufF32, {1}, 0, "");
  const std::string bytes = writer.Bytes();

  EXPECT_EQ(Read(bytes).tensors().size(), 2u);
}

TEST(ModelDirOfAFile, IsDecidedByWhatTheFileBeginsWith) {
  const TemporaryDir dir;
  tests::GgufWriter writer;
  writer.Add("general.architecture", "llama");
  writer.Write(dir.path() / "model.safetensors");
  WriteFile(dir.path() / "note.gguf", "not a model");

  EXPECT_NO_THROW(ModelDir::Open(dir.path() / "model.safetensors"));
  EXPECT_TRUE(ModelDir::IsModelFile(dir.path() / "model.safetensors"));
  EXPECT_FALSE(ModelDir::IsModelFile(dir.path() / "note.gguf"));
  EXPECT_FALSE(ModelDir::IsModelFile(dir.path()));
  ExpectError(ErrorCode::kUnsupported, {"note.gguf", "neither GGUF nor llama2.c"},
              [&] { ModelDir::Open(dir.path() / "note.gguf"); });
}

TEST(ModelDirOfAFile, HasTheContentHashOfTheFile) {
  const TemporaryDir dir;
  tests::GgufWriter writer;
  writer.Add("general.architecture", "llama");
  writer.Write(dir.path() / "m.gguf");

  const std::string bytes = writer.Bytes();
  EXPECT_EQ(ModelDir::Open(dir.path() / "m.gguf").ContentHash({}),
            ToHex(Sha256Of(std::as_bytes(std::span(bytes)))));
}

// A split model: the keys in the first part, a tensor in each of the others.
class SplitModel : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                           "m-00003-of-00003.gguf"};

  void SetUp() override {
    for (uint32_t i = 0; i < 3; ++i) Write(i, i, 3, i == 0 ? "" : "w" + std::to_string(i));
  }
  void Write(uint32_t part, uint32_t number, uint32_t count, const std::string& tensor,
             uint32_t tensors = 2) {
    tests::GgufWriter writer;
    if (part == 0) writer.Add("general.architecture", "llama");
    writer.Add("split.no", number);
    writer.Add("split.count", count);
    writer.Add("split.tensors.count", tensors);
    if (!tensor.empty()) {
      writer.AddTensor(tensor, tests::kGgufF32, {2}, std::string(8, tensor.back()));
    }
    writer.Write(dir_.path() / kNames[part]);
  }
  void ExpectRefused(ErrorCode code, std::vector<std::string> parts, size_t opened = 0) {
    ExpectError(code, parts, [&] { ModelDir::Open(dir_.path() / kNames[opened]); });
  }
  TemporaryDir dir_;
};

TEST_F(SplitModel, IsOpenedByItsFirstFile) {
  const ModelDir model = ModelDir::Open(dir_.path() / kNames[0]);

  EXPECT_EQ(model.tensor_names(), (std::vector<std::string>{"w1", "w2"}));
  EXPECT_EQ(model.FindStored("w2")->bytes()[7], std::byte{'2'});
  std::vector<Sha256Digest> digests;
  for (const char* name : kNames) {
    const std::string text = FileText(dir_.path() / name);
    digests.push_back(Sha256Of(std::as_bytes(std::span(text))));
  }
  EXPECT_EQ(model.ContentHash({}), ToHex(Sha256Of(std::as_bytes(std::span(digests)))));
}

TEST_F(SplitModel, IsRefusedWhereAPartIsMissingOrAnotherOnes) {
  ExpectRefused(ErrorCode::kUnsupported, {kNames[1], "split.no", "not its first file"}, 1);
  Write(2, 1, 3, "w2");
  ExpectRefused(ErrorCode::kDataLoss, {kNames[2], "'split.no'", "is 1, must be 2"});
  Write(2, 2, 4, "w2");
  ExpectRefused(ErrorCode::kDataLoss, {kNames[2], "'split.count'", "is 4, must be 3"});
  Write(2, 2, 3, "w1");
  ExpectRefused(ErrorCode::kDataLoss, {kNames[2], "'w1'", "another part"});
  Write(2, 2, 3, "");
  ExpectRefused(ErrorCode::kDataLoss, {kNames[0], "split.tensors.count", "1 tensors"});
  std::filesystem::remove(dir_.path() / kNames[2]);
  ExpectRefused(ErrorCode::kNotFound, {kNames[2], "no such file", "3"});
}

TEST_F(SplitModel, IsRefusedUnderAnotherName) {
  std::filesystem::rename(dir_.path() / kNames[0], dir_.path() / "m.gguf");
  ExpectError(ErrorCode::kUnsupported, {"m.gguf", "'split.count'", "'-00001-of-00003.gguf'"},
              [&] { ModelDir::Open(dir_.path() / "m.gguf"); });
}

TEST(ModelDirOfAFile, TokensThatEndAnAnswerAreAllNamed) {
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "llama-bpe");
  writer.Add("tokenizer.ggml.tokens",
             std::vector<std::string>{"a", "b", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 1, 3, 3, 3});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{});
  writer.Add("tokenizer.ggml.eos_token_id", uint32_t{2});
  writer.Add("tokenizer.ggml.eom_token_id", uint32_t{4});
  const std::string bytes = writer.Bytes();
  const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));

  const Json generation = Json::parse(*model.ReadText("generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], (std::vector<int>{2, 3, 4}));
  const Json config = Json::parse(*model.ReadText("tokenizer_config.json"));
  EXPECT_EQ(config["eos_token"], "<|end_of_text|>");
  EXPECT_EQ(config["add_bos_token"], true) << "as programs do for this pattern";
}

// In harmony, <|end|> ends a message of an answer and not the answer.
TEST(ModelDirOfAFile, HarmonyEndsAnAnswerWithReturnOrCallOnly) {
  tests::GgufWriter writer;
  writer.Add("tokenizer.ggml.model", "gpt2");
  writer.Add("tokenizer.ggml.pre", "gpt-4o");
  writer.Add("tokenizer.ggml.tokens",
             std::vector<std::string>{"a", "<|return|>", "<|end|>", "<|call|>", "<|endoftext|>"});
  writer.Add("tokenizer.ggml.token_type", std::vector<int32_t>{1, 3, 3, 3, 3});
  writer.Add("tokenizer.ggml.merges", std::vector<std::string>{});
  writer.Add("tokenizer.ggml.eos_token_id", uint32_t{1});
  writer.Add("tokenizer.ggml.eot_token_id", uint32_t{2});
  const std::string bytes = writer.Bytes();
  const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));

  const Json generation = Json::parse(*model.ReadText("generation_config.json"));
  EXPECT_EQ(generation["eos_token_id"], (std::vector<int>{1, 3, 4}));
}

TEST(ModelDirOfAFile, RecommendedSamplingIsThatOfAGenerationConfig) {
  tests::GgufWriter writer;
  writer.Add("general.sampling.temp", 0.7f);
  writer.Add("general.sampling.top_p", 0.8f);
  writer.Add("general.sampling.top_k", uint32_t{20});
  writer.Add("general.sampling.penalty_repeat", 1.05f);
  const std::string bytes = writer.Bytes();
  const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));

  const Json generation = Json::parse(*model.ReadText("generation_config.json"));
  EXPECT_EQ(generation, Json::parse(R"({"temperature": 0.7, "top_p": 0.8, "top_k": 20,
                                        "repetition_penalty": 1.05, "do_sample": true})"));
}

TEST(ModelDirOfAFile, TheTokenizerIsOfTheClassThatReadsItAsItStands) {
  const auto class_of = [](const char* vocabulary, const char* architecture) {
    tests::GgufWriter writer;
    writer.Add("general.architecture", architecture);
    writer.Add("tokenizer.ggml.model", vocabulary);
    writer.Add("tokenizer.ggml.pre", "qwen2");
    writer.Add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b"});
    writer.Add("tokenizer.ggml.merges", std::vector<std::string>{});
    const std::string bytes = writer.Bytes();
    const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));
    return Json::parse(*model.ReadText("tokenizer_config.json"))["tokenizer_class"]
        .get<std::string>();
  };
  EXPECT_EQ(class_of("gpt2", "qwen2"), "PreTrainedTokenizerFast");
  EXPECT_EQ(class_of("llama", "llama"), "LlamaTokenizer");
  EXPECT_EQ(class_of("llama", "gemma2"), "GemmaTokenizer");
  EXPECT_EQ(class_of("t5", "t5"), "T5Tokenizer");
}

// ---- llama2.c

struct Llama2cSizes {
  int32_t dim = 4, hidden = 6, layers = 2, heads = 2, kv_heads = 1, vocab = 5, length = 3;
};

size_t Floats(const Llama2cSizes& s, bool tied) {
  const auto dim = static_cast<size_t>(s.dim), hidden = static_cast<size_t>(s.hidden),
             layers = static_cast<size_t>(s.layers), vocab = static_cast<size_t>(s.vocab),
             length = static_cast<size_t>(s.length);
  const size_t head = dim / static_cast<size_t>(s.heads),
               kv = head * static_cast<size_t>(s.kv_heads);
  const size_t block = 2 * dim + 2 * dim * dim + 2 * kv * dim + 3 * hidden * dim;
  return vocab * dim * (tied ? 1 : 2) + layers * block + dim + length * head;
}

std::string Llama2c(const Llama2cSizes& s, bool tied) {
  std::string bytes;
  for (const int32_t n :
       {s.dim, s.hidden, s.layers, s.heads, s.kv_heads, tied ? s.vocab : -s.vocab, s.length}) {
    bytes += tests::U32(static_cast<uint32_t>(n));
  }
  return bytes + std::string(Floats(s, tied) * sizeof(float), '\0');
}

TEST(Llama2c, IsKnownByAHeaderThatFitsTheFile) {
  for (const bool tied : {true, false}) {
    const std::string bytes = Llama2c({}, tied);
    const ModelDir model = ModelDir::FromBytes("m.bin", std::as_bytes(std::span(bytes)));

    EXPECT_EQ(model.FindStored("lm_head.weight") == nullptr, tied);
    const StoredTensor* key = model.FindStored("model.layers.1.self_attn.k_proj.weight");
    ASSERT_NE(key, nullptr);
    EXPECT_EQ(key->view.shape, (std::vector<int64_t>{2, 4}));
    EXPECT_EQ(key->interleaved_heads, 1);
    const Json config = Json::parse(*model.ReadText("config.json"));
    EXPECT_EQ(config["tie_word_embeddings"], tied);
    EXPECT_EQ(config["max_position_embeddings"], 3);
    EXPECT_EQ(model.ReadText("tokenizer.model"), std::nullopt);
  }
}

TEST(Llama2c, SizesThatLieAreNoModel) {
  const std::string honest = Llama2c({}, true);
  const auto refuse = [](const std::string& bytes) {
    EXPECT_THROW(ModelDir::FromBytes("m.bin", std::as_bytes(std::span(bytes))), Error);
  };
  refuse(honest.substr(0, honest.size() - 1));
  refuse(honest + "x");
  refuse(honest.substr(0, 27));
  for (size_t field = 0; field < 7; ++field) {
    for (const uint32_t value : {0u, 1u << 30, 0x7fffffffu, 0x80000000u, ~0u}) {
      std::string lying = honest;
      lying.replace(field * 4, 4, tests::U32(value));
      if (lying != honest) refuse(lying);
    }
  }
}

TEST(Llama2c, LaterVersionsAreNamed) {
  std::string bytes = tests::U32(0x616b3432) + tests::U32(2);
  for (int i = 0; i < 7; ++i) bytes += tests::U32(4);
  bytes.resize(512, '\0');
  ExpectError(ErrorCode::kUnsupported, {"version 2", "export.py --version 1"},
              [&] { ModelDir::FromBytes("m.bin", std::as_bytes(std::span(bytes))); });
}

TEST(Llama2c, AVocabularyThatEndsEarlyIsRefused) {
  const TemporaryDir dir;
  WriteFile(dir.path() / "m.bin", Llama2c({}, true));
  WriteFile(dir.path() / "tokenizer.bin", tests::U32(4) + tests::U32(0) + tests::U32(1000) + "abc");
  const ModelDir model = ModelDir::Open(dir.path() / "m.bin");
  ExpectError(ErrorCode::kDataLoss, {"tokenizer.bin", "token 0", "1000 bytes"},
              [&] { model.ReadText("tokenizer.model"); });
}

TEST(Llama2c, ATokenBeyondEveryVocabularyIsRefused) {
  const TemporaryDir dir;
  WriteFile(dir.path() / "m.bin", Llama2c({}, true));
  WriteFile(dir.path() / "tokenizer.bin",
            tests::U32(4) + tests::U32(0) + tests::U32(70000) + std::string(70000, ' '));
  const ModelDir model = ModelDir::Open(dir.path() / "m.bin");
  ExpectError(ErrorCode::kDataLoss, {"tokenizer.bin", "token 0", "70000 bytes", "limit of 65536"},
              [&] { model.ReadText("tokenizer.model"); });
}

// Otherwise a file of a few hundred KB would become millions of names.
TEST(Llama2c, MoreLayersThanAnyModelHasAreRefused) {
  const Llama2cSizes most{.dim = 2, .hidden = 1, .layers = 1024, .heads = 1, .vocab = 1};
  Llama2cSizes more = most;
  more.layers = 1025;
  const std::string kept = Llama2c(most, true), refused = Llama2c(more, true);
  EXPECT_NO_THROW(ModelDir::FromBytes("m.bin", std::as_bytes(std::span(kept))));
  ExpectError(ErrorCode::kUnsupported, {"m.bin", "neither"},
              [&] { ModelDir::FromBytes("m.bin", std::as_bytes(std::span(refused))); });
}

}  // namespace
}  // namespace tandem::engine
