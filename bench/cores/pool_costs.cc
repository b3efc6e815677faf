#include "bench/cores/pool_costs.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/base/thread_pool.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsUntil(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void SpinFor(std::chrono::microseconds time) {
  const auto until = Clock::now() + time;
  while (Clock::now() < until) {
  }
}

// Longer than a worker spins, so that it sleeps.
constexpr std::chrono::microseconds kUntilAsleep{200};

double RegionSeconds(ThreadPool& pool, int64_t n_tasks, bool asleep, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    if (asleep) SpinFor(kUntilAsleep);
    const auto from = Clock::now();
    pool.ParallelFor(n_tasks, [](int64_t, int) {});
    times.push_back(SecondsUntil(from, Clock::now()));
  }
  return Median(std::move(times));
}

// The time of two tasks on two threads beyond that of one task. Empty tasks would not do: the
// caller would run both before the worker notices. Returns the fastest tenth's limit.
double BarrierSeconds(ThreadPool& pool, int repeats) {
  constexpr std::chrono::microseconds kTask{5};
  const auto task = [&](int64_t, int) { SpinFor(kTask); };
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    const auto from = Clock::now();
    pool.ParallelFor(2, std::cref(task));
    times.push_back(SecondsUntil(from, Clock::now()));
  }
  // Other programs only add to the time, and may keep the worker from its core for most rounds.
  const auto fast = times.begin() + repeats / 10;
  std::nth_element(times.begin(), fast, times.end());
  return *fast - std::chrono::duration<double>(kTask).count();
}

// From the call to the first task of a sleeping worker. The caller's task lasts longer than that.
double WakeSeconds(ThreadPool& pool, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) {
    SpinFor(kUntilAsleep);
    Clock::time_point begun{};
    const auto task = [&](int64_t, int worker) {
      if (worker == 1 && begun == Clock::time_point{}) begun = Clock::now();
      SpinFor(std::chrono::microseconds(150));
    };
    const auto from = Clock::now();
    pool.ParallelFor(2, std::cref(task));
    if (begun != Clock::time_point{}) times.push_back(SecondsUntil(from, begun));
  }
  // With one core, the worker may never come in time.
  return times.empty() ? 0 : Median(std::move(times));
}

}  // namespace

PoolCosts MeasurePoolCosts() {
  constexpr int64_t kManyTasks = 1000;
  ThreadPool pool(2);
  RegionSeconds(pool, 2, false, 100);
  const double two = RegionSeconds(pool, 2, false, 5000);
  const double many = RegionSeconds(pool, kManyTasks, false, 200);
  const double asleep = RegionSeconds(pool, 2, true, 100);
  PoolCosts costs;
  costs.claim = std::max(0.0, (many - two) / static_cast<double>(kManyTasks - 2));
  costs.barrier = std::max(0.0, BarrierSeconds(pool, 3000) - 2 * costs.claim);
  costs.wake_call = std::max(0.0, asleep - two);
  costs.wake = std::max(0.0, WakeSeconds(pool, 100) - costs.wake_call);
  return costs;
}

}  // namespace tandem::bench
