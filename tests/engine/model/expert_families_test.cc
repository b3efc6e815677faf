#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "engine/model/plan_ops.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// The message with which a config is refused; empty if it is accepted.
std::string Refusal(Json json, const Json& changes) {
  json.update(changes);
  try {
    FindFamily(json, "config.json").parse_config(json, "config.json");
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

Json ConfigOf(const char* family) {
  const ModelConfig config = bench::TinyModelConfig(family);
  return FindFamilyByName(family).write_config(config);
}

TEST(ExpertConfigs, ContradictionsAreRefusedNamingTheField) {
  struct Change {
    const char* family;
    Json changes;
    const char* field;
  };
  const std::vector<Change> changes = {
      {"qwen3_moe", {{"num_experts", 0}}, "num_experts"},
      {"qwen3_moe", {{"num_experts", 1LL << 40}}, "num_experts"},
      {"qwen3_moe", {{"num_experts_per_tok", 21}}, "num_experts_per_tok"},
      {"qwen3_moe", {{"num_experts_per_tok", -1}}, "num_experts_per_tok"},
      {"qwen3_moe", {{"moe_intermediate_size", 0}}, "moe_intermediate_size"},
      {"qwen3_moe", {{"decoder_sparse_step", 0}}, "decoder_sparse_step"},
      {"qwen3_moe", {{"mlp_only_layers", 3}}, "mlp_only_layers"},
      {"qwen3_moe", {{"mlp_only_layers", {"x"}}}, "mlp_only_layers"},
      {"qwen3_moe", {{"router_aux_loss_coef", -1}}, "router_aux_loss_coef"},
      {"mixtral", {{"num_local_experts", 1}}, "num_experts_per_tok"},
      {"olmoe", {{"clip_qkv", 4.0}}, "clip_qkv"},
      {"glm4_moe", {{"n_group", 3}}, "n_group"},
      {"glm4_moe", {{"topk_group", 6}}, "topk_group"},
      {"glm4_moe", {{"num_experts_per_tok", 9}}, "topk_group"},
      {"glm4_moe", {{"n_group", 20}, {"topk_group", 20}}, "n_group"},
      {"ernie4_5_moe", {{"use_bias", true}}, "use_bias"},
      {"ernie4_5_moe", {{"moe_norm_min", 0.5}}, "moe_norm_min"},
      {"ernie4_5_moe", {{"moe_layer_interval", 0}}, "moe_layer_interval"},
      {"minimax_m2", {{"scoring_func", "softmax"}}, "scoring_func"},
      {"qwen2_moe", {{"shared_expert_intermediate_size", -3}}, "shared_expert_intermediate_size"},
  };
  for (const Change& change : changes) {
    const std::string refusal = Refusal(ConfigOf(change.family), change.changes);
    EXPECT_NE(refusal.find(change.field), std::string::npos)
        << change.family << " " << change.changes.dump() << ": " << refusal;
    EXPECT_TRUE(refusal.starts_with("config.json")) << refusal;
  }
}

TEST(ExpertConfigs, SparseLayersAreTheListedOnes) {
  Json json = ConfigOf("qwen3_moe");
  json.update({{"num_hidden_layers", 6}, {"decoder_sparse_step", 2}, {"mlp_only_layers", {3, 99}}});
  const ModelConfig config = FindFamily(json, "config.json").parse_config(json, "config.json");
  std::vector<bool> has;
  for (int64_t layer = 0; layer < 6; ++layer) has.push_back(config.HasExperts(layer));
  EXPECT_EQ(has, (std::vector<bool>{false, true, false, false, false, true}));
}

// A fuzzer found that ERNIE's interval was written as 2 for experts in more than two neighbours.
TEST(ExpertConfigs, LayersWithExpertsSurviveBeingWritten) {
  int checked = 0;
  for (const FamilySpec* family : Families()) {
    for (const Json& fields :
         {Json::object(), Json{{"moe_layer_interval", 3}},
          Json{{"moe_layer_start_index", 2}, {"moe_layer_end_index", 5}},
          Json{{"decoder_sparse_step", 2}}, Json{{"first_k_dense_replace", 4}}}) {
      Json json = {{"architectures", {family->architectures.front()}}, {"num_hidden_layers", 7}};
      json.update(fields);
      if (!ErrorOf([&] { family->parse_config(json, "config.json"); })) {
        const ModelConfig first = family->parse_config(json, "config.json");
        const ModelConfig again = family->parse_config(family->write_config(first), "written");
        ASSERT_EQ(again.n_layers, first.n_layers) << family->name;
        for (int64_t layer = 0; layer < first.n_layers; ++layer) {
          EXPECT_EQ(again.HasExperts(layer), first.HasExperts(layer))
              << family->name << " " << fields << " " << layer;
          EXPECT_EQ(again.IsRecurrent(layer), first.IsRecurrent(layer)) << family->name;
          EXPECT_EQ(again.LayerAttention(layer).window, first.LayerAttention(layer).window)
              << family->name << " " << layer;
        }
        ++checked;
      }
    }
  }
  EXPECT_GE(checked, 5 * 40);
}

TEST(ExpertWeights, AMissingTensorOfOneExpertIsNamed) {
  const tests::TemporaryDir dir;
  ModelConfig config = bench::TinyModelConfig("mixtral");
  bench::WriteRandomModel({.config = config}, dir.path() / "m");
  // A config with one more expert than the file.
  const ModelDir files = ModelDir::Open(dir.path() / "m");
  EXPECT_NO_THROW(OutlineModel(files, {}));
  ++config.experts.router.n_experts;
  bench::WriteRandomModel({.config = config, .seed = 2}, dir.path() / "more");
  std::filesystem::copy_file(dir.path() / "more" / "config.json", dir.path() / "m" / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  try {
    OutlineModel(ModelDir::Open(dir.path() / "m"), {});
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.find("block_sparse_moe.gate.weight") != std::string::npos ||
                message.find("block_sparse_moe.experts.20.w1.weight") != std::string::npos)
        << message;
  }
}

TEST(ExpertWeights, ActiveOnesAreThoseOfTheChosenExperts) {
  const tests::TemporaryDir dir;
  for (const FamilySpec* family : Families()) {
    const ModelConfig config = bench::TinyModelConfig(family->name);
    const auto specs = family->list_weights(config);
    int64_t all = 0, experts = 0;
    for (const WeightSpec& spec : specs) {
      all += spec.n * spec.k;
      if (spec.name.find("experts.") == std::string::npos || spec.k == 1) continue;
      if (spec.name.find("shared") == std::string::npos) experts += spec.n * spec.k;
    }
    const std::vector<double> shares =
        PlanForward(*family, config, specs, DType::kBF16).ActiveShares(specs.size());
    double active = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      active += shares[i] * static_cast<double>(specs[i].n * specs[i].k);
    }
    const RouterSpec& router = config.experts.router;
    const double chosen = router.n_experts == 0 ? 0.0
                                                : static_cast<double>(router.top_k) /
                                                      static_cast<double>(router.n_experts);
    if (router.n_experts == 0) {
      EXPECT_EQ(active, static_cast<double>(all)) << family->name;
    } else if (experts > 0) {
      EXPECT_LT(active, static_cast<double>(all)) << family->name;
      EXPECT_GE(active,
                static_cast<double>(all - experts) + chosen * static_cast<double>(experts) - 1)
          << family->name;
    }
  }
}

TEST(ExpertWeights, RoutersStayInTheComputeTypeWhenMatricesBecomeIntegers) {
  const tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyModelConfig("qwen3_moe")}, dir.path() / "m");
  const ModelOutline outline =
      OutlineModel(ModelDir::Open(dir.path() / "m"), {.block = BlockFormat::kInt4});
  int routers = 0, experts = 0;
  for (size_t i = 0; i < outline.specs.size(); ++i) {
    const std::string& name = outline.specs[i].name;
    if (name.ends_with("mlp.gate.weight")) {
      EXPECT_EQ(outline.types.blocks[i], BlockFormat::kNone) << name;
      ++routers;
    } else if (name.find("experts.") != std::string::npos) {
      EXPECT_EQ(outline.types.blocks[i], BlockFormat::kInt4) << name;
      ++experts;
    }
  }
  EXPECT_EQ(routers, 1);
  EXPECT_EQ(experts, 60);
  EXPECT_LT(outline.active_weight_bytes, outline.weight_bytes);
  EXPECT_LT(outline.active_parameters, outline.parameter_count());
}

}  // namespace
}  // namespace tandem::engine
