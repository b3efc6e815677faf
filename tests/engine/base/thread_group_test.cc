#include "engine/base/thread_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"

namespace tandem {
namespace {

// Three parts, each as large as the memory budget: the queue hands out one at a time.
BudgetedQueue LargeParts() {
  return BudgetedQueue({0, 1, 2}, [](int64_t) { return BudgetedQueue::kBudgetBytes; });
}

class ThreadGroupTest : public testing::Test {
 protected:
  static constexpr int kThreads = 4;

  // Drains three parts on all threads.
  void Drain(const BudgetedQueue::Work& work) {
    BudgetedQueue queue = LargeParts();
    ThreadGroup group;
    for (int i = 0; i < kThreads; ++i) group.Add([&] { queue.Drain(group, work); });
    group.Wait();
  }
};

TEST_F(ThreadGroupTest, EveryTaskIsDoneOnce) {
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
TEST_F(ThreadGroupTest, ThreadsThatWaitForMemoryHelp) {
  Drain([&](int64_t, const ParallelFor& parallel_for) {
    std::atomic<int> inside{0};
    parallel_for(kThreads, [&](int64_t) {
      ++inside;
      while (inside < kThreads) std::this_thread::yield();
    });
  });
}

// The reported error is the first failure, not the cancellation of the others.
TEST_F(ThreadGroupTest, TheFirstFailureEndsAll) {
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

TEST_F(ThreadGroupTest, AStoppedGroupBeginsNoTask) {
  std::atomic<int> begun{0};
  try {
    BudgetedQueue queue = LargeParts();
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

// The other threads fail because of the stop; their errors must not hide the first one.
TEST_F(ThreadGroupTest, TheFailureThatCausedTheStopIsReported) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<bool> was_stopped{false};
    ThreadGroup group([&] { was_stopped = true; });
    group.Add([] { throw Error(ErrorCode::kDataLoss, "first"); });
    for (int i = 1; i < kThreads; ++i) {
      group.Add([&] {
        while (!was_stopped) std::this_thread::yield();
        throw Error(ErrorCode::kCancelled, "stopped");
      });
    }

    const auto error = ErrorOf([&] { group.Wait(); });

    ASSERT_TRUE(error);
    EXPECT_STREQ(error->what(), "first");
  }
}

TEST(RunAll, ReportsTheLowestFailureOnAPool) {
  ThreadPool pool(4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> n_run{0};
    const auto error = ErrorOf([&] {
      RunAll(pool, 100, [&](int64_t i, int) {
        ++n_run;
        if (i >= 40) throw Error(ErrorCode::kDataLoss, "task " + std::to_string(i));
      });
    });
    ASSERT_TRUE(error);
    EXPECT_STREQ(error->what(), "task 40");
    EXPECT_GE(n_run, 41);
  }
}

}  // namespace
}  // namespace tandem
