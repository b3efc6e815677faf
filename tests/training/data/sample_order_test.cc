#include "training/data/order/sample_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "engine/base/error.h"
#include "training/data/order/grain_permutation.h"
#include "training/data/packer.h"

namespace tandem::training {
namespace {

std::vector<int64_t> Epochs(const SampleOrder& order, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(order.IndexOf(i));
  return indices;
}

// The values are those of Grain's own test of its IndexSampler, and of our reference computation.
TEST(GrainOrder, IsThatOfItsSampler) {
  const SampleOrder order{.n = 5, .kind = OrderKind::kGrain, .seed = 32};
  EXPECT_EQ(Epochs(order, 10), (std::vector<int64_t>{2, 4, 3, 0, 1, 0, 2, 4, 1, 3}));
  const SampleOrder three{.n = 3, .kind = OrderKind::kGrain, .seed = 32};
  EXPECT_EQ(Epochs(three, 3), (std::vector<int64_t>{2, 1, 0}));
  const SampleOrder two{.n = 2, .kind = OrderKind::kGrain, .seed = 32};
  EXPECT_EQ(Epochs(two, 2), (std::vector<int64_t>{0, 1}));
}

TEST(GrainOrder, RepeatsOneRecordOfUnluckySizesAsGrainDoes) {
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 65537; ++i) seen.insert(GrainPermute(42, 65537, i));
  EXPECT_EQ(seen.size(), 65536u);
}

TEST(ShuffleWindow, KeepsEverySampleInItsWindowAndRepeatsWithAnotherOrder) {
  const SampleOrder order{.n = 23, .seed = 3, .window = 10};
  const std::vector<int64_t> two = Epochs(order, 46);
  for (const int64_t epoch : {0, 23}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 23; ++i) {
      const int64_t index = two[static_cast<size_t>(epoch + i)];
      EXPECT_EQ(index / 10, i / 10);
      seen.insert(index);
    }
    EXPECT_EQ(seen.size(), 23u);
  }
  EXPECT_NE(std::vector<int64_t>(two.begin(), two.begin() + 23),
            std::vector<int64_t>(two.begin() + 23, two.end()));
}

TEST(Mixture, DrawsEachPartByItsWeightAndEverySampleEquallyOften) {
  SampleOrder order{.n = 40 + 1000 + 7, .seed = 5};
  order.mixture = MixtureOf({40, 1000, 7}, {5, 3, 2});
  EXPECT_EQ(order.mixture[0].slots, 5000);
  std::map<int64_t, int64_t> times;
  std::vector<int64_t> of_part(3);
  for (const int64_t index : Epochs(order, 2 * kMixtureCycle)) {
    ++times[index];
    ++of_part[index < 40 ? 0 : index < 1040 ? 1 : 2];
  }
  EXPECT_EQ(of_part, (std::vector<int64_t>{10000, 6000, 4000}));
  for (const auto& [index, count] : times) {
    const int64_t want = index < 40 ? 250 : index < 1040 ? 6 : 571;
    EXPECT_NEAR(static_cast<double>(count), static_cast<double>(want), 1) << index;
  }
  // Also any short stretch has about the wanted shares.
  of_part.assign(3, 0);
  for (int64_t i = 4000; i < 5000; ++i) {
    const int64_t index = order.IndexOf(i);
    ++of_part[index < 40 ? 0 : index < 1040 ? 1 : 2];
  }
  EXPECT_NEAR(static_cast<double>(of_part[0]), 500, 60);
  EXPECT_NEAR(static_cast<double>(of_part[2]), 200, 50);
}

TEST(Mixture, RoundsByLargestRemaindersAndRefusesWhatIsNoWeight) {
  const auto parts = MixtureOf({1, 1, 1}, {1, 1, 1});
  EXPECT_EQ(parts[0].slots + parts[1].slots + parts[2].slots, kMixtureCycle);
  EXPECT_EQ(parts[2].first, 2);
  for (const double bad : {0.0, -1.0, 1e-7, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(MixtureOf({1, 1}, {1, bad}), Error) << bad;
  }
}

TEST(Mixture, APackerResumesInIt) {
  PackerOptions options;
  options.row_length = 16;
  options.n_samples = 30;
  options.mixture = MixtureOf({10, 20}, {1, 4});
  const auto make = [](int64_t i) {
    Sample sample;
    for (int64_t t = 0; t < 3 + i % 5; ++t)
      sample.Append({static_cast<TokenId>(100 * i + t)}, true);
    return sample;
  };
  Packer whole(options, make);
  Packer first(options, make);
  PackedRow row;
  for (int i = 0; i < 5; ++i) first.Next(&row);
  Packer second(options, make);
  second.Restore(first.state());
  for (int i = 0; i < 5; ++i) whole.Next(&row);
  for (int i = 0; i < 20; ++i) {
    PackedRow want;
    PackedRow got;
    whole.Next(&want);
    second.Next(&got);
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.samples, want.samples);
  }
}

TEST(TrainOnAll, PadsAndTrainsEveryPlace) {
  Sample sample;
  sample.Append({5, 6, 7}, false);
  TrainOnAll(&sample, 9, 0);
  PackerOptions options;
  options.row_length = 8;
  options.packing = Packing::kNone;
  options.n_samples = 1;
  Packer packer(options, [&](int64_t) { return sample; });
  PackedRow row;
  ASSERT_TRUE(packer.Next(&row));
  EXPECT_EQ(row.tokens, (std::vector<TokenId>{5, 6, 7, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row.targets, (std::vector<TokenId>{6, 7, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(row.weights, std::vector<float>(8, 1.0f));
  EXPECT_EQ(row.segment_lengths, std::vector<int64_t>{8});
}

}  // namespace
}  // namespace tandem::training
