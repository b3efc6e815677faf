#include "engine/model/plan_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"

namespace tandem::engine {
namespace {

ForwardPlan Plan(const ModelConfig& config, DType dtype) {
  const FamilySpec& family = FindFamilyByName(config.family);
  return PlanForward(family, config, family.list_weights(config), dtype);
}

struct Interval {
  int64_t begin, end;         // bytes per row
  int32_t first_op, last_op;  // inclusive: inputs and output of an op live at the same time
};

std::vector<Interval> Intervals(const ForwardPlan& plan) {
  std::vector<Interval> all;
  for (const ForwardPlan::Activation& a : plan.activations) {
    all.push_back({a.slot.offset, a.slot.offset + a.slot.bytes, a.first_op, a.last_op});
    if (a.rounded_first_op < 0) continue;
    all.push_back({a.rounded.offset, a.rounded.offset + a.rounded.bytes, a.rounded_first_op,
                   a.rounded_last_op});
  }
  return all;
}

TEST(PlanForward, NothingThatLivesOverlaps) {
  std::vector<ModelConfig> configs = {bench::Llama1BConfig(), bench::Gemma2BConfig()};
  for (const FamilySpec* family : Families())
    configs.push_back(bench::TinyModelConfig(family->name));
  for (const ModelConfig& config : configs) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const ForwardPlan plan = Plan(config, dtype);
      const std::vector<Interval> all = Intervals(plan);
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_GE(all[i].begin, 0);
        EXPECT_LE(all[i].end, plan.arena_bytes_per_row);
        EXPECT_EQ(all[i].begin % 64, 0);
        for (size_t k = 0; k < i; ++k) {
          const bool meet_in_time =
              all[i].first_op <= all[k].last_op && all[k].first_op <= all[i].last_op;
          const bool meet_in_space = all[i].begin < all[k].end && all[k].begin < all[i].end;
          EXPECT_FALSE(meet_in_time && meet_in_space) << i << " and " << k;
        }
      }
    }
  }
}

TEST(PlanForward, TheArenaDoesNotGrowWithTheNumberOfLayers) {
  ModelConfig shallow = bench::TinyLlamaConfig(), deep = bench::TinyLlamaConfig();
  deep.n_layers = 20;

  EXPECT_EQ(Plan(shallow, DType::kBF16).arena_bytes_per_row,
            Plan(deep, DType::kBF16).arena_bytes_per_row);
}

TEST(PlanForward, CountsTheFlopsOfTheLinearLayers) {
  const ModelConfig c = bench::TinyLlamaConfig();  // width 48, 4 heads of 12, 2 KV heads, ffn 80

  const ForwardPlan plan = Plan(c, DType::kBF16);

  EXPECT_EQ(plan.linear_flops_per_row, 2 * 2 * (2 * 48 * 48 + 2 * 24 * 48 + 3 * 48 * 80));
  EXPECT_EQ(plan.head_flops_per_row, 2 * 272 * 48);
  EXPECT_EQ(plan.attention_flops_per_row_and_key, 2 * 4 * 48);
}

TEST(PlanForward, AnInputOfThreeMatricesIsRoundedOnce) {
  const ForwardPlan plan = Plan(bench::TinyMiniGptConfig(), DType::kBF16);
  // Ops 0..2 are the embeddings and their sum; q, k and v share one rounded copy of it.
  const ForwardPlan::Activation& x = plan.activations[2];

  EXPECT_EQ(x.rounded_first_op, 3);
  EXPECT_EQ(x.rounded_last_op, 5);
  EXPECT_EQ(Plan(bench::TinyMiniGptConfig(), DType::kF32).activations[2].rounded_first_op, -1);
}

TEST(PlanForward, PrintsOneLinePerOp) {
  const ModelConfig config = bench::TinyMiniGptConfig();
  const ForwardPlan plan = Plan(config, DType::kF32);

  const std::string text = plan.ToString(FindFamilyByName("minigpt").list_weights(config));

  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), static_cast<int64_t>(plan.ops.size()) + 1);
  EXPECT_NE(text.find("Linear(%2, transformer_blocks.0.mha.query.kernel)"), std::string::npos);
  EXPECT_NE(text.find("arena: " + std::to_string(plan.arena_bytes_per_row)), std::string::npos);
}

void WithoutLogits(const ModelConfig&, const Weights& w, LayerOps& ops) { ops.Embed(w[0]); }

void WrongWidth(const ModelConfig&, const Weights& w, LayerOps& ops) {
  ops.Linear(ops.Embed(w[0]), w[9], nullptr);  // down_proj reads ffn_dim
}

void RoundedResidual(const ModelConfig& c, const Weights& w, LayerOps& ops) {
  const Act x = ops.Embed(w[0]);
  ops.Add(x, ops.RmsNorm(x, w[1], c.norm_eps));
}

TEST(PlanForward, RefusesAFamilyThatBreaksTheRulesBeforeAnyByteIsComputed) {
  const ModelConfig config = bench::TinyLlamaConfig();
  FamilySpec family = FindFamilyByName("llama");
  const auto specs = family.list_weights(config);

  for (const auto forward : {WithoutLogits, WrongWidth, RoundedResidual}) {
    family.forward = forward;
    EXPECT_THROW(PlanForward(family, config, specs, DType::kBF16), Error);
  }
}

}  // namespace
}  // namespace tandem::engine
