#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "config/embedded_models.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/model/packed_cache.h"
#include "server/cli/model_options.h"
#include "server/cli/verbs.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// The entries of a folder of /sys or /proc whose name is `prefix` and a number.
int CountNumbered(const fs::path& folder, const std::string& prefix) {
  int count = 0;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, absent)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.starts_with(prefix) && name.size() > prefix.size() &&
                          name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
    if (numbered) ++count;
  }
  return count;
}

std::string CountedNodes() {
  const int nodes = CountNumbered("/sys/devices/system/node", "node");
  if (nodes == 0) return "unknown";
  return std::to_string(nodes) +
         (nodes > 1 ? "; bind the process to one of them (numactl --cpunodebind --membind)" : "");
}

std::string FoundGpus() {
  std::error_code absent;
  int nvidia = 0;
  for ([[maybe_unused]] const fs::directory_entry& gpu :
       fs::directory_iterator("/proc/driver/nvidia/gpus", absent)) {
    ++nvidia;
  }
  const int rendering = CountNumbered("/sys/class/drm", "renderD");
  if (nvidia + rendering == 0) return "none found";
  return std::to_string(nvidia) + " with NVIDIA's driver, " + std::to_string(rendering) +
         " render nodes; this program computes on the processor";
}

void Doctor() {
  std::printf("tandem        %s, commit %s, %s\n", VersionNumber().c_str(), VersionCommit().c_str(),
              VersionBuild().c_str());
  std::printf("cores         %d usable\n", UsableCores());
  struct sysinfo info {};
  if (sysinfo(&info) == 0) {
    const double gib = static_cast<double>(info.mem_unit) / (1 << 30);
    std::printf("memory        %.1f GiB, %.1f GiB free\n", static_cast<double>(info.totalram) * gib,
                static_cast<double>(info.freeram) * gib);
  }
  std::printf("numa nodes    %s\n", CountedNodes().c_str());
  std::printf("gpus          %s\n", FoundGpus().c_str());
  std::string tables;
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    tables += tables.empty() ? "" : ", ";
    tables += table->key;
  }
  std::printf("kernels       %s (runnable: %s)\n", std::string(engine::Kernels().key).c_str(),
              tables.c_str());
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    std::printf("open files    %llu at most%s\n", static_cast<unsigned long long>(files.rlim_cur),
                files.rlim_cur < 4200 ? "; raise it (ulimit -n) to serve 4096 connections" : "");
  }
  std::string names;
  for (const std::string_view name : config::EmbeddedModelNames()) {
    names += names.empty() ? "" : ", ";
    names += name;
  }
  std::printf("embedded      %s\n", names.empty() ? "none" : names.c_str());
}

const char* StateText(engine::PackedEntry::State state) {
  switch (state) {
    case engine::PackedEntry::State::kSound:
      return "sound";
    case engine::PackedEntry::State::kDamaged:
      return "damaged";
    case engine::PackedEntry::State::kStale:
      return "stale";
  }
  return "";
}

// Prints one line per entry of the cache of packed weights. Returns 1 if one is damaged, else 0.
int DoctorCache() {
  using engine::PackedEntry;
  ThreadPool pool(0);
  const std::filesystem::path dir = CacheDir();
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<PackedEntry> entries = engine::InspectPackedCache(dir, pool);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  std::printf("cache         %s, %zu packed models\n", dir.c_str(), entries.size());
  int64_t bytes = 0;
  bool any_damaged = false;
  for (const PackedEntry& entry : entries) {
    bytes += entry.bytes;
    any_damaged = any_damaged || entry.state == PackedEntry::State::kDamaged;
    std::printf("%-13s %s (%lld bytes)%s%s\n", StateText(entry.state),
                entry.path.filename().c_str(), static_cast<long long>(entry.bytes),
                entry.reason.empty() ? "" : ": ", entry.reason.c_str());
  }
  std::printf("read          %.2f GB in %.2f s\n", static_cast<double>(bytes) / 1e9, took.count());
  if (any_damaged) std::printf("the next load of the model replaces a damaged file\n");
  return any_damaged ? 1 : 0;
}

}  // namespace

void AddDoctor(CLI::App& command, int& exit_code) {
  const auto cache = std::make_shared<bool>(false);
  command.add_flag(
      "--cache", *cache,
      "read all packed weights; report each as sound, damaged or stale; exit 1 if any is damaged");
  command.callback([cache, &exit_code] {
    if (*cache) {
      exit_code = DoctorCache();
    } else {
      Doctor();
    }
  });
}

}  // namespace tandem::server
