#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tandem::bench {

// The processor as Linux describes it; "unknown" or 0 where it does not.
struct MachineInfo {
  std::string cpu = "unknown";           // name of the model
  int sockets = 0;                       // packages with processors that are on
  int numa_nodes = 0;                    // of memory
  int logical_cpus = 0;                  // processors that are on, hyper-threads included
  int64_t cache_bytes = 0;               // of the largest cache of the first processor
  std::string allowed_cpus = "unknown";  // this process's affinity, such as "0-15,32-47"
};

// Reads /proc and /sys below `root`.
MachineInfo ReadMachineInfo(const std::filesystem::path& root = "/");

}  // namespace tandem::bench
