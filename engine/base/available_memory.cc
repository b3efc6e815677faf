#include "engine/base/available_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace tandem {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// MemAvailable of /proc/meminfo, otherwise all physical memory.
int64_t MachineRoomBytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  int64_t kib = 0;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return int64_t{sysconf(_SC_PHYS_PAGES)} * int64_t{sysconf(_SC_PAGESIZE)};
}

// Rest of the cgroup v2 limit: limit minus use, with the page cache counted as free. "max" means no
// limit.
int64_t CgroupRoomBytes() {
  int64_t limit = 0;
  int64_t current = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> limit)) return kNoLimit;
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> current)) return limit;
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string key;
  int64_t value = 0;
  while (stat >> key >> value) {
    if (key == "file") current -= value;
  }
  return std::max<int64_t>(0, limit - std::max<int64_t>(0, current));
}

}  // namespace

int64_t AvailableMemoryBytes() { return std::min(MachineRoomBytes(), CgroupRoomBytes()); }

}  // namespace tandem
