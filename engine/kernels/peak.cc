#include "engine/kernels/peak.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/kernels/kernels.h"
#include "engine/kernels/peak_loop.h"

namespace tandem::engine {
namespace {

double Rate(ThreadPool& pool, double seconds, const PeakLoop& loop) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point from) {
    return std::chrono::duration<double>(Clock::now() - from).count();
  };
  const auto round = [&] { pool.ParallelFor(pool.n_threads(), [&](int64_t, int) { loop.run(); }); };
  round();
  round();
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    const auto from = Clock::now();
    round();
    times.push_back(since(from));
  } while (since(start) < seconds);
  std::sort(times.begin(), times.end());
  return loop.operations * pool.n_threads() / times[times.size() / 2];
}

}  // namespace

double PeakRate(ThreadPool& pool, PeakKind kind, double seconds) {
  return Rate(pool, seconds, FindPeakLoop(Kernels(), kind));
}

}  // namespace tandem::engine
