#include "engine/tools/logit_distance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "tests/support/model_harness.h"
#include "tests/support/paths.h"

namespace tandem::engine {
namespace {

class LogitDistanceTest : public ::testing::Test {
 protected:
  std::shared_ptr<const Model> Load(const LoadOptions& options,
                                    const char* name = "llama2-tiny-two-shards") {
    return Model::Load(ModelDir::Open(tests::SourceDir() / "tests/golden" / name), options, ops_);
  }
  std::vector<TokenId> Tokens(const Model& model, int64_t n) {
    std::vector<TokenId> tokens;
    for (int64_t i = 0; i < n; ++i) {
      tokens.push_back(static_cast<TokenId>(i * 31 % model.config().vocab_size));
    }
    return tokens;
  }
  LogitDistance Measure(const std::shared_ptr<const Model>& a,
                        const std::shared_ptr<const Model>& b, std::span<const TokenId> tokens,
                        int64_t window) {
    return MeasureLogitDistance(a, b, tokens, window, ops_);
  }
  std::string Refusal(const std::function<void()>& action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "nothing was refused";
  }

  ThreadPool pool_{2};
  OpsContext ops_{Kernels(), pool_};
};

TEST_F(LogitDistanceTest, AModelIsNotFarFromItself) {
  const auto model = Load({.dtype = DType::kF32});
  const LogitDistance d = Measure(model, model, Tokens(*model, 100), 40);

  EXPECT_EQ(d.n_positions, 100);
  EXPECT_EQ(d.mean_kl, 0);
  EXPECT_EQ(d.max_kl, 0);
  EXPECT_EQ(d.same_first_choice, 1);
  EXPECT_EQ(d.perplexity, d.reference_perplexity);
}

TEST_F(LogitDistanceTest, PerplexityIsThatOfTheLogits) {
  const auto model = Load({.dtype = DType::kF32});
  const std::vector<TokenId> tokens = Tokens(*model, 90);
  const LogitDistance d = Measure(model, model, tokens, 90);

  tests::ModelHarness harness(tests::SourceDir() / "tests/golden/llama2-tiny-two-shards",
                              {.dtype = DType::kF32});
  const std::vector<float> logits = harness.Prefill(tokens, 0);
  const auto vocab = static_cast<size_t>(harness.vocab_size());
  double loss = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    double sum = 0;
    for (size_t v = 0; v < vocab; ++v) sum += std::exp(double{logits[i * vocab + v]});
    loss += std::log(sum) - logits[i * vocab + static_cast<size_t>(tokens[i + 1])];
  }
  EXPECT_NEAR(d.perplexity / std::exp(loss / 89), 1, 1e-6);
}

TEST_F(LogitDistanceTest, FewerBitsAreFarther) {
  const auto bf16 = Load({.dtype = DType::kBF16});
  const auto int8 = Load({.block = BlockFormat::kInt8});
  const auto int4 = Load({.block = BlockFormat::kInt4});
  const std::vector<TokenId> tokens = Tokens(*bf16, 120);
  const LogitDistance near = Measure(bf16, int8, tokens, 64);
  const LogitDistance far = Measure(bf16, int4, tokens, 64);

  EXPECT_GT(near.mean_kl, 1e-9);
  EXPECT_GT(far.mean_kl, 4 * near.mean_kl);
  EXPECT_GE(near.max_kl, near.mean_kl);
  EXPECT_LE(far.same_first_choice, near.same_first_choice);
}

// A comparison with recorded logits gives the same bits as one with the loaded model.
TEST_F(LogitDistanceTest, ARecordStandsForItsModel) {
  const auto bf16 = Load({.dtype = DType::kBF16});
  const auto int8 = Load({.block = BlockFormat::kInt8});
  const std::vector<TokenId> tokens = SpreadTokens(bf16->config().vocab_size, 100);
  const LogitRecord record = RecordLogits(bf16, nullptr, tokens, 70, ops_);
  const LogitDistance apart = MeasureLogitDistance(record, int8, ops_);
  const LogitDistance together = Measure(bf16, int8, tokens, 70);

  EXPECT_EQ(apart.n_positions, 100);
  EXPECT_GT(apart.max_abs_difference, 0);
  EXPECT_EQ(apart.max_abs_difference, together.max_abs_difference);
  EXPECT_EQ(apart.mean_kl, together.mean_kl);
  EXPECT_EQ(apart.max_kl, together.max_kl);
  EXPECT_EQ(apart.perplexity, together.perplexity);
  EXPECT_EQ(apart.reference_perplexity, together.reference_perplexity);
  const LogitRecord ours = RecordLogits(int8, nullptr, tokens, 70, ops_);
  EXPECT_EQ(LargestLogitDifference(record.logits, ours.logits), apart.max_abs_difference);
}

TEST_F(LogitDistanceTest, WhatCannotBeComparedIsRefused) {
  const auto model = Load({});
  const auto other = Load({}, "gemma2-tiny");
  const std::vector<TokenId> tokens = Tokens(*model, 4);
  const std::vector<TokenId> outside = {0, static_cast<TokenId>(model->config().vocab_size)};

  EXPECT_NE(
      Refusal([&] { Measure(model, model, std::span(tokens).first(1), 4); }).find("two tokens"),
      std::string::npos);
  EXPECT_NE(Refusal([&] { Measure(model, model, outside, 4); }).find("is outside the vocabulary"),
            std::string::npos);
  EXPECT_NE(Refusal([&] {
              Measure(model, model, tokens, model->config().max_context_len + 1);
            }).find("context"),
            std::string::npos);
  ASSERT_NE(model->config().vocab_size, other->config().vocab_size);
  EXPECT_NE(Refusal([&] { Measure(model, other, tokens, 4); }).find("vocabularies"),
            std::string::npos);
}

// Attention of every kind: heads in groups, windows with caps, sinks, latent attention, chunks, and
// beside recurrent layers. The largest distance of a token measured on these is 0.026.
TEST_F(LogitDistanceTest, Int8KeysAndValuesStayNearOnTheGoldens) {
  for (const char* name :
       {"llama2-tiny-two-shards", "gemma2-tiny", "gpt_oss-tiny", "deepseek_v3-tiny", "llama4-tiny",
        "qwen3_next-tiny", "falcon_h1-tiny"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto model = Load({.dtype = dtype}, name);
      const std::vector<TokenId> tokens = Tokens(*model, 96);
      const LogitDistance d = MeasureLogitDistance(model, model, tokens, 48, ops_, KvFormat::kInt8);
      EXPECT_GT(d.mean_kl, 0) << name;
      EXPECT_LT(d.mean_kl, 2e-3) << name;
      EXPECT_LT(d.max_kl, 0.1) << name;
      RecordProperty(std::string(name) + "." + std::string(DTypeName(dtype)),
                     std::to_string(d.mean_kl));
    }
  }
}

}  // namespace
}  // namespace tandem::engine
