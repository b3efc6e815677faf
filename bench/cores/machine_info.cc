#include "bench/cores/machine_info.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

// The value of the first line "key : value"; empty if there is none.
std::string ValueOf(const fs::path& file, std::string_view key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    const size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const size_t value = line.find_first_not_of(" \t", colon + 1);
    return value == std::string::npos ? "" : line.substr(value);
  }
  return "";
}

// The subfolders whose name is `prefix` and a number.
std::vector<fs::path> Numbered(const fs::path& folder, std::string_view prefix) {
  std::vector<fs::path> found;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, absent)) {
    const std::string name = entry.path().filename().string();
    const bool is_numbered =
        name.size() > prefix.size() && name.starts_with(prefix) &&
        std::all_of(name.begin() + static_cast<std::ptrdiff_t>(prefix.size()), name.end(),
                    [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_numbered) found.push_back(entry.path());
  }
  return found;
}

// Bytes of a size such as "2048K"; 0 if it is none.
int64_t CacheBytes(const fs::path& file) {
  int64_t kib = 0;
  char unit = 0;
  return std::ifstream(file) >> kib >> unit && unit == 'K' ? kib << 10 : 0;
}

}  // namespace

MachineInfo ReadMachineInfo(const fs::path& root) {
  MachineInfo info;
  if (const auto cpu = ValueOf(root / "proc/cpuinfo", "model name"); !cpu.empty()) info.cpu = cpu;
  const std::string allowed = ValueOf(root / "proc/self/status", "Cpus_allowed_list");
  if (!allowed.empty()) info.allowed_cpus = allowed;
  std::set<int> packages;
  for (const fs::path& cpu : Numbered(root / "sys/devices/system/cpu", "cpu")) {
    int package = 0;
    std::ifstream topology(cpu / "topology/physical_package_id");
    if (!(topology >> package)) continue;  // a processor that is off
    packages.insert(package);
    ++info.logical_cpus;
  }
  for (const fs::path& cache : Numbered(root / "sys/devices/system/cpu/cpu0/cache", "index")) {
    info.cache_bytes = std::max(info.cache_bytes, CacheBytes(cache / "size"));
  }
  info.sockets = static_cast<int>(packages.size());
  info.numa_nodes = static_cast<int>(Numbered(root / "sys/devices/system/node", "node").size());
  return info;
}

}  // namespace tandem::bench
