// Models from other programs' files: the same model in every container.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/gguf/gguf.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/model/stored_weights.h"
#include "engine/tensor/bfloat16.h"
#include "tests/engine/model/same_bits.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/paths.h"
#include "tests/support/random_gguf.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Options = tests::ModelHarness::Options;

class GgufOfFamily : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufOfFamily, ComputesTheBitsOfTheDirectoryItWasConvertedFrom) {
  const tests::Golden golden = tests::LoadGolden(GetParam());
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "model.gguf";
  tests::ConvertToGguf(golden.dir, {}).Write(file);

  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Options options{.dtype = dtype};
    tests::ModelHarness from_dir(golden.dir, options), from_file(file, options);
    const std::vector<TokenId>& tokens = golden.sequences[0].input_ids;
    EXPECT_TRUE(SameBits(from_dir.Prefill(tokens, 0), from_file.Prefill(tokens, 0)))
        << DTypeName(dtype);
    EXPECT_EQ(from_dir.model().config().eos_tokens.front(),
              from_file.model().config().eos_tokens.front());
  }
}

TEST(GgufModel, OtherMetadataPackNothingAgainAndOtherTensorsDo) {
  const tests::Golden golden = tests::LoadGolden("qwen2-tiny");
  const tests::TemporaryDir dir;
  const fs::path cache = dir.path() / "cache";
  const auto load = [&](const std::string& note, const std::string& name) {
    tests::GgufWriter writer = tests::ConvertToGguf(golden.dir, {});
    if (!note.empty()) writer.Add("test.note", note);
    const fs::path file = dir.path() / (name + ".gguf");
    writer.Write(file);
    ThreadPool pool(1);
    OpsContext ops(Kernels(), pool);
    return Model::Load(ModelDir::Open(file), {.cache_dir = cache}, ops);
  };
  const auto n_packed = [&] {
    return std::distance(fs::directory_iterator(cache / "packed"), fs::directory_iterator());
  };
  const auto first = load("", "a");
  const auto second = load("a longer description, which moves the tensors in the file", "b");
  EXPECT_NE(first->content_hash(), second->content_hash());
  EXPECT_EQ(first->packed_path(), second->packed_path());
  EXPECT_EQ(n_packed(), 1);

  // Changes one byte of the last tensor.
  std::string bytes = ReadWholeFile(dir.path() / "a.gguf", 1 << 26);
  const std::string tail = bytes.substr(bytes.size() - 256);
  const size_t at = bytes.size() - 256 + tail.find_last_not_of('\0');
  bytes[at] ^= 0x10;
  WriteFileAtomically(dir.path() / "c.gguf", bytes);
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  Model::Load(ModelDir::Open(dir.path() / "c.gguf"), {.cache_dir = cache}, ops);
  EXPECT_EQ(n_packed(), 2);
}

INSTANTIATE_TEST_SUITE_P(Golden, GgufOfFamily,
                         ::testing::Values("llama2-tiny-two-shards", "llama3-tiny-rope-scaling",
                                           "mistral-tiny", "qwen2-tiny", "qwen3-tiny",
                                           "gemma1-tiny", "gemma2-tiny", "gemma2-tiny-query-scalar",
                                           "gemma3-text-tiny", "gpt2-tiny"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

class GgufBlocks : public ::testing::Test {
 protected:
  GgufBlocks() {
    fs::create_directory(dir_.path() / "tiny");
    tests::WriteTinyModel(dir_.path() / "tiny", {.hidden_dim = 64});
  }

  fs::path Write(Encoding encoding) {
    const fs::path file = dir_.path() / (std::string(EncodingName(encoding)) + ".gguf");
    tests::ConvertToGguf(dir_.path() / "tiny", {.matrices = encoding}).Write(file);
    return file;
  }
  fs::path WriteRandom(Encoding encoding) { return tests::WriteRandomGguf(encoding, dir_.path()); }

  tests::TemporaryDir dir_;
};

// Expects every scale and integer of the file in the model's blocks, bit for bit.
void ExpectTheFilesOwnNumbers(const fs::path& path, Encoding encoding, BlockFormat block) {
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  const ModelDir dir = ModelDir::Open(path);
  const auto model = Model::Load(dir, {}, ops);
  size_t groups = 0;
  for (const Weight& weight : model->weights()) {
    if (weight.spec->kind == WeightKind::kVector) continue;
    ASSERT_EQ(weight.panels.block, block) << weight.spec->name;
    const StoredTensor& stored = *dir.FindStored(weight.spec->name);
    ASSERT_EQ(stored.encoding, encoding);
    const int64_t panel_bytes = BlockPanelBytes(block, weight.spec->k);
    for (int64_t row = 0; row < weight.spec->n; ++row) {
      const auto* in_file = reinterpret_cast<const uint8_t*>(stored.RowData(row));
      for (int64_t g = 0; g < weight.spec->k / kGroupSize; ++g, ++groups) {
        const BlockGroup packed = GetGroup(block, weight.panels.panels + row / 16 * panel_bytes,
                                           weight.spec->k, g, row % 16);
        ASSERT_EQ(packed.scale, in_file[0] | in_file[1] << 8);
        for (int64_t i = 0; i < kGroupSize; ++i) {
          const int q = encoding == Encoding::kQ8_0 ? static_cast<int8_t>(in_file[2 + i])
                        : i < 16                    ? (in_file[2 + i] & 15) - 8
                                                    : (in_file[2 + i - 16] >> 4) - 8;
          ASSERT_EQ(packed.q[i], q);
        }
        in_file += EncodedBlockBytes(encoding);
      }
    }
    // Hence every value equals the decoded one.
    std::vector<float> unpacked(static_cast<size_t>(weight.spec->n * weight.spec->k));
    UnpackPanels(weight.panels, unpacked.data());
    EXPECT_TRUE(SameBits(unpacked, DecodeTensor(stored))) << weight.spec->name;
  }
  EXPECT_GT(groups, 1000u);
}

TEST_F(GgufBlocks, Q8_0IsServedWithItsOwnIntegersAndScales) {
  ExpectTheFilesOwnNumbers(Write(Encoding::kQ8_0), Encoding::kQ8_0, BlockFormat::kInt8);
  // -128 too, which our rounding never produces.
  ExpectTheFilesOwnNumbers(WriteRandom(Encoding::kQ8_0), Encoding::kQ8_0, BlockFormat::kInt8);
}

TEST_F(GgufBlocks, Q4_0IsServedWithItsOwnIntegersAndScales) {
  ExpectTheFilesOwnNumbers(Write(Encoding::kQ4_0), Encoding::kQ4_0, BlockFormat::kInt4);
  ExpectTheFilesOwnNumbers(WriteRandom(Encoding::kQ4_0), Encoding::kQ4_0, BlockFormat::kInt4);
}

TEST_F(GgufBlocks, Q4_KIsServedAsItIsWhateverTheBatch) {
  const fs::path path = WriteRandom(Encoding::kQ4_K);
  ThreadPool pool(2);
  OpsContext ops(Kernels(), pool);
  const ModelDir dir = ModelDir::Open(path);
  const auto model = Model::Load(dir, {}, ops);
  EXPECT_EQ(model->weights_type(), "gguf-q4_k");
  for (const Weight& weight : model->weights()) {
    if (weight.spec->kind == WeightKind::kVector) continue;
    ASSERT_EQ(weight.panels.block, BlockFormat::kInt4K);
    std::vector<float> unpacked(static_cast<size_t>(weight.spec->n * weight.spec->k));
    UnpackPanels(weight.panels, unpacked.data());
    EXPECT_TRUE(SameBits(unpacked, DecodeTensor(*dir.FindStored(weight.spec->name))))
        << weight.spec->name;
  }

  std::vector<TokenId> tokens;
  for (int i = 0; i < 40; ++i) tokens.push_back(i * 7 % 50);
  std::vector<float> expected;
  for (const KernelTable* kernels : RunnableKernelTables()) {
    for (const int n_threads : {1, 2}) {
      tests::ModelHarness harness(path, {.kernels = kernels, .n_threads = n_threads});
      for (const size_t chunk : {0, 1, 7, 16}) {
        const std::vector<float> logits = harness.Prefill(tokens, chunk);
        if (chunk == 0) expected = logits;
        EXPECT_TRUE(SameBits(logits, expected)) << kernels->key << " chunks of " << chunk;
      }
    }
  }
  // Close to the bf16 model on the same numbers.
  tests::ModelHarness bf16(path, {.dtype = DType::kBF16}), own(path, {});
  const std::vector<float> a = bf16.Prefill(tokens, 0), b = own.Prefill(tokens, 0);
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{a[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.05);
}

TEST_F(GgufBlocks, OtherBlocksAreServedAsRoundedToInt8AndAsDecodedInF32) {
  for (const Encoding encoding :
       {Encoding::kQ4_1, Encoding::kQ5_0, Encoding::kQ5_1, Encoding::kQ5_K, Encoding::kQ6_K,
        Encoding::kQ2_K, Encoding::kQ3_K, Encoding::kIQ4_NL, Encoding::kIQ4_XS, Encoding::kIQ3_S,
        Encoding::kIQ2_XXS, Encoding::kIQ1_M, Encoding::kTQ1_0}) {
    SCOPED_TRACE(EncodingName(encoding));
    const fs::path path = WriteRandom(encoding);
    ThreadPool pool(2);
    OpsContext ops(Kernels(), pool);
    const ModelDir dir = ModelDir::Open(path);
    const auto rounded = Model::Load(dir, {}, ops);
    const auto decoded = Model::Load(dir, {.dtype = DType::kF32}, ops);

    EXPECT_EQ(rounded->weights_type(), "gguf-int8");
    for (size_t i = 0; i < rounded->weights().size(); ++i) {
      const Weight& weight = rounded->weights()[i];
      if (weight.spec->kind == WeightKind::kVector) continue;
      ASSERT_EQ(weight.panels.block, BlockFormat::kInt8);
      std::vector<float> got(static_cast<size_t>(weight.spec->n * weight.spec->k)), f32 = got;
      UnpackPanels(weight.panels, got.data());
      UnpackPanels(decoded->weights()[i].panels, f32.data());
      const std::vector<float> want = DecodeTensor(*dir.FindStored(weight.spec->name));
      EXPECT_TRUE(SameBits(f32, want)) << weight.spec->name;
      double error = 0, norm = 0;
      for (size_t e = 0; e < want.size(); ++e) {
        error += std::pow(static_cast<double>(got[e]) - want[e], 2);
        norm += std::pow(static_cast<double>(want[e]), 2);
      }
      // A step of int8 is 1/127 of a group's largest value; random blocks use their range.
      EXPECT_LT(std::sqrt(error / norm), 0.01) << weight.spec->name;
    }
  }
}

TEST_F(GgufBlocks, ATypeThatIsAskedForIsRoundedToAnew) {
  const fs::path path = Write(Encoding::kQ4_0);
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  const ModelDir dir = ModelDir::Open(path);
  const fs::path cache = dir_.path() / "cache";

  const auto own = Model::Load(dir, {.cache_dir = cache}, ops);
  const auto anew = Model::Load(dir, {.block = BlockFormat::kInt4, .cache_dir = cache}, ops);
  const auto bf16 = Model::Load(dir, {.dtype = DType::kBF16, .cache_dir = cache}, ops);

  EXPECT_EQ(own->weights_type(), "gguf-int4");
  EXPECT_EQ(anew->weights_type(), "int4");
  EXPECT_EQ(bf16->weights_type(), "bf16");
  EXPECT_NE(own->fingerprint(), anew->fingerprint());
  EXPECT_NE(own->fingerprint(), bf16->fingerprint());
  // Each has its own packed file. The embedding has a finer format only if --dtype decides.
  EXPECT_EQ(std::distance(fs::directory_iterator(cache / "packed"), {}), 3);
  EXPECT_EQ(own->weights()[0].panels.block, BlockFormat::kInt4);
  EXPECT_EQ(anew->weights()[0].panels.block, BlockFormat::kInt6);
}

TEST_F(GgufBlocks, ThePackedFileIsMadeOnceAndMapped) {
  const fs::path path = Write(Encoding::kQ8_0);
  const Options options{.cache_dir = dir_.path() / "cache"};
  tests::ModelHarness first(path, options), second(path, options), in_memory(path, {});
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5};

  EXPECT_TRUE(first.model().is_mapped() && second.model().is_mapped());
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_.path() / "cache" / "packed"), {}), 1);
  const std::vector<float> logits = first.Prefill(tokens, 0);
  EXPECT_TRUE(SameBits(logits, second.Prefill(tokens, 0)));
  EXPECT_TRUE(SameBits(logits, in_memory.Prefill(tokens, 0)));
}

// A packed file made by another decoder version must not be reused.
TEST_F(GgufBlocks, ThePackedFileSaysHowTheFilesNumbersWereDecoded) {
  const auto header_of = [&](const fs::path& model, const char* cache) {
    tests::ModelHarness harness(model, {.cache_dir = dir_.path() / cache});
    const std::string bytes = ReadWholeFile(harness.model().packed_path(), 1 << 28);
    return bytes.substr(0, bytes.find('\0', 64));
  };

  const std::string header = header_of(Write(Encoding::kQ8_0), "gguf");

  EXPECT_NE(header.find(" from Q8_0/" + std::to_string(kDecodeVersion) + "\n"), std::string::npos);
  EXPECT_NE(header.find(" from Q8_0 pairs "), std::string::npos);
  EXPECT_EQ(header_of(dir_.path() / "tiny", "hf").find(" from "), std::string::npos);
}

TEST_F(GgufBlocks, ComeCloseToTheModelTheyWereMadeFrom) {
  const std::vector<TokenId> tokens = {1, 20, 30, 40, 50, 60};
  tests::ModelHarness source(dir_.path() / "tiny", {.dtype = DType::kBF16});
  tests::ModelHarness q8(Write(Encoding::kQ8_0), {});
  const std::vector<float> want = source.Prefill(tokens, 0), got = q8.Prefill(tokens, 0);
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(static_cast<double>(got[i]) - want[i], 2);
    norm += std::pow(static_cast<double>(want[i]), 2);
  }
  // Int8 weights and activations over two layers. A wrong permutation or transpose would give at
  // least 1.
  EXPECT_LT(std::sqrt(error / norm), 0.05);
}

TEST_F(GgufBlocks, AScaleThatIsNotFiniteIsRefused) {
  const fs::path path = Write(Encoding::kQ8_0);
  std::string bytes = ReadWholeFile(path, 1 << 28);
  const GgufFile file = GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "m");
  const std::span<const std::byte> blocks = file.Find("token_embd.weight")->data;
  const auto at = static_cast<size_t>(reinterpret_cast<const char*>(blocks.data()) - bytes.data());
  bytes.replace(at, 2, std::string("\0\x7e", 2));
  WriteFileAtomically(path, bytes);
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  EXPECT_THROW(Model::Load(ModelDir::Open(path), {}, ops), Error);
}

TEST(GgufModel, AMissingTensorIsNamedAsFamiliesCallIt) {
  const tests::Golden golden = tests::LoadGolden("qwen2-tiny");
  const tests::TemporaryDir dir;
  std::string bytes = tests::ConvertToGguf(golden.dir, {}).Bytes();
  const std::string name = "blk.1.ffn_up.weight";
  bytes.replace(bytes.find(name), name.size(), "blk.1.ffn_xx.weight");
  WriteFileAtomically(dir.path() / "m.gguf", bytes);
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  try {
    Model::Load(ModelDir::Open(dir.path() / "m.gguf"), {}, ops);
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("model.layers.1.mlp.up_proj.weight"),
              std::string::npos)
        << error.what();
  }
}

// The error of Model::Load; empty without an error.
std::string FaultOf(const tests::GgufWriter& writer) {
  const tests::TemporaryDir dir;
  writer.Write(dir.path() / "m.gguf");
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  try {
    Model::Load(ModelDir::Open(dir.path() / "m.gguf"), {}, ops);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string Zeros(int64_t floats) { return std::string(static_cast<size_t>(floats) * 4, '\0'); }

// Ignoring them would compute another model's outputs.
TEST(GgufModel, TensorsOfABlockThatNoWeightUsesAreRefused) {
  for (const auto& [golden, tensor, named] :
       std::vector<std::tuple<const char*, const char*, const char*>>{
           {"llama2-tiny-two-shards", "blk.0.attn_q_norm.weight", "blk.0.attn_q_norm.weight"},
           {"qwen2-tiny", "blk.1.ffn_up.bias", "model.layers.1.mlp.up_proj.bias"},
           {"gemma2-tiny", "output.bias", "lm_head.bias"},
           {"gpt2-tiny", "blk.7.ffn_up.weight", "h.7.mlp.c_fc.weight"}}) {
    SCOPED_TRACE(tensor);
    tests::GgufWriter writer = tests::ConvertToGguf(tests::LoadGolden(golden).dir, {});
    writer.AddTensor(tensor, tests::kGgufF32, {4}, Zeros(4));
    EXPECT_NE(FaultOf(writer).find(std::string("'") + named + "'"), std::string::npos)
        << FaultOf(writer);
  }
}

TEST(GgufModel, TensorsThatOldConvertersWroteBesidesAreNot) {
  for (const char* name : {"llama2-tiny-two-shards", "qwen2-tiny", "gemma1-tiny", "gemma2-tiny",
                           "gemma3-text-tiny", "gpt2-tiny"}) {
    SCOPED_TRACE(name);
    const tests::Golden golden = tests::LoadGolden(name);
    tests::GgufWriter writer = tests::ConvertToGguf(golden.dir, {});
    writer.AddTensor("blk.0.attn_rot_embd.weight", tests::kGgufF32, {4}, Zeros(4));
    writer.AddTensor("cls.weight", tests::kGgufF32, {4}, Zeros(4));
    EXPECT_EQ(FaultOf(writer), "");
    // Skips tied heads that the file stores.
    const std::string bytes = writer.Bytes();
    const ModelDir model = ModelDir::FromBytes("m.gguf", std::as_bytes(std::span(bytes)));
    if (model.FindStored("lm_head.weight") != nullptr) continue;
    const StoredTensor* embedding = model.FindStored("model.embed_tokens.weight");
    if (embedding == nullptr) embedding = model.FindStored("wte.weight");
    writer.AddTensor("output.weight", tests::kGgufF32, embedding->view.shape,
                     Zeros(embedding->view.elements()));
    EXPECT_EQ(FaultOf(writer), "");
  }
}

TEST(GgufModel, FaultsOfTheConfigNameTheFileThatIsThere) {
  tests::GgufWriter writer;
  writer.Add("general.architecture", "llama");
  for (const char* key : {"embedding_length", "feed_forward_length", "block_count",
                          "attention.head_count", "context_length"}) {
    writer.Add(std::string("llama.") + key, uint32_t{1 << 30});
  }
  writer.Add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  writer.AddTensor("token_embd.weight", tests::kGgufF32, {4, 8}, Zeros(32));
  EXPECT_NE(FaultOf(writer).find("m.gguf (as config.json): field"), std::string::npos)
      << FaultOf(writer);
}

// One trained model in all its containers, compared with the outputs of two other programs.
class StoriesContainers : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto found = tests::FindSharedData("data/models/stories260K");
    if (!found) GTEST_SKIP() << tests::AbsentData("data/models/stories260K");
    dir_ = *found;
    golden_ = Json::parse(ReadWholeFile(dir_ / "golden.json", 1 << 20));
  }
  fs::path dir_;
  Json golden_;
};

TEST_F(StoriesContainers, EveryContainerOfF32GivesTheSameBits) {
  const std::vector<TokenId> tokens = golden_["cases"][0]["prompt_ids"];
  tests::ModelHarness safetensors(dir_, {});
  const std::vector<float> want = safetensors.Prefill(tokens, 0);
  for (const char* name : {"stories260K-f32.gguf", "stories260K.bin"}) {
    tests::ModelHarness other(dir_ / name, {});
    EXPECT_EQ(other.model().dtype(), DType::kF32);
    EXPECT_TRUE(SameBits(want, other.Prefill(tokens, 0))) << name;
  }
}

TEST_F(StoriesContainers, EveryContainerOfF32GivesTheRecordedLogitsAndTokens) {
  for (const char* name : {"", "stories260K-f32.gguf", "stories260K.bin"}) {
    SCOPED_TRACE(name);
    tests::ModelHarness model(dir_ / name, {.dtype = DType::kF32});
    for (const Json& item : golden_["cases"]) {
      SCOPED_TRACE(item["prompt"].get<std::string>());
      const std::vector<TokenId> prompt = item["prompt_ids"], greedy = item["greedy_ids"];
      if (item.contains("last_logits") && item["last_logits"].is_array()) {
        const std::vector<double> logits = item["last_logits"];
        const std::vector<float> all = model.Prefill(prompt, 0);
        ASSERT_EQ(all.size(), prompt.size() * logits.size());
        for (size_t i = 0; i < logits.size(); ++i) {
          EXPECT_NEAR(all[all.size() - logits.size() + i], logits[i], 2e-4);
        }
      }
      EXPECT_EQ(model.Greedy({prompt}, greedy.size(), 0)[0], greedy);
    }
  }
}

TEST_F(StoriesContainers, RoundedContainersBeginWithTheRecordedTokens) {
  const Json& item = golden_["cases"][0];
  const std::vector<TokenId> prompt = item["prompt_ids"], greedy = item["greedy_ids"];
  for (const auto& [name, same] :
       std::vector<std::pair<const char*, size_t>>{{"stories260K-f16.gguf", 40},
                                                   {"stories260K-q8_0.gguf", 40},
                                                   {"stories260K-q4_0.gguf", 20}}) {
    tests::ModelHarness model(dir_ / name, {});
    const std::vector<TokenId> tokens = model.Greedy({prompt}, same, 0)[0];
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), greedy.begin())) << name;
  }
}

}  // namespace
}  // namespace tandem::engine
