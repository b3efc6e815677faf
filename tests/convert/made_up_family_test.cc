// A model family is one file. This file defines one that no program has: its own tensor names,
// config.json fields, GGUF architecture and MaxText tree. It registers the family and takes a model
// of it through every format.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "bench/models/random_model.h"
#include "convert/formats/gguf/gguf_config.h"
#include "convert/formats/maxtext/maxtext_map.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/check.h"
#include "engine/io/json.h"
#include "engine/model/adapter.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/gguf_config.h"
#include "engine/model/families/gguf_limits.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_rope.h"
#include "engine/model/families/maxtext_tree.h"
#include "tests/convert/convert_fixture.h"
#include "tests/support/adapters.h"
#include "tests/support/model_harness.h"
#include "training/lora/lora.h"

// ---- The family: all that a program would need, as in engine/model/families.

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"QuillForCausalLM", "quill"};

ModelConfig ParseConfig(const Json& json, const std::string& source) {
  ModelConfig c;
  c.family = "quill";
  c.vocab_size = JsonInt(json, "n_tokens", 1, kMaxVocab, source);
  c.hidden_dim = JsonInt(json, "width", 1, kMaxWidth, source);
  c.ffn_dim = JsonInt(json, "inner_width", 1, kMaxWidth, source);
  c.n_layers = JsonInt(json, "depth", 1, kMaxLayers, source);
  c.max_context_len = JsonInt(json, "context", 1, kMaxContext, source);
  c.norm_eps = static_cast<float>(JsonNumberOr(json, "epsilon", 1e-5, 0, 1, source));
  c.rope_theta = JsonNumberOr(json, "theta", 10000, 1, 1e12, source);
  c.eos_tokens = ParseTokenList(json, "eos_token_id", c.vocab_size, {}, source);
  c.bos_token = FirstToken(ParseTokenList(json, "bos_token_id", c.vocab_size, {}, source));
  AttentionSpec& a = c.attention;
  a.n_heads = JsonInt(json, "heads", 1, kMaxHeads, source);
  a.n_kv_heads = JsonInt(json, "kv_heads", 1, a.n_heads, source);
  a.head_dim = c.hidden_dim / a.n_heads;
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  return Json{{"architectures", Json::array({"QuillForCausalLM"})},
              {"model_type", "quill"},
              {"n_tokens", c.vocab_size},
              {"width", c.hidden_dim},
              {"inner_width", c.ffn_dim},
              {"depth", c.n_layers},
              {"context", c.max_context_len},
              {"epsilon", ShortestDouble(c.norm_eps)},
              {"theta", c.rope_theta},
              {"heads", c.attention.n_heads},
              {"kv_heads", c.attention.n_kv_heads},
              {"bos_token_id", c.bos_token < 0 ? Json(nullptr) : Json(c.bos_token)},
              {"eos_token_id", TokenListToJson(c.eos_tokens)}};
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("stem.tokens.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "stack." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "before_attn.weight", c.hidden_dim));
    ListSelfAttention(specs, prefix + "attn", c, {});
    specs.push_back(VectorSpec(prefix + "before_mlp.weight", c.hidden_dim));
    ListGatedMlp(specs, prefix + "mlp", c);
  }
  specs.push_back(VectorSpec("stem.last.weight", c.hidden_dim));
  specs.push_back(MatrixSpec("stem.head.weight", c.vocab_size, c.hidden_dim));
  return specs;
}

std::vector<RopeSpec> ListRopes(const ModelConfig& c) {
  return {ScaledRope(c.attention.head_dim, c.rope_theta, c.rope_scaling)};
}

Act Block(WeightCursor& w, const ModelConfig& c, Act x, int64_t layer, LayerOps& ops) {
  const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
  const SelfAttention attn = TakeSelfAttention(w, {});
  const Act q = ops.Rope(Project(ops, h, attn.q), 0), k = ops.Rope(Project(ops, h, attn.k), 0);
  const Act attended = ops.Attention(q, k, Project(ops, h, attn.v), c.LayerAttention(layer), layer);
  x = ops.Add(x, Project(ops, attended, attn.o));
  const Act m = ops.RmsNorm(x, w.Take(), c.norm_eps);
  return ops.Add(x, RunGatedMlp(ops, m, TakeGatedMlp(w, c), c));
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  Act x = ops.Embed(w.Take());
  for (int64_t layer = 0; layer < c.n_layers; ++layer) x = Block(w, c, x, layer, ops);
  const Act normed = ops.RmsNorm(x, w.Take(), c.norm_eps);
  ops.Logits(normed, w.Take(), nullptr, 0);
  TANDEM_CHECK(w.at_end());
}

void ShapeTiny(ModelConfig& c) { c.attention.n_kv_heads = 2; }

void ReadGguf(const GgufMetadata& metadata, Json& json) {
  json["n_tokens"] = json["vocab_size"];
  json["width"] = metadata.RequiredInt("embedding_length");
  json["inner_width"] = metadata.RequiredInt("feed_forward_length");
  json["depth"] = metadata.RequiredInt("block_count");
  json["context"] = metadata.RequiredInt("context_length");
  json["epsilon"] = Shortest(metadata.RequiredNumber("attention.layer_norm_rms_epsilon"));
  json["theta"] = Shortest(metadata.RequiredNumber("rope.freq_base"));
  json["heads"] = metadata.RequiredInt("attention.head_count");
  json["kv_heads"] = metadata.RequiredInt("attention.head_count_kv");
}

std::vector<GgufSetting> WriteGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = GgufSizes(c);
  settings.push_back({"attention.layer_norm_rms_epsilon", c.norm_eps});
  settings.push_back({"rope.freq_base", static_cast<float>(c.rope_theta)});
  return settings;
}

constexpr auto kGgufParts = std::to_array<GgufPart>({
    {"attn_norm", "before_attn"},
    {"attn_q", "attn.q_proj", GgufChange::kQueryPairs},
    {"attn_k", "attn.k_proj", GgufChange::kKeyPairs},
    {"attn_v", "attn.v_proj"},
    {"attn_output", "attn.o_proj"},
    {"ffn_norm", "before_mlp"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
});
constexpr auto kGgufEnds = std::to_array<GgufPart>(
    {{"token_embd", "stem.tokens"}, {"output_norm", "stem.last"}, {"output", "stem.head"}});
constexpr auto kGgufLimits = std::to_array<GgufLimit>({RequireSilu});
constexpr GgufArchitecture kGguf{.name = "quill",
                                 .parts = kGgufParts,
                                 .ends = kGgufEnds,
                                 .block = "stack.",
                                 .read_config = ReadGguf,
                                 .write_config = WriteGguf,
                                 .limits = kGgufLimits};

constexpr std::array kLinearLayers{
    MaxTextRule{"stack.{}.attn.q_proj.weight", "reader.query.kernel", MaxTextShape::kHeadsOut,
                MaxTextValue::kAsIs, true},
    MaxTextRule{"stack.{}.attn.k_proj.weight", "reader.key.kernel", MaxTextShape::kHeadsOut,
                MaxTextValue::kAsIs, true},
    MaxTextRule{"stack.{}.attn.v_proj.weight", "reader.value.kernel", MaxTextShape::kHeadsOut},
    MaxTextRule{"stack.{}.attn.o_proj.weight", "reader.out.kernel", MaxTextShape::kHeadsIn},
    MaxTextRule{"stack.{}.mlp.gate_proj.weight", "writer.wi_0.kernel", MaxTextShape::kKernel},
    MaxTextRule{"stack.{}.mlp.up_proj.weight", "writer.wi_1.kernel", MaxTextShape::kKernel},
    MaxTextRule{"stack.{}.mlp.down_proj.weight", "writer.wo.kernel", MaxTextShape::kKernel}};
constexpr std::array kMaxTextRules{
    MaxTextRule{"stem.tokens.weight", "token_embedder.embedding", MaxTextShape::kTable},
    MaxTextRule{"stem.head.weight", "decoder.logits_dense.kernel", MaxTextShape::kKernel},
    MaxTextRule{"stem.last.weight", "decoder.decoder_norm.scale", MaxTextShape::kVector},
    MaxTextRule{"stack.{}.before_attn.weight", "reader_norm.scale", MaxTextShape::kVector},
    MaxTextRule{"stack.{}.before_mlp.weight", "writer_norm.scale", MaxTextShape::kVector},
    kLinearLayers[0],
    kLinearLayers[1],
    kLinearLayers[2],
    kLinearLayers[3],
    kLinearLayers[4],
    kLinearLayers[5],
    kLinearLayers[6]};
constexpr MaxTextTree kMaxText{.rules = kMaxTextRules};
constexpr LoraNames kLora{.rules = kLinearLayers};

constexpr FamilySpec kQuillFamily{
    .name = "quill",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
    .maxtext = &kMaxText,
    .lora = &kLora,
};

}  // namespace
}  // namespace tandem::engine

// ---- The tests

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

class MadeUpFamilyTest : public ConversionTest {
 protected:
  MadeUpFamilyTest() {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig("quill");
    spec.stored = engine::DType::kF32;
    spec.with_tokenizer = true;
    bench::WriteRandomModel(spec, model_);
  }

  static std::vector<float> LogitsOf(const fs::path& model, const fs::path& adapter = {}) {
    tests::ModelHarness harness(model, {});
    if (!adapter.empty()) harness.UseAdapter(harness.LoadAdapter(adapter));
    std::vector<TokenId> tokens;
    for (TokenId i = 0; i < 40; ++i) tokens.push_back(i * 7 % 256);
    return harness.Prefill(tokens, 0);
  }
  fs::path ConvertTo(const std::string& format, const fs::path& source, const std::string& name) {
    Run(Spec(source, format, name));
    return dir_.path() / name;
  }
  // Expects the original's numbers and logits after a conversion to Hugging Face's form.
  void ExpectOriginal(const fs::path& converted) {
    const fs::path back = ConvertTo("hf", converted, "back");
    ExpectSameTensors(model_, back);
    EXPECT_EQ(LogitsOf(back), LogitsOf(model_));
  }

  const engine::FamilyRegistration registration_{engine::kQuillFamily};
  const fs::path model_ = dir_.path() / "model";
};

TEST_F(MadeUpFamilyTest, GoesThroughGgufUnchanged) {
  const fs::path file = ConvertTo("gguf", model_, "model.gguf");

  EXPECT_EQ(LogitsOf(file), LogitsOf(model_));
  ExpectOriginal(file);
}

TEST_F(MadeUpFamilyTest, GoesThroughMaxTextUnchangedInBothLayouts) {
  for (const char* layout : {"scanned", "unscanned"}) {
    SCOPED_TRACE(layout);
    ConvertSpec spec = Spec(model_, "maxtext", layout);
    spec.layout = layout;
    Run(spec);

    ExpectOriginal(spec.target);
    fs::remove_all(dir_.path() / "back");
  }
}

TEST_F(MadeUpFamilyTest, GoesThroughNativeCheckpointsUnchangedInBothLayouts) {
  for (const char* layout : {"scanned", "unscanned"}) {
    SCOPED_TRACE(layout);
    ConvertSpec spec = Spec(model_, "native", layout);
    spec.layout = layout;
    Run(spec);

    ExpectOriginal(spec.target);
    fs::remove_all(dir_.path() / "back");
  }
}

TEST_F(MadeUpFamilyTest, AnAdapterIsMadeByMaxTextsNamesAndComesBackFromAMerge) {
  const fs::path adapter = dir_.path() / "adapter";
  tests::WriteRandomAdapter(model_, 2, 7, adapter, "decoder/layers/reader/(query|value)");
  const engine::ModelConfig config = bench::TinyModelConfig("quill");
  const auto weights_of = [&](const fs::path& dir) {
    std::vector<int32_t> weights;
    for (const training::LoraTarget& target :
         training::LoraTargetsOf(engine::LoraAdapter::Open(dir), engine::kQuillFamily, config)) {
      weights.push_back(target.weight);
    }
    std::sort(weights.begin(), weights.end());
    return weights;
  };
  EXPECT_EQ(weights_of(adapter).size(), 4u);

  ConvertSpec merge = Spec(adapter, "hf", "merged");
  merge.base = model_;
  merge.dtype = "f32";
  Run(merge);
  ConvertSpec split = Spec(merge.target, "peft", "split");
  split.base = model_;
  split.peft.rank = 2;
  Run(split);

  EXPECT_EQ(weights_of(split.target), weights_of(adapter));
  const std::vector<float> wanted = LogitsOf(model_, adapter);
  const std::vector<float> is = LogitsOf(model_, split.target);
  const std::vector<float> base = LogitsOf(model_);
  ASSERT_EQ(is.size(), wanted.size());
  float error = 0, effect = 0;
  for (size_t i = 0; i < is.size(); ++i) {
    error = std::max(error, std::abs(is[i] - wanted[i]));
    effect = std::max(effect, std::abs(base[i] - wanted[i]));
  }
  EXPECT_GT(effect, 0.1f);
  EXPECT_LT(error, 1e-3f * effect);
}

TEST_F(MadeUpFamilyTest, IsNamedInErrorsThatListFamilies) {
  EXPECT_TRUE(MaxTextFamilies().ends_with(", quill"));
  const auto has_gguf = [](const engine::FamilySpec& family) { return family.gguf != nullptr; };
  EXPECT_TRUE(engine::FamilyNames(has_gguf).ends_with(", quill"));
}

TEST_F(MadeUpFamilyTest, ASettingBeyondItsGgufLimitsIsRefusedByName) {
  engine::ModelConfig config = bench::TinyModelConfig("quill");
  config.activation = engine::Activation::kRelu;
  try {
    GgufArchitectureFor(config, "model");
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("an activation other than silu"), std::string::npos);
  }
}

TEST(FamilyTable, IsAsBeforeWhenARegistrationEnds) {
  const size_t before = engine::Families().size();
  {
    const engine::FamilyRegistration registration(engine::kQuillFamily);
    EXPECT_EQ(&engine::FindFamilyByName("quill"), &engine::kQuillFamily);
  }
  EXPECT_EQ(engine::Families().size(), before);
  EXPECT_THROW(engine::FindFamilyByName("quill"), Error);
}

}  // namespace
}  // namespace tandem::convert
