#include "engine/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <utility>

namespace tandem {
namespace {

constexpr auto kSpinTime = std::chrono::microseconds(20);

inline void Pause() { __builtin_ia32_pause(); }

}  // namespace

int UsableCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 1;
  // Hyper-threads share their vector units: count (package, core) pairs.
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
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t i = 0; i < n_tasks; ++i) task(i, 0);
    return;
  }
  n_tasks_ = n_tasks;
  task_ = &task;
  next_task_.store(0, std::memory_order_relaxed);
  busy_workers_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    generation_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  RunTasks(0);
  while (busy_workers_.load(std::memory_order_acquire) > 0) Pause();
}

void ThreadPool::RunTasks(int worker) {
  for (;;) {
    const int64_t index = next_task_.fetch_add(1, std::memory_order_relaxed);
    if (index >= n_tasks_) return;
    (*task_)(index, worker);
  }
}

void ThreadPool::WorkerLoop(int worker) {
  uint64_t seen = 0;
  for (;;) {
    const auto spin_until = std::chrono::steady_clock::now() + kSpinTime;
    while (generation_.load(std::memory_order_acquire) == seen &&
           std::chrono::steady_clock::now() < spin_until) {
      Pause();
    }
    if (generation_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_.load() || generation_.load() != seen; });
    }
    if (stopping_.load()) return;
    seen = generation_.load(std::memory_order_acquire);
    RunTasks(worker);
    busy_workers_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace tandem
