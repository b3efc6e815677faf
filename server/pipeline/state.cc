#include "server/pipeline/state.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Status = PipelineRecord::Status;

constexpr size_t kMaxStateBytes = 16 << 20;
constexpr size_t kMaxFiles = 1'000'000;
constexpr const char* kFormat = "tandem-pipeline";

const char* NameOf(Status status) {
  switch (status) {
    case Status::kRunning:
      return "running";
    case Status::kDone:
      return "done";
    case Status::kFailed:
      return "failed";
  }
  return "";
}

Json ToJson(const PipelineRecord& record) {
  Json out = {{"status", NameOf(record.status)},
              {"fingerprint", record.fingerprint},
              {"stamp", record.stamp},
              {"outputs", record.outputs},
              {"error", record.error},
              {"job_dir", record.job_dir},
              {"out", record.out},
              {"served_id", record.served_id},
              {"seconds", record.seconds},
              {"result", Json::object()}};
  out["result"] = Json::parse(record.result_json, nullptr, false);
  return out;
}

PipelineRecord FromJson(const Json& json, const std::string& source) {
  PipelineRecord record;
  const auto text = [&](const char* name) { return engine::JsonStringOr(json, name, "", source); };
  const std::string status = text("status");
  record.status = status == "done"     ? Status::kDone
                  : status == "failed" ? Status::kFailed
                                       : Status::kRunning;
  record.fingerprint = text("fingerprint");
  record.stamp = text("stamp");
  record.error = text("error");
  record.job_dir = text("job_dir");
  record.out = text("out");
  record.served_id = text("served_id");
  record.seconds = engine::JsonNumberOr(json, "seconds", 0, 0, 1e12, source);
  if (json.contains("result")) record.result_json = json["result"].dump();
  if (!json.contains("outputs") || !json["outputs"].is_object()) return record;
  for (const auto& [what, path] : json["outputs"].items()) {
    if (path.is_string()) record.outputs[what] = path.get<std::string>();
  }
  return record;
}

// "NAME SIZE TIME" with the time in nanoseconds, or "NAME none" for a missing file.
std::string LineOf(const std::string& name, const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return name + " none\n";
  return name + " " + std::to_string(status.st_size) + " " + std::to_string(status.st_mtim.tv_sec) +
         "." + std::to_string(status.st_mtim.tv_nsec) + "\n";
}

void AddFiles(const fs::path& root, std::vector<std::string>* lines) {
  std::error_code failed;
  for (auto entry = fs::recursive_directory_iterator(root, failed);
       !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    if (entry->is_directory()) continue;
    if (lines->size() == kMaxFiles) {
      throw Error(
          ErrorCode::kInvalidArgument,
          root.string() + " has more than a million files: give the job a narrower directory");
    }
    lines->push_back(LineOf(entry->path().lexically_relative(root).string(), entry->path()));
  }
}

}  // namespace

PipelineState PipelineState::Open(const fs::path& dir, const std::string& pipeline_name) {
  PipelineState state;
  state.file_ = dir / "pipeline.json";
  state.name_ = pipeline_name;
  if (!fs::exists(state.file_)) return state;
  const std::string source = state.file_.string();
  const Json json =
      engine::ParseUntrustedJson(engine::ReadWholeFile(state.file_, kMaxStateBytes), source);
  if (!json.is_object() || json.value("format", "") != kFormat || json.value("version", 0) != 1 ||
      !json.contains("jobs") || !json["jobs"].is_object()) {
    throw Error(ErrorCode::kDataLoss, source +
                                          ": is not a pipeline state of this version; choose "
                                          "another directory (--dir), or remove the file");
  }
  for (const auto& [job, record] : json["jobs"].items()) {
    if (!record.is_object()) continue;
    std::string where = source;
    where += ": ";
    where += job;
    state.records_[job] = FromJson(record, where);
  }
  return state;
}

const PipelineRecord* PipelineState::Find(const std::string& job) const {
  const auto record = records_.find(job);
  return record == records_.end() ? nullptr : &record->second;
}

void PipelineState::Set(const std::string& job, PipelineRecord record) {
  records_[job] = std::move(record);
  Save();
}

bool PipelineState::IsOurs(const fs::path& path) const {
  return std::any_of(records_.begin(), records_.end(), [&](const auto& entry) {
    return entry.second.out == path.string() || entry.second.job_dir == path.string();
  });
}

void PipelineState::Save() const {
  Json jobs = Json::object();
  for (const auto& [job, record] : records_) jobs[job] = ToJson(record);
  const Json json = {{"format", kFormat}, {"version", 1}, {"name", name_}, {"jobs", jobs}};
  engine::WriteFileAtomically(file_,
                              json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

std::string StampOf(std::span<const fs::path> paths) {
  std::vector<std::string> parts;
  for (const fs::path& path : paths) {
    std::vector<std::string> lines;
    if (fs::is_directory(path)) {
      AddFiles(path, &lines);
      std::sort(lines.begin(), lines.end());
    } else {
      lines.push_back(LineOf("file", path));
    }
    parts.push_back(path.string());
    parts.insert(parts.end(), lines.begin(), lines.end());
  }
  return FingerprintOf(parts);
}

std::string FingerprintOf(std::span<const std::string> parts) {
  engine::Sha256 hash;
  for (const std::string& part : parts) {
    hash.Update(std::to_string(part.size()) + ":");
    hash.Update(part);
  }
  return engine::ToHex(hash.Finish());
}

}  // namespace tandem::server
