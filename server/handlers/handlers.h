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
#include "server/keys/ownership.h"
#include "server/models/model_registry.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

class AdapterHost;
class Admission;
class AliasBook;
class BackgroundResponses;
class Batches;
class DetachedRequests;
struct ExamineOptions;
class FileStore;
class JobSupervisor;
class KeyUsage;
class ManagedKeys;
struct Job;
struct StoredFile;
struct TrainingData;
class Metrics;
class ModelHost;
class ModelPulls;
class ResponseStore;

// Whether replies separate the text between <think> and </think> from the answer.
enum class ReasoningParser { kAuto, kThink, kNone };  // kAuto: if the chat template has <think>

// Tells long-lived streams, such as log followers, that the server is stopping. Thread-safe.
class DrainSignal {
 public:
  // Raise calls the callback once; if Raise has happened, this call does. Expired callbacks are
  // skipped.
  void Subscribe(std::weak_ptr<std::function<void()>> callback);
  void Raise();

 private:
  std::mutex mutex_;  // guards both
  bool is_raised_ = false;
  std::vector<std::weak_ptr<std::function<void()>>> callbacks_;
};

// Everything a handler may use. The app owns it; it outlives every request.
struct HandlerContext {
  ModelRegistry& models;
  std::atomic<bool>& is_loading;
  std::atomic<bool>& is_draining;
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::chrono::milliseconds queue_timeout{0};    // longest wait for a place in the batch; 0: none
  bool share_prefix_cache = false;               // between API keys
  bool isolate_keys = false;                     // see ViewerOf
  ManagedKeys* keys = nullptr;                   // null: no database of keys
  const KeyUsage* key_usage = nullptr;           // never null while requests run
  Admission* admission = nullptr;                // this and `metrics`: never null during requests
  Metrics* metrics = nullptr;
  std::function<size_t()> open_connections = {};
  // Whether a request to a route without authentication may see the names of users' models.
  // Unset: it may.
  std::function<bool(const Request&)> may_see_models = {};
  // As may_see_models, for the names of API keys. Unset: it may not.
  std::function<bool(const Request&)> may_see_keys = {};
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  std::string tool_parser = "auto";  // auto: by chat template; none; or a row of ToolFormats
  std::atomic<JobSupervisor*> jobs{nullptr};        // null: no data directory, or still starting
  std::atomic<ModelHost*> model_host{nullptr};      // set and cleared with `jobs`
  std::atomic<ModelPulls*> pulls{nullptr};          // set and cleared with `jobs`
  std::atomic<FileStore*> files{nullptr};           // set and cleared with `jobs`
  std::atomic<Batches*> batches{nullptr};           // as jobs; set last
  std::atomic<AdapterHost*> adapter_host{nullptr};  // null: no admin key, starting or stopping
  std::atomic<AliasBook*> aliases{nullptr};         // as adapter_host
  std::atomic<ResponseStore*> responses{nullptr};   // null: still starting, or stopped
  BackgroundResponses* background = nullptr;        // this and `detached`: never null
  DetachedRequests* detached = nullptr;             // during requests
  int64_t max_file_bytes = int64_t{512} << 20;      // largest upload
  const MemoryLedger* memory = nullptr;             // never null while requests run
  std::vector<std::string> named_models = {};       // embedded models, which need no path
  // Whether the name is that of an embedded model.
  std::function<bool(const std::string&)> is_named_model = {};
  // Returns the plan of a checked training spec (memory, time) as JSON; starts nothing.
  std::function<std::string(const training::TrainSpec&)> plan_training = {};
  // Reads data of a checked training spec; see ExamineTrainingData.
  std::function<TrainingData(const training::TrainSpec&, const ExamineOptions&)> examine_data = {};
  // Path of the files of a served model, for jobs. Not for adapters.
  std::function<std::string(const ServedModel&)> path_of_model = {};
  std::filesystem::path model_root;        // paths in request bodies are relative to it
  DrainSignal* drain = nullptr;            // never null while requests run
  std::string base_url;                    // "http://127.0.0.1:8080", for the text of GET /
  bool has_console = true;                 // false: --no-console
  std::filesystem::path console_dir = {};  // assets for development; empty: the embedded ones
  // Whether every route of /v1 needs a key. Unset: no.
  std::function<bool()> requires_key = {};
  // Clock of `/health` and `/metrics`. Tests set it ahead, so that an engine looks stuck.
  std::function<std::chrono::steady_clock::time_point()> now = std::chrono::steady_clock::now;
};

// Whether some engine's loop has stopped (`/health`).
bool IsStuck(const HandlerContext& context);
// Why the server takes no requests (`/ready`); null if it takes them.
const char* WhyNotReady(const HandlerContext& context);

// The text of server/openapi.json.
std::string_view OpenApiText();

// Why a part of the server is missing: the server is starting or stopping, or has no data
// directory.
Error NotReady(const HandlerContext& context);
// The owner of a record that the request makes: the client's number; nullopt: nobody.
std::optional<int64_t> OwnerOf(const Request& request);
// All records without --isolate-keys, and for administrators.
Viewer ViewerOf(const HandlerContext& context, const Request& request);

// The viewer of stored responses. Other keys never see a response, whatever --isolate-keys says.
Viewer ResponseViewerOf(const Request& request);
// Throws NotReady while the server starts or stops.
ResponseStore& RequireResponses(const HandlerContext& context);

// Throws NotReady unless the server keeps files.
FileStore& RequireFiles(const HandlerContext& context);
// The file object of the API, as JSON.
std::string FileBody(const StoredFile& file);

// Throws NotReady unless the server has jobs.
JobSupervisor& RequireJobs(const HandlerContext& context);
// The fine-tuning job of the path's `id`. Throws kNotFound (job_not_found) if there is none, or if
// it belongs to another key.
Job RequireFineTuningJob(const HandlerContext& context, const Request& request);
// The job object of /admin/jobs, as JSON. The result of a training job names the id of its model.
std::string JobBody(const Job& job);
// Sends 202 with the job and a `location` header.
void SendAccepted(const Job& job, const ResponseWriter& writer);

// Throws kInvalidArgument (unsupported_media_type) unless the content type is application/json.
void RequireJson(const Request& request);
// Calls RequireJson for a request of a page, which has an Origin. Other programs send Ollama any
// content type or none, as its documentation does. A browser names the origin in each POST.
void RequireJsonFromPages(const Request& request);

}  // namespace tandem::server
