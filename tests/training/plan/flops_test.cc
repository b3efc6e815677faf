#include <gtest/gtest.h>

#include <algorithm>

#include "bench/models/random_model.h"
#include "engine/model/families/family.h"
#include "engine/tensor/bfloat16.h"
#include "training/program/program.h"

namespace tandem::training {
namespace {

// MaxText's count of the model FLOPs of one training step of a dense decoder, in TFLOP. Three times
// the forward of all linear layers and causal attention: with the head, without embedding look-ups.
// `rows` sequences have `row_length` tokens each. `gated`: MLPs have two input projections.
double TflopPerStep(const engine::ModelConfig& config, bool gated, int64_t rows,
                    int64_t row_length) {
  const auto b = static_cast<double>(rows);
  const auto s = static_cast<double>(row_length);
  const double tokens = b * s;
  const auto hidden = static_cast<double>(config.hidden_dim);
  const auto ffn_dim = static_cast<double>(config.ffn_dim);

  const double ffn =
      2 * tokens * hidden * ffn_dim * (gated ? 2 : 1) + 2 * tokens * ffn_dim * hidden;
  const double unembed = 2 * tokens * hidden * static_cast<double>(config.vocab_size);
  double attention = 0;    // of all layers
  double projections = 0;  // q, k, v and the output, of all layers
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const engine::AttentionSpec a = config.LayerAttention(layer);
    const auto w = static_cast<double>(a.window > 0 ? std::min(a.window, row_length) : row_length);
    const auto both_dims = static_cast<double>(a.head_dim + a.value_dim());
    const bool is_chunked = a.chunk > 0 && a.chunk < row_length;
    const double pairs = is_chunked ? s * static_cast<double>(a.chunk) / 2 : s * w - w * w / 2;
    attention += 2 * b * pairs * static_cast<double>(a.n_heads) * both_dims;
    projections += 2 * tokens * hidden * static_cast<double>(a.n_heads + a.n_kv_heads) * both_dims;
  }
  const auto layers = static_cast<double>(config.n_layers);
  return 3 * (layers * ffn + projections + attention + unembed) / 1e12;
}

int64_t Parameters(const engine::ModelConfig& config) {
  int64_t count = 0;
  for (const auto& spec : engine::FindFamilyByName(config.family).list_weights(config)) {
    count += spec.n * spec.k;
  }
  return count;
}

engine::ModelConfig TutorialMiniGpt(int64_t blocks) {
  engine::ModelConfig c;
  c.family = "minigpt";
  c.n_layers = blocks;
  c.hidden_dim = 256;
  c.ffn_dim = 256;
  c.vocab_size = 50257;
  c.max_context_len = 256;
  c.attention.n_heads = 8;
  c.attention.n_kv_heads = 8;
  c.attention.head_dim = 32;
  return c;
}

TEST(ParameterCount, OfTheTutorialsMiniGpt) {
  EXPECT_EQ(Parameters(TutorialMiniGpt(4)), 27430481);
  EXPECT_EQ(Parameters(TutorialMiniGpt(8)), 29013585);
}

TEST(ParameterCount, OfGemma2) {
  EXPECT_EQ(Parameters(bench::Gemma2BConfig()), 2614341888);

  engine::ModelConfig nine = bench::Gemma2BConfig();
  nine.n_layers = 42;
  nine.hidden_dim = 3584;
  nine.ffn_dim = 14336;
  nine.attention.n_heads = 16;
  nine.attention.n_kv_heads = 8;
  EXPECT_EQ(Parameters(nine), 9241705984);
}

// The share of bf16 mantissas that survive Gemma's embedding scale, sqrt(2304) = 48, and its
// inverse.
TEST(Bf16, SurvivesTimes48AndBackInFiveOfSixMantissas) {
  int same = 0;
  for (engine::Bf16 mantissa = 0; mantissa < 128; ++mantissa) {
    const auto value = static_cast<engine::Bf16>(0x3f80 | mantissa);
    const engine::Bf16 scaled = engine::FloatToBf16(engine::Bf16ToFloat(value) * 48);
    same += engine::FloatToBf16(engine::Bf16ToFloat(scaled) / 48) == value ? 1 : 0;
  }
  EXPECT_EQ(same, 107);  // 83.59 %
}

// MaxText's own figure for Gemma 2 2B, batch 8, length 1024, padded vocabulary.
TEST(TflopPerStep, AgreesWithMaxTextForGemma2) {
  engine::ModelConfig c;
  c.n_layers = 26;
  c.hidden_dim = 2304;
  c.ffn_dim = 9216;
  c.vocab_size = 256128;
  c.attention.n_heads = 8;
  c.attention.n_kv_heads = 4;
  c.attention.head_dim = 256;

  EXPECT_NEAR(TflopPerStep(c, true, 8, 1024), 131.182797, 1e-4);
}

TEST(TflopPerStep, IsWhatTheProgramCounts) {
  for (const engine::FamilySpec* family : engine::Families()) {
    const engine::ModelConfig config = bench::TinyModelConfig(family->name);
    const bool is_dense = config.recurrent.layers.empty() && config.experts.router.n_experts == 0 &&
                          config.layer_attention.empty() && config.latent.kv_rank == 0;
    if (!is_dense) continue;
    SCOPED_TRACE(family->name);
    RecordOptions options;
    options.rows = 64;
    options.row_length = 32;
    options.max_segments = 2;
    const Program program = Record(engine::FindFamilyByName(config.family), config, options);
    const bool gated =
        std::any_of(program.nodes.begin(), program.nodes.end(),
                    [](const Node& node) { return node.op == OpKind::kGatedActivation; });

    EXPECT_NEAR(TflopPerStep(config, gated, 2, 32) * 1e12,
                static_cast<double>(program.training_flops()), 1);
  }
}

}  // namespace
}  // namespace tandem::training
