#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/database/database_source.h"
#include "server/jobs/job_record.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

class Database;
class Lease;
class Transaction;

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

// The table of jobs: SQLite in DATA_DIR/tandem.db, or a database that replicas share, with
// DATA_DIR. DATA_DIR/lock allows one process per data directory, or replicas only; children never
// open the database. Not thread-safe: the supervisor's lock guards it. Every method throws as
// Database.
//
// Of the replicas, the one with the lease of the jobs supervises them.
class JobStore {
 public:
  // kOwn: each replica has a data directory of its own, so the database keeps the specs too.
  enum class DataDir { kShared, kOwn };
  // Creates a missing directory or database. Throws kFailedPrecondition if another server uses the
  // directory or a newer program wrote the database. Throws kDataLoss if the file is corrupt or not
  // a job database. `replica` names this process; it is needed for a shared database.
  static JobStore Open(const std::filesystem::path& data_dir, const DatabaseSource& shared = {},
                       const std::string& replica = {}, DataDir kind = DataDir::kShared);
  ~JobStore();
  JobStore(JobStore&&) noexcept;
  JobStore& operator=(JobStore&&) = delete;

  std::filesystem::path JobDir(std::string_view id) const;

  bool is_shared() const { return lease_ != nullptr; }
  // Takes or prolongs the lease, if it is time to; kLease is longer than any step of a supervisor.
  // True without replicas.
  bool KeepLease();
  void ReleaseLease();

  // A job is read and written within a Change, so that no other replica changes it in between.
  // Rolls back on destruction without Commit.
  class Change {
   public:
    enum class By { kAnyServer, kSupervisor };
    // kSupervisor: throws kUnavailable (lease_lost) if another replica supervises now.
    Change(JobStore& store, By by);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;
    void Commit();

   private:
    const std::unique_ptr<Transaction> transaction_;
  };

  bool has_own_dir() const { return has_own_dir_; }

  // The record is on disk at return. With DataDir::kOwn it has the spec, as SpecOf returns it;
  // throws kInvalidArgument as PortableSpec. REQUIRES: the id is new.
  void Create(const JobRecord& record, std::string_view spec_json = {});
  // The spec of a job, with the paths of this replica's data directory. Empty unless the database
  // keeps specs.
  std::string SpecOf(std::string_view id);
  // Tells all replicas that the model of the job was deleted.
  void MarkModelDeleted(std::string_view id);
  // Writes every field except id, type, creation time, request and owner. REQUIRES: the job exists.
  void Update(const JobRecord& record);

  std::optional<JobRecord> Find(std::string_view id);
  // Throws kInvalidArgument if `after` names no job. REQUIRES: limit > 0.
  JobPage List(const JobFilter& filter);
  // Oldest first.
  std::vector<JobRecord> WithStatus(JobStatus status);
  // As WithStatus, but only work of servers that have ended; the store must know that of this one.
  std::vector<JobRecord> LeftWithStatus(JobStatus status);
  // Makes the other replicas look at the job again.
  void Touch(std::string_view id);
  // The number of jobs of each type and status that occurs.
  const JobCounts& Counts();

 private:
  JobStore(std::filesystem::path data_dir, UniqueFd lock, std::unique_ptr<Database> database);

  std::vector<JobRecord> Read(const std::string& condition, JobStatus status);

  std::filesystem::path data_dir_;
  bool has_own_dir_ = false;
  UniqueFd lock_;  // DATA_DIR/lock
  std::unique_ptr<Database> database_;
  std::optional<std::string> replica_;                 // unset: no replicas
  std::unique_ptr<Lease> lease_;                       // null: no replicas
  std::chrono::steady_clock::time_point lease_due_{};  // when to ask for the lease again
  std::optional<JobCounts> counts_;                    // unset: Counts() must count again
};

}  // namespace tandem::server
