#include "bench/cores/simulate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Region = ParallelRecord::Region;
using SocketValues = std::array<double, SimulatedMachine::kMostSockets>;

constexpr double kAsleep = std::numeric_limits<double>::infinity();

double Sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double Longest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// One region on the machine's workers. Times count from the region's beginning.
struct Schedule {
  double end = 0;
  std::vector<double> worker_ends;  // 0: no task
  SocketValues tasks = {};          // by the socket of the worker
};

class Replay {
 public:
  explicit Replay(const SimulatedMachine& machine)
      : machine_(machine), last_active_(Count(), -std::numeric_limits<double>::infinity()) {}

  SimulatedStep Run(const ParallelRecord& record) {
    for (const Region& region : record.regions) {
      Serial(region.serial_seconds);
      AddBytesAndPath(region);
      if (region.task_seconds.size() <= 1) {
        Serial(Sum(region.task_seconds));
      } else if (machine_.cores == 1) {
        step_.work += Sum(region.task_seconds);
      } else {
        Parallel(region);
      }
    }
    Serial(record.last_serial_seconds);
    return step_;
  }

 private:
  size_t Count() const { return static_cast<size_t>(machine_.cores); }
  // In turn, so that workers in their order come from all sockets.
  size_t SocketOf(size_t worker) const { return worker % static_cast<size_t>(machine_.sockets); }
  bool HasQueuePerSocket() const { return machine_.placement == Placement::kFirstTouch; }
  size_t QueueCount() const {
    return HasQueuePerSocket() ? static_cast<size_t>(machine_.sockets) : 1;
  }
  size_t QueueOf(size_t worker) const { return QueueCount() == 1 ? 0 : SocketOf(worker); }
  // The first task of a queue; that of the next queue ends it.
  size_t FirstTask(size_t queue, size_t n_tasks) const { return n_tasks * queue / QueueCount(); }
  bool IsRemote(size_t worker) const {
    return machine_.placement == Placement::kOneNode && SocketOf(worker) != 0;
  }

  void Serial(double seconds) {
    step_.serial += seconds;
    step_.critical_path += seconds;
    last_active_[0] = step_.seconds();
  }

  void AddBytesAndPath(const Region& region) {
    // A region of one task is in Serial's path.
    if (region.task_seconds.size() > 1) step_.critical_path += Longest(region.task_seconds);
    const bool inline_region = region.task_seconds.size() <= 1 || machine_.cores == 1;
    if (inline_region) step_.socket_bytes[0] += region.weight_bytes;
  }

  // Gives each task to the worker that is free first. `starts`: when each worker begins to claim.
  Schedule Assign(const Region& region, const std::vector<double>& starts, double claim_seconds,
                  double slowdown) const {
    std::vector<size_t> next(QueueCount());
    for (size_t q = 0; q < next.size(); ++q) next[q] = FirstTask(q, region.task_seconds.size());
    std::vector<double> queue_free(QueueCount(), 0.0);
    using Free = std::pair<double, size_t>;  // time, worker
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    for (size_t w = 0; w < Count(); ++w) {
      if (starts[w] != kAsleep) free.emplace(starts[w], w);
    }

    Schedule schedule;
    schedule.worker_ends.resize(Count());
    while (!free.empty()) {
      const auto [at, worker] = free.top();
      free.pop();
      const size_t q = QueueOf(worker);
      if (next[q] == FirstTask(q + 1, region.task_seconds.size())) continue;
      const double begin = std::max(at, queue_free[q]) + claim_seconds;
      queue_free[q] = begin;
      const double factor = region.weight_bytes > 0 && IsRemote(worker) ? slowdown : 1;
      const double end = begin + factor * region.task_seconds[next[q]++];
      schedule.worker_ends[worker] = end;
      schedule.end = std::max(schedule.end, end);
      schedule.tasks[SocketOf(worker)] += 1;
      free.emplace(end, worker);
    }
    return schedule;
  }

  // Wakes a sleeper for each task of its queue, but none for the caller's first task. Returns when
  // each worker begins to claim.
  std::vector<double> WakeWorkers(size_t n_tasks) const {
    std::vector<size_t> wanted(QueueCount());
    for (size_t q = 0; q < wanted.size(); ++q) {
      wanted[q] = FirstTask(q + 1, n_tasks) - FirstTask(q, n_tasks);
    }
    if (wanted[0] > 0) --wanted[0];
    const double now = step_.seconds();
    std::vector<double> starts(Count(), 0.0);
    double calls = 0;
    for (size_t w = 1; w < Count(); ++w) {
      if (now - last_active_[w] <= machine_.spin_seconds) continue;
      if (wanted[QueueOf(w)] == 0) {
        starts[w] = kAsleep;
        continue;
      }
      --wanted[QueueOf(w)];
      calls += machine_.wake_call_seconds;
      starts[w] = calls + machine_.wake_seconds;
    }
    starts[0] = calls;
    return starts;
  }

  double Barrier(size_t n_tasks) const {
    const auto n = static_cast<double>(std::min(n_tasks, Count()));
    const bool is_linear = machine_.barrier_growth == BarrierGrowth::kLinear;
    return machine_.barrier_seconds * (is_linear ? n - 1 : std::log2(n));
  }

  // The bytes that each socket's memory delivers.
  SocketValues Deliver(const Region& region, const SocketValues& tasks) {
    const double bytes_per_task =
        region.weight_bytes / static_cast<double>(region.task_seconds.size());
    SocketValues bytes = {};
    for (size_t s = 0; s < bytes.size(); ++s) {
      const bool is_local = machine_.placement != Placement::kOneNode || s == 0;
      bytes[is_local ? s : 0] += tasks[s] * bytes_per_task;
      if (!is_local) step_.remote_bytes += tasks[s] * bytes_per_task;
    }
    for (size_t s = 0; s < bytes.size(); ++s) step_.socket_bytes[s] += bytes[s];
    return bytes;
  }

  void Parallel(const Region& region) {
    const size_t n_tasks = region.task_seconds.size();
    const std::vector<double> at_once(Count(), 0.0);
    const double begin = step_.seconds();
    const std::vector<double> starts = WakeWorkers(n_tasks);

    const double work = Sum(region.task_seconds) / machine_.cores;
    const double free = Assign(region, at_once, 0, 1).end;
    const double local = Assign(region, starts, machine_.claim_seconds, 1).end;
    const Schedule real = Assign(region, starts, machine_.claim_seconds, machine_.remote_slowdown);
    const SocketValues bytes = Deliver(region, real.tasks);
    const bool is_limited = machine_.socket_bytes_per_second > 0;
    const double most_bytes = *std::max_element(bytes.begin(), bytes.end());
    const double memory = is_limited ? most_bytes / machine_.socket_bytes_per_second : 0;
    step_.work += work;
    step_.imbalance += free - work;
    step_.dispatch += local - free;
    step_.remote += real.end - local;
    step_.bandwidth += std::max(0.0, memory - real.end);
    step_.barrier += Barrier(n_tasks);

    // Waiting for memory delays all workers alike.
    const double delay = std::max(1.0, memory / real.end);
    for (size_t w = 0; w < Count(); ++w) {
      if (starts[w] == kAsleep) continue;
      // A woken worker spins also if it finds no task.
      const double last = delay * std::max(real.worker_ends[w], starts[w]);
      if (last > 0) last_active_[w] = begin + last;
    }
    last_active_[0] = step_.seconds();
  }

  const SimulatedMachine& machine_;
  std::vector<double> last_active_;  // by worker: the end of its last task
  SimulatedStep step_;
};

void CheckMachine(const SimulatedMachine& machine) {
  const auto refuse = [](const char* why) {
    throw Error(ErrorCode::kInvalidArgument, std::string("simulated machine: ") + why);
  };
  if (machine.cores < 1) refuse("it needs a core");
  if (machine.sockets < 1 || machine.sockets > SimulatedMachine::kMostSockets) {
    refuse("it can have one or two sockets");
  }
  if (machine.cores % machine.sockets != 0) refuse("its sockets need equal numbers of cores");
  if (machine.remote_slowdown < 1) refuse("remote memory is not faster than local memory");
}

}  // namespace

std::string_view PlacementName(Placement placement) {
  switch (placement) {
    case Placement::kOneNode:
      return "one-node";
    case Placement::kFirstTouch:
      return "first-touch";
    case Placement::kCopies:
      return "copies";
  }
  return "";
}

SimulatedStep Simulate(const ParallelRecord& record, const SimulatedMachine& machine) {
  CheckMachine(machine);
  return Replay(machine).Run(record);
}

}  // namespace tandem::bench
