#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "server/blobs/blob_store.h"
#include "server/jobs/job.h"
#include "server/jobs/job_runner.h"

namespace tandem::server {

class FileStore;

// Whether the store or the database may answer later.
bool IsStoreAway(const Error& error);
// Repeats the action while they do not. `check` runs before each attempt, and throws to end that.
void UntilStoreWorks(const std::string& job, const std::function<void()>& check,
                     const std::function<void()>& action);

// Jobs of replicas whose data directories are their own. A job runs in the directory of one
// replica. Its process mirrors checkpoints to the store (RunMirror), so that another replica can
// resume it. After its success its results go to the store, below `jobs/ID`.
//
//   jobs/ID/adapter, …         the directory of the result, a tree
//   jobs/ID/exports/step-N     the checkpoints that are adapters, trees
//   jobs/ID/records            result.json, fine_tuning.json, metrics, events and log, a tree
//
// Any thread. Methods throw as BlobStore.
class JobBlobs {
 public:
  // `data_dir` is absolute.
  JobBlobs(std::shared_ptr<BlobStore> blobs, std::filesystem::path data_dir)
      : blobs_(std::move(blobs)), data_dir_(std::move(data_dir)) {}

  // Publishes the results of a job that has run here. May be repeated.
  void Share(const Job& job);
  // Fetches them, unless they are here.
  void Fetch(const Job& job);
  // For PreparedJobRunner: writes the spec and fetches what it names in the data directory. Repeats
  // itself as UntilStoreWorks.
  void Prepare(const JobStart& job, FileStore& files, const std::function<void()>& check);

  // A path of the job's result in the directory of this replica.
  static std::filesystem::path LocalResult(const Job& job, const std::string& path);

 private:
  void ShareRecords(const Job& job);
  void FetchInput(const std::filesystem::path& path, FileStore& files);

  const std::shared_ptr<BlobStore> blobs_;
  const std::filesystem::path data_dir_;
};

}  // namespace tandem::server
