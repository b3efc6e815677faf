#pragma once

#include <cstdint>
#include <vector>

namespace tandem::bench {

// Resource usage of a process from /proc.
struct ProcessUsage {
  struct Thread {
    int tid = 0;
    double cpu_s = 0;
  };
  double cpu_s = 0;  // user and system time of all threads, ended ones included
  int64_t rss_bytes = 0;
  int64_t peak_rss_bytes = 0;
  std::vector<Thread> threads;  // alive ones
};

// Throws kNotFound if there is no such process.
ProcessUsage ReadProcessUsage(int pid);

// Returns this process's CPU seconds so far.
double OwnCpuSeconds();

}  // namespace tandem::bench
