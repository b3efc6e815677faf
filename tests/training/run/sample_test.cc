#include "training/run/sample.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

SampleSection Parse(const std::vector<std::string>& words) {
  return ParseTrainSpec("steps: 1\ndataset_path: a\ntokenizer_path: t\n", "spec", words)
      .train.sample;
}

TEST(Samples, MaxTextsStrategiesAreTheServersParameters) {
  const std::vector<std::string> all = {"decode_sampling_temperature=0.5",
                                        "decode_sampling_top_k=7", "decode_sampling_nucleus_p=0.9"};
  const auto params = [&](const std::string& strategy) {
    std::vector<std::string> words = all;
    words.push_back("decode_sampling_strategy=" + strategy);
    return SamplingOf(Parse(words));
  };
  EXPECT_TRUE(params("greedy").greedy());

  EXPECT_EQ(params("weighted").temperature, 0.5f);
  EXPECT_EQ(params("weighted").top_k, 0);
  EXPECT_EQ(params("weighted").top_p, 1);

  EXPECT_EQ(params("nucleus").top_k, 0);
  EXPECT_EQ(params("nucleus").top_p, 0.9f);

  EXPECT_EQ(params("topk").top_k, 7);
  EXPECT_EQ(params("topk").top_p, 1);

  EXPECT_EQ(params("composite").temperature, 0.5f);
  EXPECT_EQ(params("composite").top_k, 7);
  EXPECT_EQ(params("composite").top_p, 0.9f);
}

TEST(Samples, MinusOneIsAll) {
  const auto params =
      SamplingOf(Parse({"decode_sampling_nucleus_p=-1", "decode_sampling_top_k=-1"}));
  EXPECT_EQ(params.top_p, 1);
  EXPECT_EQ(params.top_k, 0);
  EXPECT_THROW(Parse({"train.sample.top_p=1.5"}), Error);
}

}  // namespace
}  // namespace tandem::training
