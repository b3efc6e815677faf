#include "server/models/model_outlook.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/families/family.h"
#include "engine/model/weightless_model.h"

namespace tandem::server {
namespace {

engine::WeightlessModel ModelOf(const engine::ModelConfig& config) {
  return engine::WeightlessModel::FromConfig(
      "m", engine::FindFamilyByName(config.family).write_config(config).dump());
}

// 10 GB/s of weights and 1 TFLOP/s, whatever the format.
FormatSpeed EvenSpeed(const std::string& /*format*/) {
  return {.bytes_per_second = 1e10, .flops = 1e12};
}

const DTypeOutlook& Of(const ModelOutlook& outlook, const std::string& dtype) {
  for (const DTypeOutlook& candidate : outlook.dtypes) {
    if (candidate.dtype == dtype) return candidate;
  }
  throw Error(ErrorCode::kNotFound, dtype);
}

TEST(ModelOutlook, IsTheWeightsOverTheSpeeds) {
  const auto model = ModelOf(bench::Llama1BConfig());

  const ModelOutlook outlook = MakeOutlook(model.dir(), {.memory_bytes = 64LL << 30}, EvenSpeed);

  ASSERT_EQ(outlook.dtypes.size(), 3u);
  EXPECT_EQ(outlook.dtypes.front().dtype, "bf16");
  EXPECT_TRUE(outlook.dtypes.front().is_default);
  for (const DTypeOutlook& dtype : outlook.dtypes) {
    EXPECT_NEAR(dtype.decode_tokens_per_second * static_cast<double>(dtype.read_bytes), 1e10, 1e5);
    // 973 million weights of layers; the head is for one row of a prompt.
    EXPECT_NEAR(dtype.prefill_tokens_per_second, 1e12 / (2 * 973.1e6), 1);
    EXPECT_EQ(dtype.fitting_context, 131072);
  }
  EXPECT_GT(Of(outlook, "int8").decode_tokens_per_second,
            1.8 * Of(outlook, "bf16").decode_tokens_per_second);
  EXPECT_GT(Of(outlook, "int4").decode_tokens_per_second,
            1.5 * Of(outlook, "int8").decode_tokens_per_second);
}

TEST(ModelOutlook, AsksForEachFormatOnce) {
  const auto model = ModelOf(bench::Llama1BConfig());
  std::vector<std::string> asked;
  MakeOutlook(model.dir(), {}, [&](const std::string& format) {
    asked.push_back(format);
    return EvenSpeed(format);
  });
  EXPECT_EQ(asked, (std::vector<std::string>{"bf16", "int8", "int4", "int6"}));
}

TEST(ModelOutlook, CountsTheExpertsThatATokenReads) {
  const auto model = ModelOf(bench::Qwen3MoeConfig(48));
  const ModelOutlook outlook = MakeOutlook(model.dir(), {}, EvenSpeed);
  const DTypeOutlook& int4 = Of(outlook, "int4");
  EXPECT_GT(int4.plan.parameters, 30'000'000'000);
  EXPECT_LT(int4.plan.active_parameters, 3'500'000'000);
  EXPECT_LT(int4.read_bytes * 7, int4.plan.least.weights);
}

TEST(ModelOutlook, ATableThatIsNotTheHeadIsNotRead) {
  engine::ModelConfig config = bench::Llama1BConfig();
  const int64_t tied = Of(MakeOutlook(ModelOf(config).dir(), {}, EvenSpeed), "bf16").read_bytes;
  config.tied_embeddings = false;
  const int64_t own = Of(MakeOutlook(ModelOf(config).dir(), {}, EvenSpeed), "bf16").read_bytes;
  EXPECT_EQ(own, tied);
}

TEST(ModelOutlook, TheFittingContextFitsAndALongerOneDoesNot) {
  const auto model = ModelOf(bench::Llama1BConfig());
  const auto fitting = [&](int64_t memory_bytes, int64_t max_model_len = 0) {
    return Of(
        MakeOutlook(model.dir(), {.memory_bytes = memory_bytes, .max_model_len = max_model_len},
                    EvenSpeed),
        "bf16");
  };
  const int64_t budget = 4LL << 30;
  const int64_t context = fitting(budget).fitting_context;
  ASSERT_GT(context, 1024);
  ASSERT_LT(context, 131072);
  EXPECT_LE(fitting(budget, context).plan.least.total(), budget);
  EXPECT_GT(fitting(budget, context + 2048).plan.least.total(), budget);
  EXPECT_EQ(fitting(1 << 20).fitting_context, 0);
}

TEST(ModelOutlook, WithoutADefaultNamesOnlyTheDTypesThatOneCanAskFor) {
  const auto model = ModelOf(bench::Llama1BConfig());
  const ModelOutlook outlook = MakeOutlook(model.dir(), {.has_default = false}, EvenSpeed);
  ASSERT_EQ(outlook.dtypes.size(), 3u);
  for (const DTypeOutlook& dtype : outlook.dtypes) EXPECT_FALSE(dtype.is_default);
}

}  // namespace
}  // namespace tandem::server
