#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/jobs/job_record.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

class Database;

struct JobFilter {
  std::optional<JobType> type;
  std::optional<JobStatus> status;
  size_t limit = 20;
  std::string after;              // id of the last job of the previous page; empty: the first page
  std::optional<int64_t> viewer;  // only nobody's jobs and those of this owner
};

struct JobPage {
  std::vector<Job> jobs;  // newest first
  bool has_more = false;
};

using JobCounts = std::map<std::pair<std::string, std::string>, int64_t>;  // by type and status

// The table of jobs: SQLite in DATA_DIR/tandem.db. DATA_DIR/lock allows one process per data
// directory; children never open it. Not thread-safe: the supervisor's lock guards it. Every method
// throws kIo for a disk error and kDataLoss for a corrupt file.
class JobStore {
 public:
  // Creates a missing directory or database. Throws kFailedPrecondition if another server uses the
  // directory or a newer program wrote the database. Throws kDataLoss if the file is corrupt or not
  // a job database.
  static JobStore Open(const std::filesystem::path& data_dir);
  ~JobStore();
  JobStore(JobStore&&) noexcept;
  JobStore& operator=(JobStore&&) = delete;

  std::filesystem::path JobDir(std::string_view id) const;

  // The record is on disk at return. REQUIRES: the id is new.
  void Create(const JobRecord& record);
  // Writes every field except id, type, creation time, request and owner. REQUIRES: the job exists.
  void Update(const JobRecord& record);

  std::optional<JobRecord> Find(std::string_view id);
  // Throws kInvalidArgument if `after` names no job. REQUIRES: limit > 0.
  JobPage List(const JobFilter& filter);
  // Oldest first.
  std::vector<JobRecord> WithStatus(JobStatus status);
  // The number of jobs of each type and status that occurs.
  const JobCounts& Counts();

 private:
  JobStore(std::filesystem::path data_dir, UniqueFd lock, std::unique_ptr<Database> database);

  std::filesystem::path data_dir_;
  UniqueFd lock_;  // DATA_DIR/lock
  std::unique_ptr<Database> database_;
  std::optional<JobCounts> counts_;  // unset: Counts() must count again
};

}  // namespace tandem::server
