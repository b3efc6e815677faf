#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "bench/cores/machine_info.h"
#include "bench/cores/pool_costs.h"
#include "bench/cores/simulate.h"
#include "engine/base/trace/parallel_trace.h"

namespace tandem::bench {

// The results of `tandem bench cores`.
struct CoresReport {
  // One point of the simulation.
  struct Point {
    SimulatedMachine machine;
    SimulatedStep step;
    double speedup = 0;  // over one core of the same recording
  };
  // One kind of step.
  struct Case {
    std::string name;             // "prefill", "one_stream" or "batch"
    int64_t tokens = 0;           // that a step computes
    std::vector<double> seconds;  // of a step, by thread count
    ParallelRecord record;        // on one thread, with a clock around each task
    // By thread count: the speed-up that the simulation expects on this machine.
    std::vector<double> expected;
    std::vector<Point> points;

    double measured_speedup(size_t i) const { return seconds.front() / seconds[i]; }
  };

  MachineInfo machine;
  int usable_cores = 0;
  std::string family, weights, kernels;
  int rounds = 0;
  double read_one = 0;  // bytes per second of the read loop, with one thread
  double read_all = 0;  // with the largest number of threads
  PoolCosts costs;
  std::vector<int> threads;  // measured, ascending from 1
  std::vector<Case> cases;
};

void Print(std::ostream& out, const CoresReport& report);

// One JSON object; bench/README.md describes its members.
std::string ToJson(const CoresReport& report);

}  // namespace tandem::bench
