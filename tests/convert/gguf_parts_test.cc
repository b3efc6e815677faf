// GGUF files whose tensors are parts of weights, in another order, or other numbers.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <variant>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/formats/gguf/gguf.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_architecture.h"
#include "tests/convert/convert_fixture.h"
#include "tests/convert/gguf_models.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_harness.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using engine::FamilySpec;
using engine::ModelConfig;

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string bytes;

  std::vector<float> Floats() const {
    std::vector<float> floats(bytes.size() / sizeof(float));
    std::memcpy(floats.data(), bytes.data(), bytes.size());
    return floats;
  }
};

// A file that can be changed and written again.
struct GgufContents {
  std::string architecture;
  std::vector<engine::GgufSetting> settings;
  std::vector<FileTensor> tensors;

  FileTensor& Tensor(const std::string& name) {
    for (FileTensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::runtime_error("no tensor " + name);
  }
  void Drop(const std::string& name) {
    std::erase_if(tensors, [&](const FileTensor& tensor) { return tensor.name == name; });
  }
  void Set(std::string_view key, uint32_t value) {
    DropKey(key);
    settings.push_back({key, value});
  }
  void DropKey(std::string_view key) {
    std::erase_if(settings, [&](const auto& setting) { return setting.key == key; });
  }
  void Write(const fs::path& to) const {
    tests::GgufWriter writer;
    writer.Add("general.architecture", architecture);
    for (const engine::GgufSetting& setting : settings) {
      const std::string key = architecture + "." + std::string(setting.key);
      if (const auto* count = std::get_if<uint32_t>(&setting.value)) writer.Add(key, *count);
      if (const auto* number = std::get_if<float>(&setting.value)) writer.Add(key, *number);
      if (const auto* is = std::get_if<bool>(&setting.value)) writer.Add(key, *is);
      if (const auto* text = std::get_if<std::string_view>(&setting.value)) writer.Add(key, *text);
      if (const auto* counts = std::get_if<std::vector<uint32_t>>(&setting.value)) {
        writer.Add(key, std::vector<int32_t>(counts->begin(), counts->end()));
      }
      if (const auto* flags = std::get_if<std::vector<bool>>(&setting.value)) {
        writer.Add(key, std::vector<int32_t>(flags->begin(), flags->end()));
      }
      if (const auto* numbers = std::get_if<std::vector<float>>(&setting.value)) {
        writer.Add(key, *numbers);
      }
    }
    for (const FileTensor& tensor : tensors) {
      writer.AddTensor(tensor.name, tests::kGgufF32, tensor.shape, tensor.bytes);
    }
    writer.Write(to);
  }
};

class GgufPartsTest : public ConversionTest {
 protected:
  // Writes a random model of the family and its file in f32.
  GgufContents Convert(const std::string& family_name) {
    return Convert(family_name, GgufModelOf(engine::FindFamilyByName(family_name)));
  }
  GgufContents Convert(const std::string& family_name, const ModelConfig& config) {
    const FamilySpec& family = engine::FindFamilyByName(family_name);
    const engine::GgufArchitecture& architecture = engine::GgufArchitectureOf(family, config);
    fs::remove_all(model());
    fs::remove(file());
    bench::WriteRandomModel({.config = config, .with_tokenizer = true}, model());
    ConvertSpec spec = Spec(model(), "gguf", "model.gguf");
    spec.dtype = "f32";
    Run(spec);

    const std::string bytes = engine::ReadWholeFile(file(), size_t{1} << 30);
    const auto read = engine::GgufFile::FromBytes(std::as_bytes(std::span(bytes)), "model.gguf");
    GgufContents contents{.architecture = std::string(architecture.name),
                          .settings = architecture.write_config(config),
                          .tensors = {}};
    for (const engine::GgufFile::Tensor& tensor : read.tensors()) {
      contents.tensors.push_back(
          {std::string(tensor.name), tensor.shape,
           std::string(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size())});
    }
    return contents;
  }
  fs::path model() const { return dir_.path() / "model"; }
  fs::path file() const { return dir_.path() / "model.gguf"; }
  fs::path other() const { return dir_.path() / "other.gguf"; }

  static std::vector<float> LogitsOf(const fs::path& path, DType dtype = DType::kF32) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < 37; ++i) tokens.push_back(i * 31 % 250);
    tests::ModelHarness harness(path, {.dtype = dtype});
    return harness.Prefill(tokens, 0);
  }
  static void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
    ASSERT_EQ(a.size(), b.size());
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  }
  void ExpectRefused(const GgufContents& contents, const std::string& word) {
    contents.Write(other());
    try {
      LogitsOf(other());
      ADD_FAILURE() << "was not refused; expected " << word;
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(word), std::string::npos) << what;
      EXPECT_NE(what.find("other.gguf"), std::string::npos) << what;
    }
  }
};

TEST_F(GgufPartsTest, AFileComputesTheBitsOfTheModelItWasMadeFrom) {
  for (const char* family : {"glm4_moe", "ernie4_5_moe", "lfm2", "deepseek_v2", "deepseek_v3",
                             "qwen3_next", "qwen3_5", "qwen3_5_moe", "mamba2", "nemotron_h",
                             "granitemoehybrid", "falcon_h1", "gemma3n", "gemma4"}) {
    SCOPED_TRACE(family);
    Convert(family);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      ExpectSameBits(LogitsOf(file(), dtype), LogitsOf(model(), dtype));
    }
  }
}

TEST_F(GgufPartsTest, AFileWithoutExpertsIsOfTheSameFamily) {
  for (const char* name : {"nemotron_h", "granitemoehybrid", "gemma4"}) {
    SCOPED_TRACE(name);
    const FamilySpec& family = engine::FindFamilyByName(name);
    Convert(name, GgufModelOf(family, WithoutExperts(bench::TinyModelConfig(name))));
    ExpectSameBits(LogitsOf(file()), LogitsOf(model()));
  }
}

// The largest difference by the largest logit.
float DifferenceOf(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0, largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(a[i]));
  }
  return most / largest;
}

TEST_F(GgufPartsTest, MultipliersAreWithinTheWeightsOfAFile) {
  const ModelConfig tiny = bench::TinyModelConfig("falcon_h1");
  ModelConfig config = GgufModelOf(engine::FindFamilyByName("falcon_h1"));
  config.branches = tiny.branches;
  config.embedding_multiplier = tiny.embedding_multiplier;
  config.logit_multiplier = tiny.logit_multiplier;
  config.tied_embeddings = false;
  Convert("falcon_h1", config);
  EXPECT_LT(DifferenceOf(LogitsOf(model()), LogitsOf(file())), 1e-5F);
}

TEST_F(GgufPartsTest, TokensBeyondTheLayersTableHaveTheRowOfToken0) {
  for (const char* family : {"gemma3n", "gemma4"}) {
    SCOPED_TRACE(family);
    ModelConfig config = GgufModelOf(engine::FindFamilyByName(family));
    config.gemma.per_layer_vocab = 100;
    Convert(family, config);
    ExpectSameBits(LogitsOf(file()), LogitsOf(model()));
  }
}

// Other converters write gates and ups apart, and keys of layers that read those of others.
TEST_F(GgufPartsTest, GemmaFilesOfOtherProgramsAreReadAsOurs) {
  GgufContents contents = Convert("gemma4");
  std::vector<FileTensor> apart;
  for (FileTensor& tensor : contents.tensors) {
    const size_t at = tensor.name.find("ffn_gate_up_exps");
    if (at == std::string::npos) {
      apart.push_back(tensor);
      continue;
    }
    const auto n_halves = static_cast<size_t>(2 * tensor.shape[0]);
    const size_t half = tensor.bytes.size() / n_halves;
    FileTensor gates{tensor.name, tensor.shape, {}}, ups{tensor.name, tensor.shape, {}};
    gates.name.replace(at, 16, "ffn_gate_exps");
    ups.name.replace(at, 16, "ffn_up_exps");
    gates.shape[1] = ups.shape[1] = tensor.shape[1] / 2;
    for (size_t i = 0; i < n_halves; ++i) {
      (i % 2 == 0 ? gates : ups).bytes += tensor.bytes.substr(i * half, half);
    }
    apart.push_back(gates);
    apart.push_back(ups);
  }
  apart.push_back({"blk.4.attn_k.weight", {1, 4}, std::string(16, '\0')});
  contents.tensors = std::move(apart);
  contents.Write(other());
  ExpectSameBits(LogitsOf(other()), LogitsOf(model()));
}

TEST_F(GgufPartsTest, SettingsOfGemmaThatMakeNoModelAreRefusedByName) {
  const GgufContents whole = Convert("gemma4");
  GgufContents turned = whole;
  FileTensor& divisors = turned.Tensor("rope_freqs.weight");
  const float two = 2;
  std::memcpy(divisors.bytes.data(), &two, sizeof two);
  ExpectRefused(turned, "'rope_freqs.weight'");

  GgufContents heads = whole;
  heads.DropKey("attention.head_count_kv");
  heads.settings.push_back({"attention.head_count_kv", std::vector<uint32_t>{1}});
  ExpectRefused(heads, "gemma4.attention.head_count_kv");

  GgufContents widths = whole;
  widths.DropKey("feed_forward_length");
  widths.settings.push_back({"feed_forward_length", std::vector<uint32_t>{8, 8, 8, 24, 8}});
  ExpectRefused(widths, "gemma4.feed_forward_length");

  GgufContents many = whole;
  many.Set("attention.shared_kv_layers", 0xFFFFFFFF);
  ExpectRefused(many, "num_kv_shared_layers");

  GgufContents sparse = Convert("gemma3n");
  sparse.DropKey("activation_sparsity_scale");
  sparse.settings.push_back({"activation_sparsity_scale", std::vector<float>{1, 0}});
  ExpectRefused(sparse, "activation_sparsity_scale");
}

// Rows of a head: its keys, then its values. The two tensors have keys transposed.
FileTensor WholeLatent(const FileTensor& keys, const FileTensor& values, const std::string& name) {
  const int64_t heads = keys.shape[0], latent = keys.shape[1], key = keys.shape[2];
  const int64_t value = values.shape[1];
  const std::vector<float> k = keys.Floats(), v = values.Floats();
  FileTensor whole{name, {heads * (key + value), latent}, {}};
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t row = 0; row < key + value; ++row) {
      for (int64_t i = 0; i < latent; ++i) {
        const int64_t at =
            row < key ? (head * latent + i) * key + row : (head * value + row - key) * latent + i;
        const float number = (row < key ? k : v)[static_cast<size_t>(at)];
        whole.bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
      }
    }
  }
  return whole;
}

TEST_F(GgufPartsTest, OlderFilesHaveKeysAndValuesOfTheLatentInOneTensor) {
  const FamilySpec& family = engine::FindFamilyByName("deepseek_v2");
  const ModelConfig config = GgufModelOf(family);
  GgufContents both = Convert("deepseek_v2");
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    both.tensors.push_back(WholeLatent(both.Tensor(block + "attn_k_b.weight"),
                                       both.Tensor(block + "attn_v_b.weight"),
                                       block + "attn_kv_b.weight"));
  }
  GgufContents older = both;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    older.Drop("blk." + std::to_string(layer) + ".attn_k_b.weight");
    older.Drop("blk." + std::to_string(layer) + ".attn_v_b.weight");
  }
  older.DropKey("attention.key_length_mla");
  older.DropKey("attention.value_length_mla");
  older.Set("attention.key_length", static_cast<uint32_t>(config.attention.head_dim));
  older.Set("attention.value_length", static_cast<uint32_t>(config.attention.v_head_dim));
  older.DropKey("expert_gating_func");

  const std::vector<float> wanted = LogitsOf(model());
  older.Write(other());
  ExpectSameBits(LogitsOf(other()), wanted);
  both.Write(other());
  ExpectSameBits(LogitsOf(other()), wanted);
}

TEST_F(GgufPartsTest, PartsThatDoNotMakeAWeightAreRefusedByName) {
  const GgufContents whole = Convert("deepseek_v2");
  GgufContents one = whole;
  one.Drop("blk.1.attn_v_b.weight");
  ExpectRefused(one, "'blk.1.attn_k_b.weight'");

  GgufContents flat = whole;
  FileTensor& keys = flat.Tensor("blk.1.attn_k_b.weight");
  keys.shape = {keys.shape[0] * keys.shape[1], keys.shape[2]};
  ExpectRefused(flat, "'blk.1.attn_k_b.weight'");

  GgufContents turned = whole;
  FileTensor& values = turned.Tensor("blk.1.attn_v_b.weight");
  std::swap(values.shape[1], values.shape[2]);
  ExpectRefused(turned, "'blk.1.attn_v_b.weight'");

  const GgufContents next = Convert("qwen3_next");
  GgufContents no_gate = next;
  no_gate.Drop("blk.0.attn_gate.weight");
  ExpectRefused(no_gate, "in_proj_qkvz");

  GgufContents fewer = next;
  FileTensor& qkv = fewer.Tensor("blk.0.attn_qkv.weight");
  qkv.bytes.resize(qkv.bytes.size() / static_cast<size_t>(qkv.shape[0]) *
                   static_cast<size_t>(qkv.shape[0] - 1));
  --qkv.shape[0];
  ExpectRefused(fewer, "'blk.0.attn_qkv.weight'");

  GgufContents heads = next;
  heads.Set("ssm.group_count", 3);
  ExpectRefused(heads, "linear_num_key_heads");
}

TEST_F(GgufPartsTest, ADecayThatIsNotBelowZeroIsRefusedByName) {
  for (const char* family : {"mamba2", "qwen3_5"}) {
    SCOPED_TRACE(family);
    const GgufContents whole = Convert(family);
    for (const float number : {0.0f, 0.5f, std::numeric_limits<float>::quiet_NaN(),
                               -std::numeric_limits<float>::infinity()}) {
      GgufContents wrong = whole;
      std::memcpy(wrong.Tensor("blk.0.ssm_a").bytes.data(), &number, sizeof number);
      ExpectRefused(wrong, "'blk.0.ssm_a'");
    }
  }
}

TEST_F(GgufPartsTest, BlocksThatPredictFurtherTokensAreLeftOut) {
  for (const char* family : {"glm4_moe", "qwen3_5"}) {
    SCOPED_TRACE(family);
    const ModelConfig config = GgufModelOf(engine::FindFamilyByName(family));
    GgufContents more = Convert(family);
    const auto n_layers = static_cast<uint32_t>(config.n_layers);
    const std::string block = "blk." + std::to_string(n_layers) + ".";
    FileTensor norm = more.Tensor("blk.0.attn_norm.weight");
    for (const char* name : {"attn_norm.weight", "nextn.enorm.weight"}) {
      norm.name = block + name;
      more.tensors.push_back(norm);
    }
    // Without the key, the block is one of the model's.
    ExpectRefused(more, "not a weight of this model family");

    more.Set("block_count", n_layers + 1);
    more.Set("nextn_predict_layers", 1);
    more.Write(other());
    ExpectSameBits(LogitsOf(other()), LogitsOf(model()));

    more.Set("nextn_predict_layers", n_layers + 1);
    ExpectRefused(more, "nextn_predict_layers");
  }
}

}  // namespace
}  // namespace tandem::convert
