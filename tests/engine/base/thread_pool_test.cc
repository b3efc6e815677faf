#include "engine/base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace tandem {
namespace {

// Runs a round and returns how often each task ran. The counters are not atomic on purpose.
// ThreadSanitizer reports a task that runs twice at once, or a round that ends before its tasks.
std::vector<int> CountRuns(ThreadPool& pool, int64_t n_tasks) {
  std::vector<int> runs(static_cast<size_t>(n_tasks), 0);
  pool.ParallelFor(n_tasks, [&](int64_t index, int) { ++runs[static_cast<size_t>(index)]; });
  return runs;
}

bool AllOnce(const std::vector<int>& runs) {
  return std::all_of(runs.begin(), runs.end(), [](int n) { return n == 1; });
}

// Lets workers run out of work. Workers spin for 20 us, so times around that find them awake,
// asleep and in between.
void BeIdle(std::chrono::microseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (std::chrono::steady_clock::now() < until) {
  }
}

TEST(ThreadPool, RunsEachTaskExactlyOnceOverManyRounds) {
  std::minstd_rand random(1);
  for (const int n_threads : {1, 2, 3, 7}) {
    ThreadPool pool(n_threads);
    for (int round = 0; round < 3000; ++round) {
      const auto n_tasks = static_cast<int64_t>(random() % 20);

      ASSERT_TRUE(AllOnce(CountRuns(pool, n_tasks)))
          << "threads " << n_threads << " round " << round << " tasks " << n_tasks;
    }
  }
}

TEST(ThreadPool, RunsEachTaskExactlyOnceWhenWorkersFellAsleepBetweenRounds) {
  ThreadPool pool(3);
  for (int round = 0; round < 300; ++round) {
    BeIdle(std::chrono::microseconds(round % 60));

    ASSERT_TRUE(AllOnce(CountRuns(pool, 5))) << "round " << round;
  }
}

// Fewer tasks than sleepers: the caller wakes only some.
TEST(ThreadPool, RunsEachTaskExactlyOnceWhenOnlySomeSleepersAreWoken) {
  ThreadPool pool(7);
  for (int round = 0; round < 300; ++round) {
    BeIdle(std::chrono::microseconds(round % 60));

    ASSERT_TRUE(AllOnce(CountRuns(pool, 2 + round % 4))) << "round " << round;
  }
  BeIdle(std::chrono::microseconds(100));
  ASSERT_TRUE(AllOnce(CountRuns(pool, 100)));
}

TEST(ThreadPool, WhatOneRoundWroteTheNextOneReads) {
  ThreadPool pool(3);
  constexpr size_t kTasks = 13;
  std::vector<int> before(kTasks, 0);
  std::vector<int> after(kTasks, 0);
  for (int round = 0; round < 2000; ++round) {
    pool.ParallelFor(kTasks, [&](int64_t index, int) {
      const auto own = static_cast<size_t>(index);
      after[own] = before[(own + 1) % kTasks] + 1;  // the neighbour's value, from another worker
    });
    before.swap(after);
  }

  EXPECT_EQ(before, std::vector<int>(kTasks, 2000));
}

TEST(ThreadPool, WorkerNumbersLieInRangeAndNoTwoTasksShareOneAtATime) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> inside(4);
  std::atomic<bool> good{true};
  for (int round = 0; round < 300; ++round) {
    pool.ParallelFor(16, [&](int64_t, int worker) {
      if (worker < 0 || worker >= 4 || inside[static_cast<size_t>(worker)]++ != 0) good = false;
      --inside[static_cast<size_t>(worker)];
    });
  }

  EXPECT_TRUE(good);
}

TEST(ThreadPool, WorkersTakePartHoweverLongTheyWereIdle) {
  ThreadPool pool(2);
  for (int round = 0; round < 400; ++round) {
    BeIdle(std::chrono::microseconds(round % 80));
    std::atomic<bool> worker_came{false};

    // The caller's task ends only after a worker has run one: a missed wake-up would hang here.
    pool.ParallelFor(2, [&](int64_t, int worker) {
      if (worker != 0) worker_came = true;
      while (!worker_came) std::this_thread::yield();
    });

    ASSERT_TRUE(worker_came);
  }
}

TEST(ThreadPool, OfOneThreadRunsInOrderOnTheCaller) {
  ThreadPool pool(1);
  std::vector<int64_t> order;
  const auto caller = std::this_thread::get_id();

  pool.ParallelFor(4, [&](int64_t index, int worker) {
    EXPECT_EQ(worker, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(index);
  });

  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(ThreadPool, NoTasksIsNoCall) {
  ThreadPool pool(2);

  pool.ParallelFor(0, [](int64_t, int) { FAIL(); });
  pool.ParallelFor(-1, [](int64_t, int) { FAIL(); });
}

TEST(ThreadPool, EndsWhetherItsWorkersSpinOrSleepOrNeverRan) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(3);
    if (i % 2 == 0) CountRuns(pool, 4);
  }
}

// Several threads may use one pool in turn.
TEST(ThreadPool, ServesOneCallerAfterAnother) {
  ThreadPool pool(3);
  for (int turn = 0; turn < 50; ++turn) {
    std::jthread([&] { EXPECT_TRUE(AllOnce(CountRuns(pool, 8))); });
  }
}

TEST(UsableCoresCount, IsAtLeastOneAndWhatAPoolOfZeroUses) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_EQ(ThreadPool(0).n_threads(), UsableCores());
}

}  // namespace
}  // namespace tandem
