#include "training/dist/collectives.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <random>

#include "tests/training/dist/on_ranks.h"
#include "training/dist/agreement.h"

namespace tandem::training {
namespace {

// Numbers of very different sizes, so that every order of additions has other last bits.
std::vector<float> Numbers(size_t n, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) * 977 + 5);
  std::vector<float> values(n);
  for (float& value : values) {
    value =
        std::ldexp(static_cast<float>(random() % 20001) - 10000, static_cast<int>(random() % 24));
  }
  return values;
}

// The sum as documented: neighbours first.
std::vector<float> TreeSum(size_t n, int first, int last) {
  if (last - first == 1) return Numbers(n, first);
  int left = 1;
  while (left * 2 < last - first) left *= 2;
  std::vector<float> sum = TreeSum(n, first, first + left);
  const std::vector<float> right = TreeSum(n, first + left, last);
  for (size_t i = 0; i < n; ++i) sum[i] += right[i];
  return sum;
}

TEST(CollectivesTest, AllReduceAddsInTheDocumentedTreeAtEverySize) {
  for (const int size : {1, 2, 3, 4, 5, 7}) {
    for (const size_t n :
         {size_t{0}, size_t{1}, size_t{2}, size_t{7}, size_t{1009}, size_t{65537}}) {
      const std::vector<float> expected = TreeSum(n, 0, size);
      MustWorkOnRanks(size, [&](Collectives& ranks) {
        std::vector<float> data = Numbers(n, ranks.rank());
        ranks.AllReduce(data);
        EXPECT_EQ(data, expected) << size << " ranks, " << n << " numbers";
      });
    }
  }
}

// Groups of ranks: sums and gathered parts stay within a group.
// Rank (data d, fsdp f, tensor t) is (d * 2 + f) * 2 + t.
TEST(CollectivesTest, TensorIsTheInnermostGroup) {
  using Group = Collectives::Group;
  MustWorkOnRanks(8, [](Collectives& ranks) {
    ranks.Arrange(2, 2);
    const int d = ranks.rank() / 4;
    const int f = ranks.rank() / 2 % 2;
    const int t = ranks.rank() % 2;
    const auto members = [&](Group group) {
      const double rank = ranks.rank();
      return ranks.AllGather({&rank, 1}, group);
    };
    using Ranks = std::vector<double>;
    EXPECT_EQ(members(Group::kTensor), (Ranks{d * 4.0 + f * 2, d * 4.0 + f * 2 + 1}));
    EXPECT_EQ(members(Group::kFsdp), (Ranks{d * 4.0 + t, d * 4.0 + 2 + t}));
    EXPECT_EQ(members(Group::kData), (Ranks{f * 2.0 + t, f * 2.0 + t + 4}));
    EXPECT_EQ(members(Group::kRows), (Ranks{t + 0.0, t + 2.0, t + 4.0, t + 6.0}));
    EXPECT_EQ(ranks.rank_in(Group::kRows), d * 2 + f);
  });
}

TEST(CollectivesTest, GroupsOfRanks) {
  using Group = Collectives::Group;
  for (const auto& [size, fsdp] :
       {std::pair{4, 2}, std::pair{6, 3}, std::pair{4, 4}, std::pair{3, 1}, std::pair{8, 2}}) {
    MustWorkOnRanks(size, [&, size = size, fsdp = fsdp](Collectives& ranks) {
      ranks.Arrange(fsdp);
      ASSERT_EQ(ranks.size_of(Group::kFsdp), fsdp);
      ASSERT_EQ(ranks.size_of(Group::kData), size / fsdp);
      const int rank = ranks.rank();
      EXPECT_EQ(ranks.rank_in(Group::kFsdp), rank % fsdp);
      std::vector<float> own(24, static_cast<float>(rank + 1));
      ranks.StartReduceScatter(own, Group::kFsdp, [&own] { own.push_back(0); });
      ranks.Wait();
      float sum = 0;
      for (int r = rank / fsdp * fsdp; r < rank / fsdp * fsdp + fsdp; ++r) {
        sum += static_cast<float>(r + 1);
      }
      EXPECT_EQ(own[static_cast<size_t>(rank % fsdp) * 24 / static_cast<size_t>(fsdp)], sum);
      EXPECT_EQ(own.size(), 25u) << "the work after the sum";

      std::vector<float> replica(5, static_cast<float>(rank));
      ranks.WaitFor(ranks.StartAllReduce(replica, Group::kData));
      sum = 0;
      for (int r = rank % fsdp; r < size; r += fsdp) sum += static_cast<float>(r);
      EXPECT_EQ(replica[4], sum);

      // Parts of more than one piece.
      const size_t part = (size_t{5} << 20) + 3;
      std::vector<std::byte> all(part * static_cast<size_t>(fsdp));
      const size_t first = part * static_cast<size_t>(rank % fsdp);
      std::fill_n(all.begin() + static_cast<int64_t>(first), part,
                  static_cast<std::byte>(rank + 1));
      ranks.StartFillFromAll(all, Group::kFsdp);
      ranks.Wait();
      for (int r = 0; r < fsdp; ++r) {
        const auto value = static_cast<std::byte>(rank / fsdp * fsdp + r + 1);
        EXPECT_EQ(all[part * static_cast<size_t>(r)], value);
        EXPECT_EQ(all[part * static_cast<size_t>(r + 1) - 1], value);
      }
      const double mine = rank;
      EXPECT_EQ(ranks.AllGather({&mine, 1}, Group::kData).back(), size - fsdp + rank % fsdp);
    });
  }
}

TEST(CollectivesTest, AFaultEndsRanksThatWaitInAGroup) {
  const auto faults = OnRanks(4, [](Collectives& ranks) {
    ranks.Arrange(2);
    if (ranks.rank() == 3) throw Error(ErrorCode::kInternal, "rank 3 is out of memory");
    std::vector<float> data(8, 1.0f);
    ranks.StartReduceScatter(data, Collectives::Group::kFsdp);
    ranks.Wait();
    ranks.AllReduce(data);
  });
  for (const auto& fault : faults) {
    ASSERT_TRUE(fault);
    const std::string text = ToError(fault).what();
    EXPECT_TRUE(text.find("another rank") != std::string::npos ||
                text.find("out of memory") != std::string::npos)
        << text;
  }
}

// More than one piece of the staging buffers.
TEST(CollectivesTest, AllReduceOfManyPieces) {
  const size_t n = 2 * (size_t{1} << 20) * 2 + 12345;
  const std::vector<float> expected = TreeSum(n, 0, 2);
  MustWorkOnRanks(2, [&](Collectives& ranks) {
    std::vector<float> data = Numbers(n, ranks.rank());
    ranks.AllReduce(data);
    EXPECT_TRUE(data == expected);
  });
}

TEST(CollectivesTest, ReduceScatterGivesEachRankItsPartOfTheSameSum) {
  for (const int size : {1, 2, 3, 4}) {
    const size_t part = 1009;
    const size_t n = part * static_cast<size_t>(size);
    const std::vector<float> expected = TreeSum(n, 0, size);
    MustWorkOnRanks(size, [&](Collectives& ranks) {
      std::vector<float> data = Numbers(n, ranks.rank());
      ranks.ReduceScatter(data);
      const size_t begin = part * static_cast<size_t>(ranks.rank());
      for (size_t i = begin; i < begin + part; ++i) ASSERT_EQ(data[i], expected[i]);
    });
  }
}

TEST(CollectivesTest, GathersBroadcastsAndTexts) {
  MustWorkOnRanks(3, [](Collectives& ranks) {
    const std::vector<double> mine(2, ranks.rank() + 0.5);
    EXPECT_EQ(ranks.AllGather(mine), (std::vector<double>{0.5, 0.5, 1.5, 1.5, 2.5, 2.5}));
    const std::string text(static_cast<size_t>(ranks.rank()) * 3, 'x');
    EXPECT_EQ(ranks.AllGatherText(text), (std::vector<std::string>{"", "xxx", "xxxxxx"}));
    EXPECT_EQ(ranks.BroadcastText(text, 2), "xxxxxx");
    EXPECT_TRUE(ranks.AnyRank(ranks.rank() == 1));
    EXPECT_FALSE(ranks.AnyRank(false));
    ranks.Barrier();
  });
}

TEST(CollectivesTest, StartedSumsRunInOrderWhileTheOwnerComputes) {
  MustWorkOnRanks(2, [](Collectives& ranks) {
    std::vector<std::vector<float>> buckets(20, std::vector<float>(100, 1.0f));
    for (auto& bucket : buckets) ranks.StartAllReduce(bucket);
    ranks.Wait();
    for (const auto& bucket : buckets) EXPECT_EQ(bucket, std::vector<float>(100, 2.0f));
  });
}

// Random sequences of operations give the same bits on all ranks.
TEST(CollectivesTest, RandomSequences) {
  MustWorkOnRanks(3, [](Collectives& ranks) {
    std::mt19937 random(17);
    for (int i = 0; i < 300; ++i) {
      const size_t n = random() % 400;
      std::vector<float> data = Numbers(n, ranks.rank() + i);
      switch (random() % 3) {
        case 0:
          ranks.AllReduce(data);
          break;
        case 1:
          ranks.Broadcast(std::as_writable_bytes(std::span(data)), static_cast<int>(random() % 3));
          break;
        default:
          ranks.Barrier();
          continue;
      }
      double sum = 0;
      for (const float value : data) sum = sum * 1.0001 + static_cast<double>(value);
      const std::vector<double> sums = ranks.AllGather({&sum, 1});
      ASSERT_EQ(sums, std::vector<double>(3, sums[0]));
    }
  });
}

TEST(CollectivesTest, AFaultOfOneRankEndsTheOthers) {
  const auto faults = OnRanks(3, [](Collectives& ranks) {
    if (ranks.rank() == 1) throw Error(ErrorCode::kDataLoss, "bad row");
    std::vector<float> data(10);
    ranks.AllReduce(data);
  });
  for (const auto& fault : faults) ASSERT_TRUE(fault);
  EXPECT_NE(std::string(ToError(faults[0]).what()).find("another rank"), std::string::npos);
  EXPECT_EQ(ToError(faults[1]).code(), ErrorCode::kDataLoss);
}

TEST(CollectivesTest, AHangingRankIsFound) {
  const auto begin = std::chrono::steady_clock::now();
  const auto faults = OnRanks(
      2,
      [](Collectives& ranks) {
        if (ranks.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
        ranks.Barrier();
      },
      0.2);
  ASSERT_TRUE(faults[0]);
  EXPECT_EQ(ToError(faults[0]).code(), ErrorCode::kDeadlineExceeded);
  EXPECT_NE(std::string(ToError(faults[0]).what()).find("rank 0 has waited"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(AgreementTest, NamesTheFactAndTheRanksThatDiffer) {
  const auto faults = OnRanks(3, [](Collectives& ranks) {
    CheckAgreement(ranks, {{"the spec", "same", "-"},
                           {"the program", ranks.rank() == 2 ? "b" : "a", "start the same file"}});
  });
  for (const auto& fault : faults) {
    ASSERT_TRUE(fault);
    const std::string text = ToError(fault).what();
    EXPECT_NE(text.find("the ranks differ in the program: rank 0 on"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2 on"), std::string::npos) << text;
    EXPECT_NE(text.find("start the same file"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace tandem::training
