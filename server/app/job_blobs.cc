#include "server/app/job_blobs.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "config/embedded_models.h"
#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "server/database/database_unavailable.h"
#include "server/files/file_store.h"
#include "server/jobs/job_files.h"
#include "server/jobs/running_job.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kRetryEvery{1000};
constexpr size_t kMaxListBytes = size_t{1} << 20;
constexpr const char* kExportsList = "exports.json";  // in the records: names of the shared exports
// Files of a job's directory that others read, the last one last: it shows that all are there.
constexpr const char* kRecords[] = {"fine_tuning.json", "metrics.jsonl", "events.jsonl", "log.txt",
                                    "result.json"};

std::string NameOfJob(const std::string& id) { return "jobs/" + id; }

// The result's directories below the job's own, relative to it.
std::set<fs::path> ResultDirs(const Job& job) {
  std::set<fs::path> dirs;
  const auto result = nlohmann::json::parse(job.result_json.value_or(""), nullptr, false);
  for (const char* name : {"adapter_dir", "model_dir"}) {
    if (!result.is_object() || !result.contains(name) || !result[name].is_string()) continue;
    const fs::path path = JobBlobs::LocalResult(job, result[name].get<std::string>());
    const fs::path below = path.lexically_relative(job.dir);
    if (below.empty() || below == "." || *below.begin() == "..") continue;
    dirs.insert(below);
  }
  return dirs;
}

std::vector<std::string> AdapterExports(const Job& job) {
  std::vector<std::string> names;
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(job.dir / "exports", absent)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("step-") || !entry.is_directory()) continue;
    if (fs::exists(entry.path() / "adapter_config.json")) names.push_back(name);
  }
  return names;
}

void AddStrings(const nlohmann::ordered_json& json, std::vector<std::string>& strings) {
  if (json.is_string()) strings.push_back(json.get<std::string>());
  if (!json.is_structured()) return;
  for (const auto& value : json) AddStrings(value, strings);
}

}  // namespace

bool IsStoreAway(const Error& error) {
  return error.reason() == kBlobStoreUnavailableReason ||
         error.reason() == kDatabaseUnavailableReason;
}

void UntilStoreWorks(const std::string& job, const std::function<void()>& check,
                     const std::function<void()>& action) {
  for (bool is_logged = false;; is_logged = true) {
    check();
    const auto error = ErrorOf(action);
    if (!error) return;
    if (!IsStoreAway(*error)) throw Error(*error);
    if (!is_logged) spdlog::warn("job_waits id={} reason=\"{}\"", job, error->what());
    std::this_thread::sleep_for(kRetryEvery);
  }
}

fs::path JobBlobs::LocalResult(const Job& job, const std::string& path) {
  const std::string mark = "/" + NameOfJob(job.id) + "/";
  const size_t at = path.rfind(mark);
  return at == std::string::npos ? fs::path(path) : job.dir / path.substr(at + mark.size());
}

void JobBlobs::Share(const Job& job) {
  for (const fs::path& dir : ResultDirs(job)) {
    if (!fs::is_directory(job.dir / dir)) continue;
    blobs_->PutTree(NameOfJob(job.id) + "/" + dir.generic_string(), job.dir / dir);
  }
  for (const std::string& name : AdapterExports(job)) {
    blobs_->PutTree(NameOfJob(job.id) + "/exports/" + name, job.dir / "exports" / name);
  }
  ShareRecords(job);
  blobs_->RemoveBelow(NameOfJob(job.id) + "/checkpoints");  // no replica resumes it any more
}

void JobBlobs::ShareRecords(const Job& job) {
  const fs::path records = job.dir / "records.tmp-share";
  std::error_code ignored;
  fs::remove_all(records, ignored);
  MakeDirectories(records);
  for (const char* name : kRecords) {
    if (fs::exists(job.dir / name)) fs::copy_file(job.dir / name, records / name);
  }
  engine::WriteFileAtomically(records / kExportsList, nlohmann::json(AdapterExports(job)).dump());
  blobs_->PutTree(NameOfJob(job.id) + "/records", records);
  fs::remove_all(records, ignored);
}

void JobBlobs::Fetch(const Job& job) {
  if (fs::exists(job.dir / "result.json")) return;
  MakeDirectories(job.dir);
  for (const fs::path& dir : ResultDirs(job)) {
    MakeDirectories((job.dir / dir).parent_path());
    blobs_->FetchTree(NameOfJob(job.id) + "/" + dir.generic_string(), job.dir / dir);
  }
  const fs::path records = job.dir / "records";
  std::error_code ignored;
  fs::remove_all(records, ignored);  // of a killed process
  blobs_->FetchTree(NameOfJob(job.id) + "/records", records);
  const auto exports = nlohmann::json::parse(
      engine::ReadWholeFile(records / kExportsList, kMaxListBytes), nullptr, false);
  for (const auto& name : exports) {
    if (!name.is_string() || name.get<std::string>().find('/') != std::string::npos) continue;
    MakeDirectories(job.dir / "exports");
    blobs_->FetchTree(NameOfJob(job.id) + "/exports/" + name.get<std::string>(),
                      job.dir / "exports" / name.get<std::string>());
  }
  for (const char* name : kRecords) {
    if (fs::exists(records / name)) fs::rename(records / name, job.dir / name);
  }
  fs::remove_all(records, ignored);
  spdlog::info("job_fetched id={}", job.id);
}

void JobBlobs::Prepare(const JobStart& job, FileStore& files, const std::function<void()>& check) {
  MakeDirectories(job.dir);
  fs::permissions(job.dir, fs::perms::owner_all);
  if (!fs::exists(SpecFile(job.dir))) WriteJobFile(SpecFile(job.dir), job.spec);
  if (job.verb == "train") {
    WriteJobFile(job.dir / kMirrorFile, blobs_->UrlOf(NameOfJob(job.id)) + "\n");
  }
  std::vector<std::string> strings;
  AddStrings(nlohmann::ordered_json::parse(job.spec, nullptr, false), strings);
  UntilStoreWorks(job.id, check, [&] {
    for (const std::string& text : strings) {
      check();
      if (text.starts_with(data_dir_.string() + "/")) FetchInput(text, files);
    }
  });
}

// A path in the data directory is that of a file, of the result of a job, or of an embedded model.
void JobBlobs::FetchInput(const fs::path& path, FileStore& files) {
  if (path == files.PathOf(path.filename())) {
    files.Local(path.filename());
    return;
  }
  if (fs::exists(path)) return;
  const fs::path below = path.lexically_relative(data_dir_);
  if (*below.begin() == "jobs") {
    MakeDirectories(path.parent_path());
    blobs_->FetchTree(below.generic_string(), path);
  } else if (*below.begin() == "models") {
    const std::string name = path.filename();
    config::WriteEmbeddedModel(name.substr(0, name.rfind('-')), path);
  }
}

}  // namespace tandem::server
