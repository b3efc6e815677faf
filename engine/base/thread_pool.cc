#include "engine/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/thread_name.h"
#include "engine/base/trace/parallel_trace.h"

namespace tandem {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(20);

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("isb" ::: "memory");  // arm64: waits for some cycles, unlike `yield`
#endif
}

constexpr uint64_t kUnclaimedMask = 0xffffffffu;
constexpr uint64_t Unclaimed(uint64_t round) { return round & kUnclaimedMask; }

// Spins until `done()`, at most for kSpinTime. Returns whether it was done in time.
template <class Done>
bool SpinUntil(const Done& done) {
  // Most rounds begin or end within a few pauses, before the first look at the clock.
  for (int i = 0; i < 16; ++i) {
    if (done()) return true;
    Pause();
  }
  const auto spin_until = std::chrono::steady_clock::now() + kSpinTime;
  do {
    if (done()) return true;
    Pause();
  } while (std::chrono::steady_clock::now() < spin_until);
  return false;
}

// Wakes at most `wanted` of the sleepers. Each costs the caller microseconds, so one without a task
// should sleep.
void Notify(std::condition_variable& wake, int64_t wanted, int sleepers) {
  if (wanted >= sleepers) return wake.notify_all();
  for (int64_t i = 0; i < wanted; ++i) wake.notify_one();
}

}  // namespace

int UsableCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  // Counts (package, core) pairs, because hyper-threads share their vector units.
  std::set<std::pair<int, int>> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string base = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    int package = 0;
    int core = cpu;
    std::ifstream(base + "physical_package_id") >> package;
    std::ifstream(base + "core_id") >> core;
    cores.insert({package, core});
  }
  int usable = std::max(1, static_cast<int>(cores.size()));
  // cgroup v2 quota: "max 100000" or "150000 100000".
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    usable = std::min(usable, std::max(1, static_cast<int>(std::stod(quota) / period)));
  }
  return usable;
}

ThreadPool::ThreadPool(int n_threads) {
  if (n_threads <= 0) n_threads = UsableCores();
  workers_.reserve(static_cast<size_t>(n_threads - 1));
  for (int worker = 1; worker < n_threads; ++worker) {
    workers_.emplace_back([this, worker] { WorkerLoop(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::ParallelFor(int64_t n_tasks, const std::function<void(int64_t, int)>& task) {
  if (n_tasks <= 0) return;
  if (ParallelTrace* trace = ParallelTrace::OfThisThread(); trace != nullptr) [[unlikely]] {
    trace->Record(n_tasks, task, [&](const auto& timed) { ParallelFor(n_tasks, timed); });
    return;
  }
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t i = 0; i < n_tasks; ++i) task(i, 0);
    return;
  }
  TANDEM_CHECK(static_cast<uint64_t>(n_tasks) <= kUnclaimedMask);
  // The last round is over: all its tasks are claimed and counted, so no worker reads these fields.
  n_tasks_ = n_tasks;
  task_ = &task;
  finished_.store(0, std::memory_order_relaxed);
  const uint64_t number = (round_.load(std::memory_order_relaxed) >> 32) + 1;
  // Sequentially consistent here and in Sleep: either this thread sees the sleeper, or the sleeper
  // sees this round.
  round_.store(number << 32 | static_cast<uint64_t>(n_tasks));
  if (const int sleepers = sleepers_.load(); sleepers > 0) {
    { const std::lock_guard lock(mutex_); }
    Notify(wake_, n_tasks - 1, sleepers);
  }

  const int64_t left_to_workers = n_tasks - RunTasks(0);
  const auto all_reported = [&] {
    return finished_.load(std::memory_order_acquire) == left_to_workers;
  };
  // Yields, because on a crowded machine the awaited worker may need this core.
  while (!SpinUntil(all_reported)) std::this_thread::yield();
}

// Claims and runs tasks until none is left. Returns the number it ran.
int64_t ThreadPool::RunTasks(int worker) {
  int64_t ran = 0;
  uint64_t round = round_.load(std::memory_order_relaxed);
  while (Unclaimed(round) > 0) {
    if (!round_.compare_exchange_weak(round, round - 1, std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
      continue;
    }
    (*task_)(n_tasks_ - static_cast<int64_t>(Unclaimed(round)), worker);
    ++ran;
    round = round_.load(std::memory_order_relaxed);
  }
  return ran;
}

void ThreadPool::WorkerLoop(int worker) {
  NameThisThread("tandem-work-" + std::to_string(worker % 1000));
  for (;;) {
    uint64_t round = 0;
    const bool work = SpinUntil([&] {
      round = round_.load(std::memory_order_relaxed);
      return Unclaimed(round) > 0 || stopping_.load(std::memory_order_relaxed);
    });
    if (!work) Sleep(round);
    if (stopping_.load()) return;
    const int64_t ran = RunTasks(worker);
    if (ran > 0) finished_.fetch_add(ran, std::memory_order_release);
  }
}

// Sleeps until a round other than `seen` begins. That round may be over on waking. The caller then
// spins for the next one, because rounds come in bursts.
void ThreadPool::Sleep(uint64_t seen) {
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock, [&] { return stopping_.load() || round_.load() >> 32 != seen >> 32; });
  sleepers_.fetch_sub(1);
}

}  // namespace tandem
