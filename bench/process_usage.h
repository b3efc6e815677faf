#pragma once

#include <cstdint>
#include <vector>

namespace tandem::bench {

// What /proc says of a process.
struct ProcessUsage {
  struct Thread {
    int tid = 0;
    double cpu_s = 0;
  };
  double cpu_s = 0;  // user and system, of all its threads, ended ones too
  int64_t rss_bytes = 0;
  int64_t peak_rss_bytes = 0;
  std::vector<Thread> threads;  // those alive
};

// Throws kNotFound when there is no such process.
ProcessUsage ReadProcessUsage(int pid);

// CPU seconds of this process so far.
double OwnCpuSeconds();

}  // namespace tandem::bench
