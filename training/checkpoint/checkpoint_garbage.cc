#include "training/checkpoint/checkpoint_garbage.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTrashMark = ".trash-";
constexpr size_t kMaxStateBytes = 64 << 20;

bool IsStepDirName(const std::string& name) {
  return name.size() == 12 &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

int64_t BytesBelow(const fs::path& path) {
  std::error_code vanished;  // another process may delete files meanwhile
  if (fs::is_regular_file(fs::symlink_status(path, vanished))) {
    return static_cast<int64_t>(fs::file_size(path, vanished));
  }
  int64_t bytes = 0;
  fs::recursive_directory_iterator entry(path, vanished);
  for (; !vanished && entry != fs::recursive_directory_iterator(); entry.increment(vanished)) {
    std::error_code no_size;
    const uintmax_t size = entry->is_regular_file(no_size) ? entry->file_size(no_size) : 0;
    if (!no_size) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

// Writers hold a lock on their files while they live.
bool HasWriter(const fs::path& path) {
  const engine::FileDescriptor file(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

// Why `path` is a leftover; empty: it is not one.
std::string LeftoverKind(const fs::path& path) {
  const std::string name = path.filename().string();
  if (name.starts_with(kTrashMark)) return "was being deleted";
  const size_t mark = name.find(".tmp-");
  if (mark != std::string::npos && mark > 0) return "left by a killed writer";
  if (name.ends_with(".part") && fs::is_regular_file(path / "conversion.json")) {
    return "left by a killed conversion";
  }
  return "";
}

// The step with the best evaluation, from the newest valid checkpoint's state; negative: none.
int64_t BestStep(const fs::path& newest) {
  const fs::path file = newest / "train_state.json";
  if (newest.empty() || !fs::is_regular_file(file)) return -1;
  const auto state =
      engine::ParseUntrustedJson(engine::ReadWholeFile(file, kMaxStateBytes), file.string());
  if (!state.is_object()) return -1;
  return engine::JsonIntOr(state, "best_step", -1, -1, INT64_MAX, file.string());
}

// Empty when no step is valid. A checkpoint of a later version counts as valid, so that it is never
// deleted.
fs::path NewestValid(const std::vector<fs::path>& steps) {
  for (const fs::path& step : steps) {
    const auto error = ErrorOf([&] { VerifyCheckpoint(step); });
    if (!error || error->code() == ErrorCode::kUnsupported) return step;
  }
  return {};
}

void Remove(const fs::path& path) {
  fs::path doomed = path;
  std::error_code failed;
  if (IsStepDirName(path.filename().string())) {
    doomed = path.parent_path() / (kTrashMark + path.filename().string());
    fs::remove_all(doomed, failed);
    fs::rename(path, doomed, failed);
    if (failed) throw Error(ErrorCode::kIo, path.string() + ": " + failed.message());
  }
  fs::remove_all(doomed, failed);
  if (failed) throw Error(ErrorCode::kIo, doomed.string() + ": " + failed.message());
}

}  // namespace

GarbageResult CollectGarbage(const fs::path& given, const GarbageOptions& options) {
  if (!fs::is_directory(given)) {
    throw Error(ErrorCode::kNotFound, given.string() + " is not a directory")
        .WithReason("path_not_found");
  }
  const fs::path dir = fs::is_directory(given / "checkpoints") ? given / "checkpoints" : given;
  std::vector<fs::path> steps;
  GarbageResult result;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    const fs::path& path = entry.path();
    if (IsStepDirName(path.filename().string()) && entry.is_directory() && !entry.is_symlink()) {
      steps.push_back(path);
      continue;
    }
    const std::string why = LeftoverKind(path);
    if (!why.empty() && !HasWriter(path)) result.removed.push_back({path, BytesBelow(path), why});
  }
  std::sort(steps.rbegin(), steps.rend());
  const fs::path newest = NewestValid(steps);
  const int64_t best = BestStep(newest);
  const auto keep = static_cast<size_t>(std::max<int64_t>(1, options.keep));
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool stays =
        i < keep || steps[i] == newest || std::stoll(steps[i].filename().string()) == best;
    if (stays) {
      result.kept.push_back(steps[i]);
    } else {
      result.removed.push_back({steps[i], BytesBelow(steps[i]), "older than the steps to keep"});
    }
  }
  std::sort(result.removed.begin(), result.removed.end(),
            [](const Garbage& a, const Garbage& b) { return a.path < b.path; });
  if (options.dry_run) return result;
  for (const Garbage& garbage : result.removed) Remove(garbage.path);
  return result;
}

}  // namespace tandem::training
