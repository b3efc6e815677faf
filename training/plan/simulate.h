#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/spec/spec.h"

namespace tandem::training {

// What a simulation assumes of the ranks and of the links between them.
struct LinkModel {
  double gbit_per_s = 25;      // of a rank's link, in each direction
  double latency_us = 30;      // of a message, its software included
  double add_gbyte_per_s = 8;  // at which a rank adds received floats
};

struct SimulatedStep {
  int64_t ranks = 1;
  double compute_s = 0;
  double exposed_s = 0;   // of communication that no computation hides
  double sent_bytes = 0;  // by a rank

  double efficiency() const { return compute_s / (compute_s + exposed_s); }
};

// Simulates one step of a run: every rank computes the micro-batches of `spec`, whose recorded time
// on one rank is `compute_s`. A step then has as many times the rows as there are ranks. Time goes
// to the program's nodes by their FLOPs. Communication follows the run's own order: one operation
// at a time, buckets of gradients during the last backward pass, and with `fsdp` ranks that share
// parameters the units' gathers, one ahead, and sums. Without parallel.overlap, with shared moments
// and with several leaves of world_invariant a rank the sums follow the backward pass, as in the
// run. An exchange among n ranks costs n - 1
// latencies and (n - 1) / n of the bytes each way. Links do not disturb each other.
SimulatedStep SimulateStep(const TrainSpec& spec, int64_t ranks, int64_t fsdp, double compute_s,
                           const LinkModel& link);

// A table with the assumptions, for the given numbers of ranks, or for those from 2 to 256 that
// suit the mesh. Throws kInvalidArgument when none does.
std::string DescribeSimulation(const TrainSpec& spec, double compute_s, const LinkModel& link,
                               std::vector<int64_t> ranks = {});

}  // namespace tandem::training
