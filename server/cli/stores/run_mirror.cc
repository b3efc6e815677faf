#include "server/cli/stores/run_mirror.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "engine/objects/object_tree.h"
#include "training/checkpoint/checkpoint_store.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCheckpoints = "checkpoints";
constexpr const char* kSnapshots = ".uploads";  // hard links to outputs that wait for their upload
constexpr size_t kMostRunObjects = 200'000;

// Names below the local directory that stay there.
bool IsLocalOnly(const std::string& name) {
  return name == kCheckpoints || name == "exports" || name == kSnapshots || name == "work.lock" ||
         name.find(".tmp-") != std::string::npos || name.ends_with(".incomplete");
}

bool IsStepName(const std::string& name) {
  return !name.empty() && name.find_first_not_of("0123456789") == std::string::npos;
}

std::string NewestLocalStep(const fs::path& dir) {
  std::string newest;
  std::error_code absent;
  for (fs::directory_iterator entry(dir / kCheckpoints, absent), end; !absent && entry != end;
       entry.increment(absent)) {
    const std::string name = entry->path().filename().string();
    if (!IsStepName(name)) continue;
    if (ErrorOf([&] { training::VerifyCheckpoint(entry->path()); })) continue;
    newest = std::max(newest, name);
  }
  return newest;
}

// The steps below the prefix, complete or not.
std::set<std::string> StepsOf(engine::ObjectClient& client, const std::string& prefix) {
  std::set<std::string> steps;
  for (const engine::ObjectInfo& info : client.List(prefix, kMostRunObjects)) {
    const std::string name = info.key.substr(prefix.size());
    const std::string step = name.substr(0, name.find('/'));
    if (IsStepName(step) && name.size() > step.size()) steps.insert(step);
  }
  return steps;
}

bool IsComplete(engine::ObjectClient& client, const std::string& prefix) {
  return !ErrorOf({ErrorCode::kFailedPrecondition, ErrorCode::kDataLoss, ErrorCode::kNotFound},
                  [&] { engine::ListTree(client, prefix); });
}

void Ignore(uint64_t) {}

}  // namespace

RunMirror::RunMirror(const engine::ObjectUrl& url, fs::path dir, int64_t keep)
    : url_(url),
      dir_(std::move(dir)),
      keep_(static_cast<size_t>(std::max<int64_t>(1, keep))),
      thread_([this] { Run(); }) {
  std::error_code ignored;
  fs::remove_all(dir_ / kSnapshots, ignored);  // of a killed process
}

RunMirror::~RunMirror() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

void RunMirror::Restore(std::stop_token stop) {
  engine::ObjectStore store(url_, stop);
  engine::ObjectClient client(store);
  const std::string prefix = engine::AsPrefix(url_.key) + kCheckpoints + "/";
  const std::set<std::string> steps = StepsOf(client, prefix);
  const std::string local = NewestLocalStep(dir_);
  // Names have one width, so the last one is the newest.
  for (auto step = steps.rbegin(); step != steps.rend() && *step > local; ++step) {
    const fs::path next = dir_ / kCheckpoints / (*step + ".tmp-fetched");
    std::error_code ignored;
    fs::remove_all(next, ignored);  // of a killed process, perhaps of another version
    MakeDirectories(next);
    const auto unusable =
        ErrorOf({ErrorCode::kFailedPrecondition, ErrorCode::kDataLoss, ErrorCode::kNotFound}, [&] {
          engine::FetchTree(store, prefix + *step + "/", next, Ignore);
          training::VerifyCheckpoint(next);
        });
    if (unusable) {
      spdlog::warn("run_checkpoint_skipped step={} reason=\"{}\"", *step, unusable->what());
      fs::remove_all(next, ignored);
      continue;
    }
    fs::remove_all(dir_ / kCheckpoints / *step, ignored);  // not valid: see NewestLocalStep
    engine::PublishPath(next, dir_ / kCheckpoints / *step, engine::IfThere::kRefuse);
    spdlog::info("run_checkpoint_fetched url=\"{}\" step={}", EscapeJson(url_.Text()), *step);
    // Continue the store's log, not that of an older local one.
    const std::string run = engine::AsPrefix(url_.key);
    if (const auto info = client.Find(run + "metrics.jsonl")) {
      fs::remove(dir_ / "metrics.jsonl.incomplete", ignored);
      engine::FetchObjects(store, {{*info, dir_ / "metrics.jsonl"}}, Ignore);
    }
    if (!client.List(run + "best/", kMostRunObjects).empty()) {
      fs::remove_all(dir_ / "best", ignored);
      MakeDirectories(dir_ / "best");
      engine::FetchTree(store, run + "best/", dir_ / "best", Ignore);
    }
    return;
  }
}

JobContext RunMirror::Watch(const JobContext& context) {
  JobContext watched = context;
  watched.report = [this, report = context.report](const ProgressEvent& event) {
    std::vector<std::string> warnings;
    {
      const std::lock_guard lock(mutex_);
      warnings.swap(warnings_);
    }
    if (report) {
      for (const std::string& text : warnings) {
        report({"warning", event.step, event.total_steps, 0, text});
      }
      report(event);
    }
    if (event.kind == "checkpoint" || event.kind == "export") Enqueue(event.message);
  };
  return watched;
}

// Hard links keep the files of a checkpoint that the run deletes before its upload ends.
fs::path RunMirror::SnapshotOf(const fs::path& output) const {
  return dir_ / kSnapshots / output.filename();
}

std::string RunMirror::PrefixOf(const fs::path& output) const {
  return engine::AsPrefix(url_.key) + output.lexically_relative(dir_).generic_string() + "/";
}

// A part of an output must never look like one, so a failure leaves no snapshot.
void RunMirror::MakeSnapshot(const fs::path& output) const {
  const fs::path snapshot = SnapshotOf(output);
  std::error_code code;
  fs::remove_all(snapshot, code);
  MakeDirectories(snapshot);
  fs::copy(output, snapshot, fs::copy_options::recursive | fs::copy_options::create_hard_links,
           code);
  if (!code) return;
  std::error_code ignored;
  fs::remove_all(snapshot, ignored);
  engine::ThrowSystemError("create links to", output, code.value());
}

bool RunMirror::IsCheckpoint(const fs::path& output) const {
  return output.parent_path() == dir_ / kCheckpoints;
}

// The links of a checkpoint keep its files on the disk, so they go with it.
bool RunMirror::ForgetCheckpoint(const fs::path& output) const {
  if (!IsCheckpoint(output)) return false;
  std::error_code ignored;
  fs::remove_all(SnapshotOf(output), ignored);
  return true;
}

void RunMirror::ForgetFailedCheckpoints() {
  std::erase_if(failed_, [&](const fs::path& output) { return ForgetCheckpoint(output); });
}

void RunMirror::Enqueue(const fs::path& output) {
  const std::lock_guard lock(mutex_);
  if (const auto failed = Attempt([&] { MakeSnapshot(output); })) {
    warnings_.push_back(output.string() + " is not uploaded: " + failed->what());
    failed_.insert(output);
    return;
  }
  if (IsCheckpoint(output)) {
    // It replaces those whose upload has not begun or has failed. The links are those of `output`
    // by now if it is among them.
    std::erase_if(waiting_, [&](const fs::path& other) {
      return other == output || ForgetCheckpoint(other);
    });
    failed_.erase(output);
    ForgetFailedCheckpoints();
  }
  waiting_.push_back(output);
  wake_.notify_all();
}

void RunMirror::Run() {
  NameThisThread("tandem-mirror");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const fs::path output = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    const auto failed = Attempt([&] { Upload(output); });
    lock.lock();
    if (failed) {
      failed_.insert(output);
      warnings_.push_back("uploading " + output.filename().string() +
                          " failed, training continues: " + failed->what());
      // Perhaps a newer checkpoint came meanwhile.
      if (std::any_of(waiting_.begin(), waiting_.end(),
                      [&](const fs::path& other) { return IsCheckpoint(other); })) {
        ForgetFailedCheckpoints();
      }
    } else {
      failed_.erase(output);
    }
  }
}

void RunMirror::Upload(const fs::path& output) {
  const fs::path snapshot = SnapshotOf(output);
  engine::ObjectStore store(url_);
  engine::PublishTree(store, snapshot, PrefixOf(output), engine::IfObjects::kReplace, Ignore);
  engine::ObjectClient client(store);
  const fs::path metrics = dir_ / "metrics.jsonl";
  std::error_code ignored;
  if (fs::exists(metrics, ignored)) {
    engine::UploadFiles(store, {{metrics, engine::AsPrefix(url_.key) + "metrics.jsonl"}}, Ignore);
  }
  if (IsCheckpoint(output)) RemoveOldCheckpoints(client, output.filename().string());
  fs::remove_all(snapshot, ignored);
  spdlog::info("run_uploaded url=\"{}\"", EscapeJson(store.Name(PrefixOf(output))));
}

// Keeps the newest complete checkpoints, of which `uploaded` is one. Later steps are of an earlier
// process of the run, which perhaps did not end their upload: they count for nothing.
void RunMirror::RemoveOldCheckpoints(engine::ObjectClient& client, const std::string& uploaded) {
  const std::string prefix = engine::AsPrefix(url_.key) + kCheckpoints + "/";
  const std::set<std::string> steps = StepsOf(client, prefix);
  size_t n_kept = 0;
  for (auto end = steps.upper_bound(uploaded); end != steps.begin();) {
    const std::string step = prefix + *--end + "/";
    if (n_kept >= keep_) {
      engine::RemoveTree(client, step);
    } else if (IsComplete(client, step)) {
      ++n_kept;
    }
  }
}

void RunMirror::Finish() {
  std::vector<fs::path> again;
  {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    wake_.notify_all();
    // The thread ends after the last upload.
  }
  thread_.join();
  thread_ = std::thread([] {});  // for the destructor
  for (const fs::path& output : std::exchange(failed_, {})) {
    std::error_code absent;
    // The run may have removed the output itself meanwhile, for a newer one.
    if (!fs::exists(SnapshotOf(output), absent) && fs::exists(output, absent)) MakeSnapshot(output);
    if (fs::exists(SnapshotOf(output), absent)) again.push_back(output);
  }
  const auto advise = [&](const Error& error) {
    return Error(error.code(), std::string(error.what()) + "; the run's outputs are in " +
                                   dir_.string() + ", and the same command uploads them again");
  };
  WithContext(advise, [&] {
    for (const fs::path& output : again) Upload(output);
    engine::ObjectStore store(url_);
    std::vector<engine::FileToUpload> files;
    for (const auto& entry : fs::directory_iterator(dir_)) {
      const std::string name = entry.path().filename().string();
      if (IsLocalOnly(name)) continue;
      if (entry.is_directory()) {
        engine::PublishTree(store, entry.path(), PrefixOf(entry.path()),
                            engine::IfObjects::kReplace, Ignore);
      } else if (entry.is_regular_file()) {
        files.push_back({entry.path(), engine::AsPrefix(url_.key) + name});
      }
    }
    engine::UploadFiles(store, files, Ignore);
  });
  std::error_code ignored;
  fs::remove_all(dir_ / kSnapshots, ignored);
}

}  // namespace tandem::server
