#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "convert/work/thread_group.h"
#include "convert/work/work_stealing.h"
#include "engine/base/error.h"

namespace tandem::convert {
namespace {

// Parts that exceed the memory budget of the queue: it hands out one at a time.
class LargeParts : public ModelSource {
 public:
  explicit LargeParts(int64_t n) : n_(n) {}
  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view) const override { return std::nullopt; }
  int64_t parts() const override { return n_; }
  void ReadPart(int64_t, const Take&) const override {}
  Bytes Read(int64_t, std::vector<std::byte>*) const override { return {}; }
  int64_t PartMemory(int64_t) const override { return BudgetedQueue::kBudgetBytes; }

 private:
  int64_t n_;
  std::string name_ = "large";
  std::vector<engine::NamedTensor> tensors_;
};

class SharedWorkTest : public testing::Test {
 protected:
  static constexpr int kThreads = 4;

  // Drains three parts on all threads.
  void Drain(const BudgetedQueue::Work& work) {
    const LargeParts source(3);
    BudgetedQueue queue(source, {0, 1, 2});
    ThreadGroup group;
    for (int i = 0; i < kThreads; ++i) group.Add([&] { queue.Drain(group, work); });
    group.Wait([] {});
  }
};

TEST_F(SharedWorkTest, EveryTaskIsDoneOnce) {
  for (int round = 0; round < 50; ++round) {
    std::vector<std::atomic<int>> done(3 * 100);

    Drain([&](int64_t part, const ParallelFor& parallel_for) {
      EXPECT_TRUE(
          parallel_for(100, [&](int64_t i) { ++done[static_cast<size_t>(part * 100 + i)]; }));
      // All tasks have ended.
      for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(done[static_cast<size_t>(part * 100 + i)], 1);
    });

    for (const std::atomic<int>& each : done) EXPECT_EQ(each, 1);
  }
}

// Tasks that wait for each other end only if threads without a part help.
TEST_F(SharedWorkTest, ThreadsThatWaitForMemoryHelp) {
  Drain([&](int64_t, const ParallelFor& parallel_for) {
    std::atomic<int> inside{0};
    parallel_for(kThreads, [&](int64_t) {
      ++inside;
      while (inside < kThreads) std::this_thread::yield();
    });
  });
}

// The reported error is the first failure, not the cancellation of the others.
TEST_F(SharedWorkTest, TheFirstFailureEndsAll) {
  for (int round = 0; round < 50; ++round) {
    try {
      Drain([&](int64_t, const ParallelFor& parallel_for) {
        RunAll(parallel_for, 100, [&](int64_t i) {
          if (i >= 40) throw Error(ErrorCode::kDataLoss, "task " + std::to_string(i));
        });
      });
      ADD_FAILURE() << "went on";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "task 40");
    }
  }
}

TEST_F(SharedWorkTest, AStoppedCrewBeginsNoTask) {
  std::atomic<int> begun{0};
  try {
    const LargeParts source(1);
    BudgetedQueue queue(source, {0});
    ThreadGroup group;
    for (int i = 0; i < kThreads; ++i) {
      group.Add([&] {
        queue.Drain(group, [&](int64_t, const ParallelFor& parallel_for) {
          RunAll(parallel_for, 1 << 30, [&](int64_t) {
            ++begun;
            while (!group.stopping()) std::this_thread::yield();
          });
        });
      });
    }
    group.Wait([&] {
      if (begun > 0) throw Error(ErrorCode::kCancelled, "by hand");
    });
    ADD_FAILURE() << "went on";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "by hand");
  }
  EXPECT_LE(begun, kThreads);
}

}  // namespace
}  // namespace tandem::convert
