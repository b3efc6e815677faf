#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <vector>

#include "bench/cores/report.h"
#include "bench/cores/simulate.h"
#include "engine/kernels/block_formats.h"

namespace tandem::bench {

// `tandem bench cores`: steps of an engine with 1, 2, 4, … threads of this machine, and the same
// steps replayed on simulated machines with more cores and two sockets (bench/README.md). The
// replay is checked against the measured thread counts.
struct CoresBenchOptions {
  std::filesystem::path model;      // Hugging Face directory; empty: random weights
  std::filesystem::path cache_dir;  // of packed weights and the random model
  engine::BlockFormat block = engine::BlockFormat::kNone;  // weights are rounded to it
  int threads = 0;                                         // at most; 0: one per physical core
  int rounds = 3;
  int64_t prompt_tokens = 512;
  int64_t batch = 16;
  int64_t decode_steps = 8;  // per round, thread count and case

  std::vector<int> cores = {1, 2, 4, 8, 16, 32, 64, 128};  // simulated, ascending
  double socket_bytes_per_second = 0;  // 0: from the read loop (bench/README.md)
  double remote_slowdown = 1.6;
  BarrierGrowth barrier_growth = BarrierGrowth::kLinear;
  std::filesystem::path json_file;  // empty: none
};

// Measures and simulates. `read_rate(threads)`: bytes per second of the read loop. Writes a message
// to `out` if it makes the random model. Throws kInvalidArgument for core counts below 1.
CoresReport MeasureCores(std::ostream& out, const CoresBenchOptions& options,
                         const std::function<double(int threads)>& read_rate);

// Prints the results and returns 0.
int RunCoresBench(std::ostream& out, const CoresBenchOptions& options);

}  // namespace tandem::bench
