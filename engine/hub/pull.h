#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "engine/hub/options.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// How far a pull is, as people want to know it.
struct PullStatus {
  std::string name;
  uint64_t bytes_total = 0;
  uint64_t bytes_done = 0;
  int files_total = 0;
  int files_done = 0;
  double bytes_per_s = 0;   // of the last seconds
  double seconds_left = 0;  // 0: unknown
  std::chrono::steady_clock::duration elapsed{};
  bool is_done = false;
};
// Called a few times a second by the thread that pulls, and once at the end.
using PullReport = std::function<void(const PullStatus&)>;

// Brings a model into the cache and returns its path: the snapshot's directory, or the (first) GGUF
// file. What is there already is not fetched again; when the hub does not answer, or offline, a
// snapshot that is complete is good enough; once it has said what the model is, that one is fetched
// or the pull fails. Throws kNotFound, kPermissionDenied, kUnauthenticated, kUnavailable,
// kFailedPrecondition, kDataLoss, kIo, and kCancelled when stopped: what has arrived is kept, and
// the next pull goes on from there.
std::filesystem::path PullModel(const HubReference& reference, const HubOptions& options,
                                const PullReport& report, std::stop_token stop = {});

// The model in the cache as it is, without asking the hub. Throws kNotFound saying what is missing.
std::filesystem::path FindPulledModel(const HubReference& reference, const HubOptions& options);

// Shows progress on standard error: one line that changes on a terminal, a log line every ten
// seconds elsewhere.
PullReport ShowPullProgress();
// "[ 42 %] 1.2 GiB of 2.9 GiB, 85.3 MiB/s, 20 s left (ORG/NAME)"
std::string DescribeProgress(const PullStatus& status);

// The same, and requests the stop when SIGINT or SIGTERM is pending: for programs that block them.
PullReport StoppingOnSignals(PullReport report, std::stop_source stop);

// Resolves a path of `--model` or a spec: pulls ORG/NAME with progress, unless the path exists, and
// returns every other path unchanged. `token` replaces HF_TOKEN unless it is empty. Throws as
// PullModel.
std::string PulledPath(const std::string& path, const std::string& token = "");

}  // namespace tandem::engine
