#include "training/flops.h"

#include <gtest/gtest.h>

#include "engine/model/family.h"
#include "engine/model/random_model.h"
#include "training/program/program.h"

namespace tandem::training {
namespace {

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
    const engine::ModelConfig config = engine::TinyModelConfig(family->name);
    const bool gated = config.family != "minigpt" && config.family != "gpt2";
    RecordOptions options;
    options.rows = 64;
    options.row_length = 32;
    options.max_segments = 2;
    const Program program = Record(engine::FindFamilyByName(config.family), config, options);

    EXPECT_NEAR(TflopPerStep(config, gated, 2, 32) * 1e12,
                static_cast<double>(program.training_flops()), 1);
  }
}

}  // namespace
}  // namespace tandem::training
