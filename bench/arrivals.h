#pragma once

#include <cstdint>
#include <vector>

namespace tandem::bench {

// When the requests of an open loop are due.
struct ArrivalOptions {
  enum class Process { kPoisson, kConstant };
  Process process = Process::kPoisson;
  double requests_per_s = 1;
  int64_t requests = 0;  // how many; 0: as many as begin within duration_s
  double duration_s = 0;
  uint64_t seed = 1;
};

// Seconds since the beginning, ascending; the first of a constant process is 0.
std::vector<double> ArrivalTimes(const ArrivalOptions& options);

}  // namespace tandem::bench
