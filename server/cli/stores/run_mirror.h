#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/job_context.h"
#include "engine/objects/object_client.h"
#include "engine/objects/object_url.h"

namespace tandem::server {

// Keeps a training run on an object store. The run works in a local directory; a thread uploads
// each checkpoint and export as a tree (object_tree.h) while the run continues. An interrupted
// upload is no checkpoint, so the newest complete one on the store is always usable.
class RunMirror {
 public:
  // `url` is the run's place on the store, which keeps the `keep` newest checkpoints; `dir` is its
  // local directory, which only this process uses. Throws what ObjectStore does.
  RunMirror(const engine::ObjectUrl& url, std::filesystem::path dir, int64_t keep);
  ~RunMirror();  // waits for the uploads
  RunMirror(const RunMirror&) = delete;
  RunMirror& operator=(const RunMirror&) = delete;

  // Fetches the newest checkpoint of the store, unless the local directory has it or a newer one.
  // Fetches metrics.jsonl and best/ with it.
  void Restore(std::stop_token stop);
  // The run's context, with uploads after checkpoints and exports. Reports failed uploads as
  // warnings.
  JobContext Watch(const JobContext& context);
  // Waits for the uploads, repeats the failed ones and uploads all other outputs. Throws for what
  // could not be uploaded; the same command then repeats it.
  void Finish();

 private:
  void Enqueue(const std::filesystem::path& output);
  bool IsCheckpoint(const std::filesystem::path& output) const;
  // REQUIRES for the next three: mutex_ held, or no thread.
  void MakeSnapshot(const std::filesystem::path& output) const;
  bool ForgetCheckpoint(const std::filesystem::path& output) const;  // false: it is none
  void ForgetFailedCheckpoints();
  void Run();
  void Upload(const std::filesystem::path& output);
  void RemoveOldCheckpoints(engine::ObjectClient& client, const std::string& uploaded);
  std::filesystem::path SnapshotOf(const std::filesystem::path& output) const;
  std::string PrefixOf(const std::filesystem::path& output) const;

  const engine::ObjectUrl url_;
  const std::filesystem::path dir_;
  const size_t keep_;

  std::mutex mutex_;  // guards the members below, except thread_
  std::condition_variable wake_;
  std::deque<std::filesystem::path> waiting_;
  std::set<std::filesystem::path> failed_;
  std::vector<std::string> warnings_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace tandem::server
