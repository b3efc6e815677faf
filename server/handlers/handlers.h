#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/request.h"
#include "server/http/response_writer.h"
#include "server/models/model_registry.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

class AdapterHost;
class Admission;
class AliasBook;
class FileStore;
class JobSupervisor;
struct Job;
struct StoredFile;
struct TrainingData;
class Metrics;
class ModelHost;

// Whether what a model thinks between <think> and </think> is answered apart from its text.
enum class ReasoningParser { kAuto, kThink, kNone };  // kAuto: if its template knows <think>

// Ends what would otherwise outlast the server: log followers are told here that it is stopping.
class DrainSignal {
 public:
  // Called once at Raise, at once if that has happened. Weak: what is gone needs no telling.
  void Subscribe(std::weak_ptr<std::function<void()>> callback);
  void Raise();

 private:
  std::mutex mutex_;  // guards both
  bool is_raised_ = false;
  std::vector<std::weak_ptr<std::function<void()>>> callbacks_;
};

// What handlers may use. Owned by the app; outlives every request.
struct HandlerContext {
  ModelRegistry& models;
  std::atomic<bool>& is_loading;
  std::atomic<bool>& is_draining;
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::chrono::milliseconds queue_timeout{0};    // to have a place in the batch by; 0: none
  bool share_prefix_cache = false;               // between API keys
  Admission* admission = nullptr;                // these two: never null while requests run
  Metrics* metrics = nullptr;
  std::function<size_t()> open_connections = {};
  // Whether a request to an open route may learn the names of users' models. Unset: it may.
  std::function<bool(const Request&)> may_see_models = {};
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  std::atomic<JobSupervisor*> jobs{nullptr};        // null: no data directory, or still starting
  std::atomic<ModelHost*> model_host{nullptr};      // null when `jobs` is
  std::atomic<FileStore*> files{nullptr};           // the same
  std::atomic<AdapterHost*> adapter_host{nullptr};  // these two: null while starting and stopping
  std::atomic<AliasBook*> aliases{nullptr};
  int64_t max_file_bytes = int64_t{512} << 20;  // of an upload
  const MemoryLedger* memory = nullptr;         // never null while requests run
  // Whether a model can be opened by this name alone, without a path: the embedded ones.
  std::function<bool(const std::string&)> is_named_model = {};
  // What a checked training spec would take, as JSON; starts nothing.
  std::function<std::string(const training::TrainSpec&)> plan_training = {};
  // Reads all that a checked training spec would train on. Throws kCancelled soon after
  // `is_cancelled` says so, which any thread may ask.
  std::function<TrainingData(const training::TrainSpec&, const std::function<bool()>& is_cancelled)>
      examine_data = {};
  // Where a job finds the files of a served model that is no adapter.
  std::function<std::string(const ServedModel&)> path_of_model = {};
  std::filesystem::path model_root;  // what paths in bodies are relative to
  DrainSignal* drain = nullptr;      // never null while requests run
  std::string base_url;              // "http://127.0.0.1:8080", for the text of GET /
  // What `/health` takes for now; tests put a stopped engine's future here.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

// One per endpoint, in the file of its name. Each parses, acts and answers; faults are thrown as
// Error and become bodies in the dispatch.
void ChatCompletions(const HandlerContext& context, Request request, ResponseWriter writer);
void Completions(const HandlerContext& context, Request request, ResponseWriter writer);
void ListModels(const HandlerContext& context, Request request, ResponseWriter writer);
void GetModel(const HandlerContext& context, Request request, ResponseWriter writer);
void DeleteModel(const HandlerContext& context, Request request, ResponseWriter writer);
void Tokenize(const HandlerContext& context, Request request, ResponseWriter writer);
void Detokenize(const HandlerContext& context, Request request, ResponseWriter writer);
void Render(const HandlerContext& context, Request request, ResponseWriter writer);
void CreateFile(const HandlerContext& context, Request request, ResponseWriter writer);
void ListFiles(const HandlerContext& context, Request request, ResponseWriter writer);
void GetFile(const HandlerContext& context, Request request, ResponseWriter writer);
void DeleteFile(const HandlerContext& context, Request request, ResponseWriter writer);
void GetFileContent(const HandlerContext& context, Request request, ResponseWriter writer);
void CreateFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer);
void ValidateFineTuning(const HandlerContext& context, Request request, ResponseWriter writer);
void ListFineTuningJobs(const HandlerContext& context, Request request, ResponseWriter writer);
void GetFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer);
void CancelFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer);
void PauseFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer);
void ResumeFineTuningJob(const HandlerContext& context, Request request, ResponseWriter writer);
void ListFineTuningEvents(const HandlerContext& context, Request request, ResponseWriter writer);
void ListFineTuningCheckpoints(const HandlerContext& context, Request request,
                               ResponseWriter writer);
void ListAdminModels(const HandlerContext& context, Request request, ResponseWriter writer);
void LoadModel(const HandlerContext& context, Request request, ResponseWriter writer);
void UnloadModel(const HandlerContext& context, Request request, ResponseWriter writer);
void ListAdapters(const HandlerContext& context, Request request, ResponseWriter writer);
void LoadAdapter(const HandlerContext& context, Request request, ResponseWriter writer);
void UnloadAdapter(const HandlerContext& context, Request request, ResponseWriter writer);
void LoadLoraAdapter(const HandlerContext& context, Request request, ResponseWriter writer);
void UnloadLoraAdapter(const HandlerContext& context, Request request, ResponseWriter writer);
void ListAliases(const HandlerContext& context, Request request, ResponseWriter writer);
void GetAlias(const HandlerContext& context, Request request, ResponseWriter writer);
void PutAlias(const HandlerContext& context, Request request, ResponseWriter writer);
void DeleteAlias(const HandlerContext& context, Request request, ResponseWriter writer);
void ConvertModel(const HandlerContext& context, Request request, ResponseWriter writer);
void CreateJob(const HandlerContext& context, Request request, ResponseWriter writer);
void ListJobs(const HandlerContext& context, Request request, ResponseWriter writer);
void GetJob(const HandlerContext& context, Request request, ResponseWriter writer);
void CancelJob(const HandlerContext& context, Request request, ResponseWriter writer);
void PauseJob(const HandlerContext& context, Request request, ResponseWriter writer);
void ResumeJob(const HandlerContext& context, Request request, ResponseWriter writer);
void GetJobLog(const HandlerContext& context, Request request, ResponseWriter writer);
// These run on an io thread: they may not wait.
void Health(const HandlerContext& context, Request request, ResponseWriter writer);
void Ready(const HandlerContext& context, Request request, ResponseWriter writer);
void GetMetrics(const HandlerContext& context, Request request, ResponseWriter writer);
void Version(const HandlerContext& context, Request request, ResponseWriter writer);
void OpenApi(const HandlerContext& context, Request request, ResponseWriter writer);
void Welcome(const HandlerContext& context, Request request, ResponseWriter writer);

// What `/health` and `/ready` say: whether an engine has stopped, and why no requests are taken
// (null: they are).
bool IsStuck(const HandlerContext& context);
const char* WhyNotReady(const HandlerContext& context);

// What GET /openapi.json answers: server/openapi.json.
std::string_view OpenApiText();

// Where CreateFile's body goes while it arrives.
std::shared_ptr<BodySink> OpenFileBody(const HandlerContext& context, const Request& head,
                                       std::function<void()> has_room);

// The uploaded files. Throws kUnavailable while the server is starting, or where it has none.
FileStore& RequireFiles(const HandlerContext& context);
// A file as the API answers it.
std::string FileBody(const StoredFile& file);

// The supervisor. Throws kUnavailable while the server is starting, or where it has no jobs.
JobSupervisor& RequireJobs(const HandlerContext& context);
// A job of the fine-tuning API. Throws kNotFound (job_not_found).
Job RequireFineTuningJob(const HandlerContext& context, const std::string& id);
// A job as the API answers it; the result of a training job says under which id its model answers.
std::string JobBody(const Job& job);
// 202, the job, and where to look for it.
void SendAccepted(const Job& job, const ResponseWriter& writer);

// Throws kInvalidArgument (unsupported_media_type) unless the body is declared as JSON.
void RequireJson(const Request& request);

}  // namespace tandem::server
