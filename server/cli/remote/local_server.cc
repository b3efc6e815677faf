#include "server/cli/remote/local_server.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/mapping_faults.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxConfigBytes = size_t{1} << 20;

std::string RandomKey() {
  std::random_device random;
  std::string key;
  for (int i = 0; i < 8; ++i) key += std::to_string(random()) + "-";
  return key;
}

bool IsJobId(const std::string& word) {
  const size_t dash = word.find('-');
  if (dash == std::string::npos) return false;
  const std::string type = word.substr(0, dash);
  return (type == "job" || type == "ftjob") &&
         word.find_first_not_of("0123456789abcdef", dash + 1) == std::string::npos;
}

// Directories of the fine-tuning jobs whose ids end as the name of a fine-tuned model does.
std::vector<fs::path> JobsOfName(const std::string& name, const fs::path& jobs) {
  std::vector<fs::path> found;
  const std::string end = name.substr(name.rfind(':') + 1);
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(jobs, failed)) {
    const std::string id = entry.path().filename().string();
    if (end.size() >= 6 && id.starts_with("ftjob-") && id.ends_with(end)) {
      found.push_back(entry.path());
    }
  }
  return found;
}

std::string TextIn(const Json& object, const char* name) {
  const auto value = object.find(name);
  return value != object.end() && value->is_string() ? value->get<std::string>() : "";
}

// The base of an adapter that a job has trained.
std::string BaseOfJob(const fs::path& dir) {
  const fs::path file = dir / "spec.json";
  const Json spec =
      engine::ParseUntrustedJson(engine::ReadWholeFile(file, kMaxConfigBytes), file.string());
  const auto model = spec.find("model");
  const std::string base =
      model != spec.end() && model->is_object() ? TextIn(*model, "load_parameters_path") : "";
  if (base.empty()) {
    throw Error(ErrorCode::kFailedPrecondition, file.string() + " names no base model");
  }
  return base;
}

LocalModel ModelOfJob(const std::string& name, const fs::path& dir) {
  if (!fs::is_directory(dir) || fs::exists(dir / kModelDeletedFile)) {
    throw Error(ErrorCode::kNotFound, "there is no model of " + Quoted(name) + " in " +
                                          dir.parent_path().string() +
                                          ": name the server's directory with --data-dir, or the "
                                          "server itself with --url");
  }
  const JobResult result = ReadJobResult(dir / "result.json");
  if (result.state != JobResult::State::kSucceeded) {
    throw Error(ErrorCode::kFailedPrecondition,
                Quoted(name) + " has no model: the job has not succeeded");
  }
  const Json json = Json::parse(result.result_json, nullptr, false);
  const std::string model = TextIn(json, "model_dir");
  if (!model.empty()) return {{.name = name, .path = model}, {}};
  const std::string adapter = TextIn(json, "adapter_dir");
  if (adapter.empty()) {
    throw Error(ErrorCode::kFailedPrecondition, Quoted(name) + " has made no model");
  }
  return {{.name = "", .path = BaseOfJob(dir)}, {{.name = name, .path = adapter}}};
}

}  // namespace

LocalModel FindLocalModel(const std::string& word, const fs::path& data_dir) {
  std::error_code ignored;
  const bool is_file = fs::exists(word, ignored);
  const fs::path jobs = data_dir / "jobs";
  if (!is_file && IsJobId(word)) return ModelOfJob(word, jobs / word);
  if (!is_file && word.starts_with("ft:")) {
    const std::vector<fs::path> found = JobsOfName(word, jobs);
    return ModelOfJob(word, found.size() == 1 ? found.front() : jobs / "no-such-job");
  }
  return {ParseModelArgument(word), {}};
}

LocalServer::LocalServer(const LocalModel& model, const ModelFlags& flags) : key_(RandomKey()) {
  engine::SurviveMappingFaults();
  AppOptions options;
  options.http.port = 0;
  options.http.n_request_threads = 2;
  options.http.max_connections = 64;
  options.api_keys = {key_};
  options.engine = ToEngineOptions(flags);
  options.engine.max_seqs = 1;
  // The next turn reuses the prefix.
  options.engine.idle_release = std::chrono::milliseconds(0);
  options.engine.prefix_idle = std::chrono::milliseconds(0);
  options.chat_template = ReadChatTemplate(flags);
  options.models = {model.model};
  options.adapters = model.adapters;
  options.drain_timeout = std::chrono::milliseconds(1000);
  app_ = std::make_unique<App>(std::move(options));
  app_->Start();
}

LocalServer::~LocalServer() { app_->Stop(); }

ServerAddress LocalServer::address() const { return {app_->base_url(), key_, ""}; }

}  // namespace tandem::server
