#include "engine/base/trace/parallel_trace.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/base/thread_pool.h"

namespace tandem {
namespace {

void DoNothing(int64_t, int) {}

TEST(ParallelTrace, RecordsEachRegionWithATimeForEachTask) {
  for (const int n_threads : {1, 3}) {
    ThreadPool pool(n_threads);
    std::atomic<int> runs = 0;
    ParallelTrace trace;
    pool.ParallelFor(1, [&](int64_t, int) { ++runs; });
    pool.ParallelFor(5, [&](int64_t index, int) {
      ++runs;
      if (index == 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    });
    pool.ParallelFor(0, DoNothing);

    const ParallelRecord record = trace.Take();

    EXPECT_EQ(runs, 6) << "every task runs once";
    ASSERT_EQ(record.regions.size(), 2U);
    EXPECT_EQ(record.regions[0].task_seconds.size(), 1U);
    ASSERT_EQ(record.regions[1].task_seconds.size(), 5U);
    EXPECT_GE(record.regions[1].task_seconds[3], 0.002);
    for (const double seconds : record.regions[1].task_seconds) EXPECT_GE(seconds, 0);
  }
}

TEST(ParallelTrace, CountsTheCallersOwnWorkBetweenRegions) {
  ThreadPool pool(2);
  ParallelTrace trace;
  pool.ParallelFor(2, DoNothing);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  pool.ParallelFor(2, DoNothing);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));

  const ParallelRecord record = trace.Take();

  ASSERT_EQ(record.regions.size(), 2U);
  EXPECT_GE(record.regions[1].serial_seconds, 0.002);
  EXPECT_GE(record.last_serial_seconds, 0.001);
}

TEST(ParallelTrace, NotedWeightsBelongToTheNextRegion) {
  ThreadPool pool(1);
  ParallelTrace trace;
  ParallelTrace::NoteWeights([] { return 100; });
  ParallelTrace::NoteWeights([] { return 20; });
  pool.ParallelFor(2, DoNothing);
  pool.ParallelFor(2, DoNothing);

  const ParallelRecord record = trace.Take();

  ASSERT_EQ(record.regions.size(), 2U);
  EXPECT_EQ(record.regions[0].weight_bytes, 120);
  EXPECT_EQ(record.regions[1].weight_bytes, 0);
}

TEST(ParallelTrace, TakeBeginsANewRecord) {
  ThreadPool pool(1);
  ParallelTrace trace;
  pool.ParallelFor(3, DoNothing);
  EXPECT_EQ(trace.Take().regions.size(), 1U);

  EXPECT_TRUE(trace.Take().regions.empty());
}

TEST(ParallelTrace, SeesNeitherOtherThreadsNorRegionsAfterItsEnd) {
  ThreadPool pool(1);
  ParallelTrace trace;
  std::thread([] {
    EXPECT_EQ(ParallelTrace::OfThisThread(), nullptr);
    ThreadPool other(1);
    other.ParallelFor(2, DoNothing);
    ParallelTrace::NoteWeights([]() -> int64_t {
      ADD_FAILURE() << "computed without a trace";
      return 0;
    });
  }).join();
  EXPECT_TRUE(trace.Take().regions.empty());
  {
    ParallelTrace inner;
    pool.ParallelFor(2, DoNothing);
    EXPECT_EQ(inner.Take().regions.size(), 1U);
  }
  EXPECT_EQ(ParallelTrace::OfThisThread(), &trace) << "the outer one goes on";
  EXPECT_TRUE(trace.Take().regions.empty());
}

}  // namespace
}  // namespace tandem
