#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>

namespace tandem::server {

// What a pipeline's directory remembers of one job.
struct PipelineRecord {
  // Running: begun and not seen to end, or stopped on the way; the same job goes on from there.
  enum class Status { kRunning, kDone, kFailed };
  Status status = Status::kRunning;
  std::string fingerprint;  // of what it was told and what it read
  std::string stamp;        // of what it made, when it had
  std::map<std::string, std::string> outputs;
  std::string result_json = "{}";
  std::string error;      // of kFailed
  std::string job_dir;    // these two: what is set aside when it is run anew
  std::string out;        // empty: none besides job_dir
  std::string served_id;  // of load: the model's name there
  double seconds = 0;
};

// pipeline.json: every change is on disk when Save returns. One process at a time (pipeline.lock).
class PipelineState {
 public:
  // An empty one where there is no file. Throws kDataLoss for what is none of ours.
  static PipelineState Open(const std::filesystem::path& dir, const std::string& pipeline_name);

  const PipelineRecord* Find(const std::string& job) const;
  void Set(const std::string& job, PipelineRecord record);
  // Whether some job's record names this path as what it made.
  bool IsOurs(const std::filesystem::path& path) const;

 private:
  void Save() const;

  std::filesystem::path file_;
  std::string name_;
  std::map<std::string, PipelineRecord> records_;
};

// Names, sizes and times of the files at these paths: what has not changed has the same stamp.
// Throws kResourceExhausted for a directory of more than a million files.
std::string StampOf(std::span<const std::filesystem::path> paths);

std::string FingerprintOf(std::span<const std::string> parts);

}  // namespace tandem::server
