#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "config/embedded_models.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "server/cli/verbs.h"
#include "server/handlers/version.h"

namespace tandem::server {
namespace {

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
  std::string tables;
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    tables += tables.empty() ? "" : ", ";
    tables += table->isa;
  }
  std::printf("kernels       %s (runnable: %s)\n", std::string(engine::Kernels().isa).c_str(),
              tables.c_str());
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    std::printf("open files    %llu at most%s\n", static_cast<unsigned long long>(files.rlim_cur),
                files.rlim_cur < 4200 ? ": raise it (ulimit -n) for 4096 connections" : "");
  }
  std::string names;
  for (const std::string_view name : config::EmbeddedModelNames()) {
    names += names.empty() ? "" : ", ";
    names += name;
  }
  std::printf("embedded      %s\n", names.empty() ? "none" : names.c_str());
}

}  // namespace

void AddDoctor(CLI::App& command, int&) { command.callback(Doctor); }

}  // namespace tandem::server
