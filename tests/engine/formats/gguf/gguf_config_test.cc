// config.json from GGUF keys, for cases that the models of tests/golden do not cover.

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/formats/model_dir.h"
#include "tests/engine/io/file_helpers.h"
#include "tests/support/gguf_writer.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;
using tests::GgufWriter;
using Change = std::function<void(GgufWriter&)>;

// Four heads of 16 columns.
GgufWriter Base(const std::string& architecture, uint32_t layers = 2) {
  GgufWriter writer;
  writer.Add("general.architecture", architecture);
  const std::string a = architecture + ".";
  writer.Add(a + "embedding_length", uint32_t{64});
  writer.Add(a + "feed_forward_length", uint32_t{128});
  writer.Add(a + "block_count", layers);
  writer.Add(a + "attention.head_count", uint32_t{4});
  writer.Add(a + "context_length", uint32_t{512});
  writer.AddTensor("token_embd.weight", tests::kGgufF32, {4, 64}, std::string(1024, '\0'));
  return writer;
}

Json ConfigOf(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const ModelDir model = ModelDir::FromBytes("test.gguf", std::as_bytes(std::span(bytes)));
  return Json::parse(*model.ReadText("config.json"));
}

GgufWriter Llama(const Change& change) {
  GgufWriter writer = Base("llama");
  writer.Add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  change(writer);
  return writer;
}

void AddDivisors(GgufWriter& writer, const std::vector<float>& divisors) {
  std::string bytes;
  for (const float divisor : divisors) {
    bytes.append(reinterpret_cast<const char*>(&divisor), sizeof(divisor));
  }
  writer.AddTensor("rope_freqs.weight", tests::kGgufF32, {static_cast<int64_t>(divisors.size())},
                   bytes);
}

TEST(GgufConfig, ScalingOfTheRope) {
  const auto yarn = [](GgufWriter& w) {
    w.Add("llama.rope.scaling.type", "yarn");
    w.Add("llama.rope.scaling.factor", 4.0f);
    w.Add("llama.rope.scaling.original_context_length", uint32_t{128});
  };
  const Json plain_yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};
  const auto with = [](Json json, const Json& more) {
    json.update(more);
    return json;
  };
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  struct Case {
    const char* what;
    Change change;
    Json expected;  // null: none
  };
  const std::vector<Case> cases = {
      {"nothing", [](GgufWriter&) {}, nullptr},
      {"a factor alone is linear", [](GgufWriter& w) { w.Add("llama.rope.scaling.factor", 4.0f); },
       linear},
      {"the factor's old name", [](GgufWriter& w) { w.Add("llama.rope.scale_linear", 4.0f); },
       linear},
      {"the old name is not asked where the new one is",
       [](GgufWriter& w) {
         w.Add("llama.rope.scaling.factor", 1.0f);
         w.Add("llama.rope.scale_linear", 4.0f);
       },
       nullptr},
      {"a factor of 0", [](GgufWriter& w) { w.Add("llama.rope.scaling.factor", 0.0f); }, nullptr},
      {"a type without a factor", [](GgufWriter& w) { w.Add("llama.rope.scaling.type", "linear"); },
       nullptr},
      {"a type that is none",
       [](GgufWriter& w) {
         w.Add("llama.rope.scaling.type", "none");
         w.Add("llama.rope.scaling.factor", 4.0f);
       },
       nullptr},
      {"yarn", yarn, plain_yarn},
      {"yarn's borders",
       [&](GgufWriter& w) {
         yarn(w);
         w.Add("llama.rope.scaling.yarn_beta_fast", 16.0f);
         w.Add("llama.rope.scaling.yarn_beta_slow", 2.0f);
         w.Add("llama.rope.scaling.yarn_ext_factor", 1.0f);
         w.Add("llama.rope.scaling.yarn_log_multiplier", 0.0f);
       },
       with(plain_yarn, {{"beta_fast", 16.0}, {"beta_slow", 2.0}})},
      {"factors of attention multiply yarn's own",
       [&](GgufWriter& w) {
         yarn(w);
         w.Add("llama.rope.scaling.attn_factor", 0.5f);
         w.Add("llama.rope.scaling.yarn_attn_factor", 3.0f);
       },
       with(plain_yarn, {{"attention_factor", 1.5 * (0.1 * std::log(4.0) + 1)}})},
      {"divisors of 1 leave a scaling alone",
       [](GgufWriter& w) {
         w.Add("llama.rope.scaling.factor", 4.0f);
         AddDivisors(w, std::vector<float>(8, 1));
       },
       linear},
      {"divisors of 1 alone", [](GgufWriter& w) { AddDivisors(w, std::vector<float>(8, 1)); },
       nullptr},
  };
  for (const Case& item : cases) {
    SCOPED_TRACE(item.what);
    EXPECT_EQ(ConfigOf(Llama(item.change)).value("rope_scaling", Json()), item.expected);
  }
}

TEST(GgufConfig, ScalingsThatAreNotSupportedAreNamed) {
  const auto yarn_with = [](const char* key, float value) {
    return Llama([&](GgufWriter& w) {
      w.Add("llama.rope.scaling.type", "yarn");
      w.Add("llama.rope.scaling.factor", 4.0f);
      w.Add(std::string("llama.rope.scaling.") + key, value);
    });
  };
  const auto refuse = [](ErrorCode code, const std::vector<std::string>& parts,
                         const GgufWriter& writer) {
    ExpectError(code, parts, [&] { ConfigOf(writer); });
  };
  refuse(ErrorCode::kUnsupported, {"yarn_log_multiplier"}, yarn_with("yarn_log_multiplier", 0.1f));
  refuse(ErrorCode::kUnsupported, {"yarn_ext_factor"}, yarn_with("yarn_ext_factor", 0.5f));
  refuse(ErrorCode::kUnsupported, {"rope.scaling.type", "'longrope'"},
         Llama([](GgufWriter& w) { w.Add("llama.rope.scaling.type", "longrope"); }));
  refuse(ErrorCode::kUnsupported, {"rope_freqs.weight", "rope.scaling.type"},
         Llama([](GgufWriter& w) {
           w.Add("llama.rope.scaling.factor", 4.0f);
           AddDivisors(w, {1, 1, 1, 1, 2, 4, 8, 8});
         }));
  refuse(ErrorCode::kDataLoss, {"rope_freqs.weight", "9 numbers", "8 frequencies"},
         Llama([](GgufWriter& w) { AddDivisors(w, std::vector<float>(9, 2)); }));
  // A quantised vector has no rows to decode.
  refuse(ErrorCode::kUnsupported, {"rope_freqs.weight", "Q8_0"}, Llama([](GgufWriter& w) {
           w.AddTensor("rope_freqs.weight", tests::kGgufQ8_0, {32}, std::string(34, 'x'));
         }));
}

TEST(GgufConfig, AnEpsilonIsRequired) {
  ExpectError(ErrorCode::kDataLoss, {"no key 'llama.attention.layer_norm_rms_epsilon'"},
              [] { ConfigOf(Base("llama")); });
  ExpectError(ErrorCode::kDataLoss, {"no key 'gpt2.attention.layer_norm_epsilon'"},
              [] { ConfigOf(Base("gpt2")); });
}

// Files do not contain it: the largest models are recognised by their number of layers.
TEST(GgufConfig, QueryScalarOfGemma) {
  struct Case {
    const char* architecture;
    uint32_t layers;
    int expected;
  };
  for (const Case& item :
       {Case{"gemma2", 26, 32}, {"gemma2", 46, 16}, {"gemma3", 46, 32}, {"gemma3", 62, 16}}) {
    SCOPED_TRACE(item.architecture + std::to_string(item.layers));
    const std::string a = std::string(item.architecture) + ".";
    GgufWriter writer = Base(item.architecture, item.layers);
    writer.Add(a + "attention.layer_norm_rms_epsilon", 1e-6f);
    writer.Add(a + "attention.key_length", uint32_t{32});
    EXPECT_EQ(ConfigOf(writer)["query_pre_attn_scalar"], item.expected);
    writer.Add(a + "attention.scale", 0.125f);
    EXPECT_EQ(ConfigOf(writer)["query_pre_attn_scalar"], 64) << "where the file says it";
  }
}

TEST(GgufConfig, WindowsOfGemma3) {
  const auto gemma = [](const Change& change) {
    GgufWriter writer = Base("gemma3", 3);
    writer.Add("gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    writer.Add("gemma3.attention.sliding_window", uint32_t{512});
    change(writer);
    return ConfigOf(writer);
  };
  constexpr const char* kPattern = "gemma3.attention.sliding_window_pattern";

  const Json array = gemma([&](GgufWriter& w) { w.Add(kPattern, std::vector<int32_t>{1, 0, 1}); });
  const Json number = gemma([&](GgufWriter& w) { w.Add(kPattern, uint32_t{6}); });
  const Json silent = gemma([](GgufWriter&) {});

  EXPECT_EQ(array["layer_types"],
            Json::array({"sliding_attention", "full_attention", "sliding_attention"}));
  EXPECT_EQ(number["sliding_window_pattern"], 6);
  EXPECT_FALSE(number.contains("layer_types"));
  EXPECT_FALSE(silent.contains("layer_types") || silent.contains("sliding_window_pattern"));
  EXPECT_EQ(silent["sliding_window"], 512);
}

TEST(GgufConfig, SparsityOfGemma3nHasANumberPerLayer) {
  const auto gemma = [](const std::vector<float>& deviations) {
    GgufWriter writer = Base("gemma3n");
    writer.Add("gemma3n.attention.layer_norm_rms_epsilon", 1e-6f);
    writer.Add("gemma3n.activation_sparsity_scale", deviations);
    return writer;
  };
  EXPECT_EQ(ConfigOf(gemma({1.6448536f, -INFINITY}))["activation_sparsity_pattern"],
            Json::array({0.95, 0}));
  for (const std::vector<float>& wrong :
       {std::vector<float>{}, {1.6f}, {1.6f, 1.6f, 1.6f}, {1.6f, NAN}}) {
    ExpectError(ErrorCode::kDataLoss, {"'gemma3n.activation_sparsity_scale'"},
                [&] { ConfigOf(gemma(wrong)); });
  }
}

// Expert tensors have unknown shapes and types; the message names the experts first.
TEST(GgufConfig, ExpertsWithoutANumberOfChosenAreRefusedAndTheVocabularyIsStillRead) {
  const GgufWriter writer = Llama([](GgufWriter& w) {
    w.Add("llama.expert_count", uint32_t{8});
    w.AddTensor("blk.0.ffn_gate_exps.weight", tests::kGgufQ8_0, {2, 2, 32}, std::string(136, 'x'));
    w.Add("tokenizer.ggml.model", "llama");
    w.Add("tokenizer.ggml.tokens", std::vector<std::string>{"<unk>", "a"});
    w.Add("tokenizer.ggml.scores", std::vector<float>{0, -1});
  });
  const std::string bytes = writer.Bytes();
  const ModelDir model = ModelDir::FromBytes("test.gguf", std::as_bytes(std::span(bytes)));

  ExpectError(ErrorCode::kDataLoss, {"'llama.expert_used_count'"},
              [&] { model.ReadText("config.json"); });
  EXPECT_TRUE(model.ReadText("tokenizer.model"));
}

}  // namespace
}  // namespace tandem::engine
