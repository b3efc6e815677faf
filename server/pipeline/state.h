#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace tandem::server {

// The recorded state of one job of a pipeline.
struct PipelineRecord {
  // kRunning: started, and either interrupted or still running. An unchanged job then resumes.
  enum class Status { kRunning, kDone, kFailed };
  Status status = Status::kRunning;
  std::string fingerprint;  // of its spec and its inputs
  std::string stamp;        // of its outputs, taken when it succeeded
  std::map<std::string, std::string> outputs;
  std::string result_json = "{}";
  std::string error;      // of kFailed
  std::string job_dir;    // job_dir and out move aside when the job starts over
  std::string out;        // empty: all output is in job_dir
  std::string served_id;  // of a load: the model's id in the server
  double seconds = 0;
};

// The content of pipeline.json. Set() returns after the change is on disk. One process at a time
// uses it; pipeline.lock enforces this.
class PipelineState {
 public:
  // Returns an empty state if there is no file. Throws kDataLoss for a file of another format.
  static PipelineState Open(const std::filesystem::path& dir, const std::string& pipeline_name);

  const PipelineRecord* Find(const std::string& job) const;
  void Set(const std::string& job, PipelineRecord record);
  // Whether a job's record names this path as its directory or output.
  bool IsOurs(const std::filesystem::path& path) const;

 private:
  void Save() const;

  std::filesystem::path file_;
  std::string name_;
  std::map<std::string, PipelineRecord> records_;
};

// Hash of the names, sizes and modification times of the files at these paths. Throws
// kInvalidArgument for a directory of more than a million files.
std::string StampOf(std::span<const std::filesystem::path> paths);

std::string FingerprintOf(std::span<const std::string> parts);

}  // namespace tandem::server
