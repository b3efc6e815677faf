#pragma once

#include <cstdint>
#include <vector>

namespace tandem::bench {

// Times at which an open loop's requests are due.
struct ArrivalOptions {
  enum class Process { kPoisson, kConstant };
  Process process = Process::kPoisson;
  double requests_per_s = 1;
  int64_t requests = 0;  // 0: all that begin within duration_s
  double duration_s = 0;
  uint64_t seed = 1;
};

// Returns seconds since the start, ascending; a constant process starts at 0.
std::vector<double> ArrivalTimes(const ArrivalOptions& options);

}  // namespace tandem::bench
