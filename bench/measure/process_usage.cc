#include "bench/measure/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Reads utime and stime, fields 14 and 15 of a `stat` file. The second field is a name in brackets
// that may contain brackets and spaces.
double CpuSeconds(const std::string& stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

// Reads a line like "VmRSS:          12345 kB" of a `status` file.
int64_t StatusBytes(const std::string& status, const std::string& key) {
  const size_t at = status.find(key);
  return at == std::string::npos ? 0 : std::atoll(status.c_str() + at + key.size()) * 1024;
}

}  // namespace

ProcessUsage ReadProcessUsage(int pid) {
  const fs::path dir = "/proc/" + std::to_string(pid);
  const std::string stat = ReadAll(dir / "stat");
  if (stat.empty()) {
    throw Error(ErrorCode::kNotFound, "no such process: " + std::to_string(pid));
  }
  const std::string status = ReadAll(dir / "status");
  ProcessUsage usage{.cpu_s = CpuSeconds(stat),
                     .rss_bytes = StatusBytes(status, "VmRSS:"),
                     .peak_rss_bytes = StatusBytes(status, "VmHWM:"),
                     .threads = {}};
  std::error_code gone;  // the process or a thread may end meanwhile
  for (fs::directory_iterator it(dir / "task", gone), end; !gone && it != end; it.increment(gone)) {
    const std::string thread_stat = ReadAll(it->path() / "stat");
    if (thread_stat.empty()) continue;
    usage.threads.push_back({std::atoi(it->path().filename().c_str()), CpuSeconds(thread_stat)});
  }
  return usage;
}

double OwnCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace tandem::bench
