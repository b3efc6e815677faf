#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "engine/hub/options.h"
#include "engine/hub/reference.h"

namespace tandem::engine {

// How far a pull is.
struct PullStatus {
  std::string name;
  uint64_t bytes_total = 0;
  uint64_t bytes_done = 0;
  int files_total = 0;
  int files_done = 0;
  bool is_done = false;
};
// Called five times a second on the thread that called PullModel, and once at the end.
using PullReport = std::function<void(const PullStatus&)>;

// Pulls a model into the cache, as one ProgressTask, and returns its path: the snapshot's
// directory, or the (first) GGUF file. Cached files are not fetched again. When the hub does not
// answer its first request, or offline, a complete snapshot in the cache is used. After the hub has
// answered, the pull fetches that version or fails. Throws kNotFound, kPermissionDenied,
// kUnauthenticated, kUnavailable, kFailedPrecondition, kDataLoss, kIo, and kCancelled when stopped.
// Fetched bytes stay, and the next pull resumes.
std::filesystem::path PullModel(const HubReference& reference, const HubOptions& options,
                                const PullReport& report, std::stop_token stop = {});

// Finds the model in the cache without a request. Throws kNotFound naming the missing parts.
std::filesystem::path FindPulledModel(const HubReference& reference, const HubOptions& options);

// Calls `report`, which may be empty, and requests a stop when SIGINT or SIGTERM is pending. For
// programs that block these signals.
PullReport StoppingOnSignals(PullReport report, std::stop_source stop);

// Resolves a path of `--model` or a spec. A path that does not exist and is a hub reference is
// pulled. Every other path is returned unchanged. `token` replaces HF_TOKEN unless
// it is empty. Throws like PullModel.
std::string PulledPath(const std::string& path, const std::string& token = "");

}  // namespace tandem::engine
