#pragma once

#include <array>
#include <string_view>

#include "engine/base/trace/parallel_trace.h"

namespace tandem::bench {

// Where the weights' memory lies on a machine of two sockets.
enum class Placement {
  kOneNode,     // all at the first socket, as one thread or the page cache leaves them
  kFirstTouch,  // half of each matrix at each socket, whose cores alone run its tasks
  kCopies,      // a copy at each socket
};
std::string_view PlacementName(Placement placement);  // "one-node", "first-touch" or "copies"

enum class BarrierGrowth { kLinear, kLogarithmic };

// A machine to replay a step on. Its cores are as fast as those of the recording.
struct SimulatedMachine {
  static constexpr int kMostSockets = 2;

  int cores = 1;
  int sockets = 1;  // with equal numbers of cores
  Placement placement = Placement::kOneNode;
  double socket_bytes_per_second = 0;  // that one socket's memory delivers; 0: no limit
  double remote_slowdown = 1;  // time of a task with weights of the other socket, over local

  double barrier_seconds = 0;  // from the end of the last task to the caller's return, at two cores
  BarrierGrowth barrier_growth = BarrierGrowth::kLinear;
  double claim_seconds = 0;      // one claim; claims from a queue follow one another
  double spin_seconds = 20e-6;   // without a task, after which a worker sleeps
  double wake_call_seconds = 0;  // of the caller, for each sleeper that it wakes
  double wake_seconds = 0;       // from that call to the sleeper's first claim
};

// The time of one step, in seconds. The parts add up to the whole.
struct SimulatedStep {
  double serial = 0;     // the caller's own work, and regions of one task
  double work = 0;       // all other tasks, divided by the number of cores
  double imbalance = 0;  // cores without a task while others work
  double remote = 0;     // by weights at the other socket
  double dispatch = 0;   // claims and wake-ups
  double bandwidth = 0;  // waiting for a socket's memory
  double barrier = 0;

  double critical_path = 0;  // with any number of cores and no costs: a bound for all machines
  std::array<double, SimulatedMachine::kMostSockets> socket_bytes = {};  // by the socket's memory
  double remote_bytes = 0;  // of them, read by cores of the other socket

  double seconds() const {
    return serial + work + imbalance + remote + dispatch + bandwidth + barrier;
  }
};

// Replays a step with the rule of ThreadPool: the caller is worker 0, and the worker that is free
// first claims the next task. A region ends no earlier than its slowest socket delivers the bytes.
// Throws kInvalidArgument for a machine that cannot be.
SimulatedStep Simulate(const ParallelRecord& record, const SimulatedMachine& machine);

}  // namespace tandem::bench
