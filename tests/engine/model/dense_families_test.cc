#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using OrderedJson = nlohmann::ordered_json;

ModelConfig ParsedAs(const char* model_type, const OrderedJson& fields) {
  OrderedJson json{
      {"model_type", model_type},      {"vocab_size", 256},      {"hidden_size", 48},
      {"intermediate_size", 64},       {"num_hidden_layers", 4}, {"num_attention_heads", 4},
      {"max_position_embeddings", 128}};
  json.update(fields);
  return FindFamily(json, "config.json").parse_config(json, "config.json");
}

std::string RefusalAs(const char* model_type, const OrderedJson& fields, ErrorCode code) {
  try {
    ParsedAs(model_type, fields);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
}

OrderedJson LongRope(size_t pairs) {
  return {{"rope_type", "longrope"},
          {"short_factor", std::vector<double>(pairs, 1.5)},
          {"long_factor", std::vector<double>(pairs, 4.0)}};
}

TEST(Phi3Config, LongRopeHasShortFactorsUpToTheOriginalLengthAndLongOnesBeyond) {
  const ModelConfig c =
      ParsedAs("phi3", {{"rope_scaling", LongRope(6)}, {"original_max_position_embeddings", 32}});
  const FamilySpec& family = FindFamilyByName("phi3");
  const double plain = std::pow(10000.0, -2.0 / 12);

  for (const auto& [context, factor] : {std::pair<int64_t, double>{32, 1.5}, {33, 4.0}}) {
    ModelConfig lowered = c;
    lowered.max_context_len = context;
    const RopeSpec rope = family.list_ropes(lowered).at(0);
    EXPECT_DOUBLE_EQ(rope.frequencies.at(1), plain / factor) << context;
    EXPECT_DOUBLE_EQ(rope.amplitude, std::sqrt(1 + std::log(4.0) / std::log(32.0)));
  }
  EXPECT_EQ(c.max_context_len, 128);
}

// The lengths of a model's tables choose, so training on short rows equals serving with the
// default.
TEST(Phi3Config, TablesOfShortRowsHaveTheShortFactors) {
  const ModelConfig c =
      ParsedAs("phi3", {{"rope_scaling", LongRope(6)}, {"original_max_position_embeddings", 32}});
  const FamilySpec& family = FindFamilyByName("phi3");
  const std::vector<int32_t> first = {1};

  const std::vector<RopeTable> tables = MakeRopeTables(family, c, 32);
  const std::vector<RopeTable> longer = MakeRopeTables(family, c, 128);

  ModelConfig lowered = c;
  lowered.max_context_len = 32;
  const RopeSpec rope = family.list_ropes(lowered).at(0);
  EXPECT_FLOAT_EQ(tables.at(0).RowsOf(first)[12],
                  static_cast<float>(rope.amplitude * std::cos(rope.frequencies[0])));
  EXPECT_NE(tables.at(0).RowsOf(first)[12], longer.at(0).RowsOf(first)[12]);
}

TEST(Phi3Load, ContextIsTheOriginalLengthUnlessAnotherOneIsGiven) {
  const tests::TemporaryDir dir;
  ModelConfig config = bench::TinyModelConfig("phi3");
  config.rope_scaling = {.kind = RopeKind::kLong,
                         .factor = 4,
                         .original_max_positions = 64,
                         .short_factors = std::vector<double>(4, 1.0),
                         .long_factors = std::vector<double>(4, 2.0)};
  bench::WriteRandomModel({.config = config}, dir.path() / "model");
  const ModelDir model = ModelDir::Open(dir.path() / "model");
  const auto context = [&](int64_t asked) {
    LoadOptions options;
    options.max_context_len = asked;
    return OutlineModel(model, options).max_context_len;
  };

  EXPECT_EQ(context(0), 64);
  EXPECT_EQ(context(40), 40);
  EXPECT_EQ(context(200), 200);
  EXPECT_EQ(context(100000), config.max_context_len);
}

TEST(PartialRope, RotaryFactorGivesBackTheNumberOfDimensions) {
  for (const char* type : {"glm", "glm4", "phi3"}) {
    for (int64_t head_dim = 4; head_dim <= 256; head_dim += 2) {
      for (int64_t rotary = 2; rotary <= head_dim; rotary += 2) {
        ModelConfig c = bench::TinyModelConfig(type);
        c.attention.head_dim = head_dim;
        c.attention.n_kv_heads = c.attention.n_heads;
        c.rotary_dim = rotary == head_dim ? 0 : rotary;
        const OrderedJson written = FindFamilyByName(type).write_config(c);
        const double factor = written["partial_rotary_factor"].get<double>();
        ASSERT_EQ(static_cast<int64_t>(static_cast<double>(head_dim) * factor), rotary)
            << type << " " << head_dim;
      }
    }
  }
}

TEST(SmolLm3Config, LayersWithoutRopeAreListedOrEachFourth) {
  constexpr int8_t kNone = ModelConfig::kNoRope;
  EXPECT_EQ(ParsedAs("smollm3", OrderedJson::object()).layer_ropes,
            (std::vector<int8_t>{0, 0, 0, kNone}));
  EXPECT_EQ(ParsedAs("smollm3", {{"no_rope_layer_interval", 2}}).layer_ropes,
            (std::vector<int8_t>{0, kNone, 0, kNone}));
  EXPECT_EQ(ParsedAs("smollm3", {{"no_rope_layers", {0, 1, 1, 0}}}).layer_ropes,
            (std::vector<int8_t>{kNone, 0, 0, kNone}));
  const ModelConfig c = ParsedAs("smollm3", {{"use_sliding_window", true}, {"sliding_window", 16}});
  EXPECT_EQ(c.LayerAttention(0).window, 0);
  EXPECT_EQ(c.LayerAttention(3).window, 16);
}

TEST(Olmo3Config, ScalingAppliesToLayersWithoutAWindowInBothSpellings) {
  const OrderedJson linear{{"rope_type", "linear"}, {"factor", 4.0}};
  OrderedJson full = linear;
  full["rope_theta"] = 500000.0;
  const OrderedJson nested{
      {"rope_parameters",
       {{"full_attention", full},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 500000.0}}}}}};
  for (const OrderedJson& fields :
       {nested, OrderedJson{{"rope_theta", 500000.0}, {"rope_scaling", linear}}}) {
    const ModelConfig c = ParsedAs("olmo3", fields);
    const std::vector<RopeSpec> ropes = FindFamilyByName("olmo3").list_ropes(c);

    ASSERT_EQ(ropes.size(), 2u);
    EXPECT_DOUBLE_EQ(ropes[0].frequencies[1] * 4, ropes[1].frequencies[1]);
    EXPECT_EQ(c.LayerRope(0), 1);
    EXPECT_EQ(c.LayerRope(3), 0);
    EXPECT_EQ(c.LayerAttention(0).window, 4096);
    EXPECT_EQ(c.LayerAttention(3).window, 0);
  }
}

TEST(GraniteConfig, MultipliersReachScoresAndLogits) {
  const ModelConfig c = ParsedAs("granite", {{"embedding_multiplier", 12},
                                             {"residual_multiplier", 0.22},
                                             {"attention_multiplier", 0.015625},
                                             {"logits_scaling", 16}});
  EXPECT_EQ(c.embedding_multiplier, 12);
  EXPECT_EQ(c.residual_multiplier, 0.22f);
  EXPECT_EQ(c.attention.scale, 0.015625f);
  EXPECT_EQ(c.logit_multiplier, 0.0625f);
}

TEST(DenseFamilies, HostileConfigsAreRefusedByField) {
  struct Row {
    const char* type;
    OrderedJson fields;
    ErrorCode code;
    const char* expected;
  };
  OrderedJson no_list = LongRope(6);
  no_list["long_factor"] = 3;
  OrderedJson texts = LongRope(6);
  texts["short_factor"] = {"a", "b", "c", "d", "e", "f"};
  const Row rows[] = {
      {"phi3",
       {{"rope_scaling", LongRope(5)}},
       ErrorCode::kDataLoss,
       "'short_factor' must have 6 numbers, got 5"},
      {"phi3", {{"rope_scaling", no_list}}, ErrorCode::kDataLoss, "'long_factor' must be a list"},
      {"phi3", {{"rope_scaling", texts}}, ErrorCode::kDataLoss, "'short_factor'"},
      {"phi3", {{"rope_scaling", LongRope(2000)}}, ErrorCode::kDataLoss, "2000 numbers"},
      {"phi3",
       {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}}},
       ErrorCode::kUnsupported,
       "'dynamic'"},
      {"phi3", {{"partial_rotary_factor", 0.3}}, ErrorCode::kDataLoss, "'partial_rotary_factor'"},
      {"phi3", {{"partial_rotary_factor", 0.01}}, ErrorCode::kDataLoss, "'partial_rotary_factor'"},
      {"glm4",
       {{"head_dim", 16}, {"partial_rotary_factor", 1.5}},
       ErrorCode::kDataLoss,
       "'partial_rotary_factor'"},
      {"llama", {{"rope_scaling", LongRope(6)}}, ErrorCode::kUnsupported, "'longrope'"},
      {"granite",
       {{"partial_rotary_factor", 0.5}},
       ErrorCode::kUnsupported,
       "'partial_rotary_factor'"},
      {"granite", {{"logits_scaling", 0}}, ErrorCode::kDataLoss, "'logits_scaling'"},
      {"olmo", {{"clip_qkv", -1}}, ErrorCode::kDataLoss, "'clip_qkv'"},
      {"olmo3", {{"layer_types", {"full_attention"}}}, ErrorCode::kDataLoss, "'layer_types'"},
      {"olmo3",
       {{"sliding_window", nullptr},
        {"layer_types", std::vector<std::string>(4, "sliding_attention")}},
       ErrorCode::kDataLoss,
       "'sliding_window'"},
      {"olmo3",
       {{"layer_types", std::vector<std::string>(4, "linear_attention")}},
       ErrorCode::kUnsupported,
       "'linear_attention'"},
      {"olmo3",
       {{"rope_parameters", {{"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}}}},
       ErrorCode::kUnsupported,
       "'sliding_attention'"},
      {"smollm3", {{"no_rope_layers", {1, 0}}}, ErrorCode::kDataLoss, "'no_rope_layers'"},
      {"smollm3", {{"no_rope_layers", {1, 0, 2, 1}}}, ErrorCode::kDataLoss, "'no_rope_layers'"},
      {"smollm3",
       {{"layer_types", std::vector<std::string>(4, "sliding_attention")}},
       ErrorCode::kDataLoss,
       "'sliding_window'"},
      {"seed_oss",
       {{"num_key_value_heads", 4}, {"residual_dropout", 2}},
       ErrorCode::kDataLoss,
       "'residual_dropout'"},
      {"seed_oss",
       {{"num_key_value_heads", 4}, {"hidden_act", "tanh"}},
       ErrorCode::kUnsupported,
       "'hidden_act'"},
  };
  for (const Row& row : rows) {
    EXPECT_NE(RefusalAs(row.type, row.fields, row.code).find(row.expected), std::string::npos)
        << row.type << " " << row.fields << ": " << RefusalAs(row.type, row.fields, row.code);
  }
}

}  // namespace
}  // namespace tandem::engine
