#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/api/options.h"
#include "server/admission/admission.h"
#include "server/app/follow_task.h"
#include "server/app/job_blobs.h"
#include "server/batches/batches.h"
#include "server/database/change_feed.h"
#include "server/database/database_source.h"
#include "server/files/file_store.h"
#include "server/handlers/handlers.h"
#include "server/http/api_keys.h"
#include "server/http/detached_requests.h"
#include "server/http/http_server.h"
#include "server/http/request_pool.h"
#include "server/jobs/job_supervisor.h"
#include "server/keys/managed_keys.h"
#include "server/metrics/metrics.h"
#include "server/models/adapter_host.h"
#include "server/models/alias_book.h"
#include "server/models/load_adapter.h"
#include "server/models/load_model.h"
#include "server/models/model_host.h"
#include "server/models/model_pulls.h"
#include "server/responses/background_response.h"
#include "server/responses/response_store.h"

namespace tandem::server {

// All options of `tandem serve`.
struct AppOptions {
  HttpOptions http;
  // Port of a second listener for /health, /ready and /metrics; 0 picks a free one. Unset: none.
  std::optional<uint16_t> health_port;
  engine::EngineOptions engine;
  std::vector<ModelArgument> models;            // empty: the embedded default
  std::vector<std::string> served_model_names;  // of the first model; the first one is its id
  std::vector<AdapterSource> adapters;          // on the first model
  // Each guesses the next tokens of the model of its name; without a name, of the first model.
  std::vector<ModelArgument> draft_models;
  bool any_model_name = false;  // unknown names mean the first model
  std::string chat_template;    // template text instead of every model's own; empty: their own
  std::vector<std::string> api_keys;
  std::filesystem::path api_key_file;  // one key per line; read again on SIGHUP
  // Database of managed keys. Empty: DATA_DIR/keys.db, which may appear later.
  std::filesystem::path api_keys_db;
  std::chrono::milliseconds keys_interval{1000};  // between looks at the database
  bool isolate_keys = false;  // files and fine-tuning jobs belong to the key that made them
  std::optional<std::string> admin_key;
  std::optional<std::string> metrics_key;
  // PEM files, read again on SIGHUP. Both or neither.
  std::filesystem::path tls_cert;
  std::filesystem::path tls_key;
  bool has_console = true;            // the pages at `/` for browsers
  std::filesystem::path console_dir;  // their files, read at each request; empty: the embedded ones
  bool insecure = false;  // allow a server without keys on an address that is not loopback
  std::chrono::milliseconds drain_timeout{30'000};
  std::chrono::milliseconds drain_delay{0};      // from the end of /ready to that of the listener
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::chrono::milliseconds queue_timeout{0};    // longest wait for a place in the batch; 0: none
  RateLimits rate_limits;                        // per API key; clients without a key share one
  // Waiting requests per API key; 0: three quarters of engine.max_queue if several keys exist, else
  // no bound per key.
  int64_t max_queue_per_key = 0;
  // Whether requests of different API keys reuse each other's cached prefixes.
  bool share_prefix_cache = false;
  std::string metrics_namespace = "tandem";
  // Clock of rate limits, `/health` and `/metrics`.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  std::string tool_parser = "auto";  // as in HandlerContext
  // Directory of uploaded files, jobs and their results; empty: no files and no jobs. If another
  // server uses it, Start throws with an admin key, and does without files and jobs otherwise.
  std::filesystem::path data_dir;
  DatabaseSource database;  // of replicas that share data_dir; empty: SQLite files in it
  // Where replicas with a data_dir each keep files and results of jobs; null: they share data_dir.
  std::shared_ptr<BlobStore> blobs;
  int64_t blob_cache_bytes = int64_t{16} << 30;  // of files of `blobs`
  int64_t max_file_bytes = int64_t{512} << 20;   // largest upload
  // Lines of all batches that run at once; 0: 16, but at most half of engine.max_seqs.
  int64_t batch_concurrency = 0;
  int64_t max_responses = 10'000;          // stored responses of /v1/responses
  std::filesystem::path model_root = ".";  // paths in request bodies are relative to it
  JobSupervisorOptions jobs;
  // Polled while the first models load; true ends Start with kCancelled.
  std::function<bool()> is_interrupted = {};
};

// The whole server: wiring, and the order of starting and stopping. The thread that builds it also
// stops it.
class App {
 public:
  // Checks the options and binds the port; nothing runs yet. Throws Error.
  explicit App(AppOptions options);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  uint16_t port() const { return http_->port(); }
  // The port of the second listener; unset: none.
  std::optional<uint16_t> health_port() const;
  std::string base_url() const { return context_.base_url; }
  std::string health_url() const;  // of the second listener; empty: none
  bool requires_key() const { return keys_.requires_key(); }
  ModelRegistry& models() { return models_; }
  size_t open_connections() const { return http_->open_connections(); }
  size_t running_requests() const { return http_->running_requests(); }

  // Starts to answer (`/ready` reports loading), then loads the models and starts the jobs. Throws
  // what loading throws.
  void Start();
  // Reads the key file and the TLS files again. An unusable file is logged and changes nothing.
  void Reload();
  // Ends /ready, waits `drain_delay`, stops accepting, gives running requests up to `drain_timeout`
  // to finish, then ends the rest. The second listener answers until all requests have ended.
  void Stop();

 private:
  std::vector<std::string> ReadApiKeys() const;
  void StartManagedKeys();
  int64_t QueueShareOfAKey() const;
  HttpPolicy MakePolicy();
  std::optional<Response> Admit(Request& request, const Route& route, const ResponseWriter& writer);
  void OnRequestEnd(const RequestSummary& summary);
  void LogRequest(const RequestSummary& summary, spdlog::level::level_enum level) const;
  std::string UrlOfPort(uint16_t port) const;
  // Defined in app_health.cc. `main` are the options of http_.
  void OpenHealthPort(const HttpOptions& main, uint16_t port);
  TlsPair ReadTlsPair() const;
  HttpOptions MakeHttpOptions() const;
  std::optional<JobStore> OpenJobStore();
  void StartJobs();
  void StartAdapters();
  // Defined in app_responses.cc. `data_dir` is locked, or empty: memory.
  void StartResponses(std::filesystem::path data_dir);
  void WaitForBackgroundResponses(std::chrono::steady_clock::time_point deadline);
  void EndBackgroundResponses();
  // The next two are defined in app_batches.cc.
  void StartBatches();
  bool AuthorizeBatch(const Batch& batch, Request& request) const;
  std::shared_ptr<const ServedModel> MakeModel(OpenedModel opened,
                                               const engine::EngineOptions& options,
                                               const std::string& chat_template,
                                               LoadSettings settings);
  ModelHost::Maker ModelMaker();
  AdapterHost::Maker AdapterMaker();
  NameClaim ClaimFirst(const std::string& name);
  std::vector<std::vector<NameClaim>> ClaimFirstNames(const std::vector<ModelArgument>& sources);
  MemoryReservation ReserveFirst(const std::string& name, const MemoryClaim& claim);
  void CheckDraftNames(const std::vector<ModelArgument>& sources) const;
  std::optional<OpenedModel> DraftOf(const std::string& id) const;
  void LoadFirstModels();
  void ThrowIfStopping() const;
  bool LoadsAtRunTime() const { return !options_.data_dir.empty() && has_admin_; }
  // Defined in app_jobs.cc.
  bool IsInUse(const std::string& file_id);
  void OnJobSucceeded(const Job& job);
  void StoreFineTuningResult(const Job& job);
  std::string PathOfModel(const ServedModel& model);
  // Loads the checkpoint of that name, if the viewer may see one (app_checkpoints.cc).
  void LoadCheckpoint(const std::string& name, const Viewer& viewer);
  // These load and serve the results of finished training jobs. They REQUIRE publish_mutex_
  // held.
  void RestoreJobModels();
  // Serves the models of jobs that succeeded since, under another replica (app_replicas.cc).
  void PublishNewJobModels();
  // For replicas with a data directory each (app_replicas.cc).
  void StartBlobs(JobSupervisorOptions& jobs);
  std::unique_ptr<AdapterBook> OpenAdapterBook() const;
  FileStore& StartedFiles(const std::function<void()>& check);
  void ShareJob(const Job& job);
  void FetchJob(const Job& job);
  bool GivesUp(const Job& job, const Error& error);  // REQUIRES publish_mutex_ held
  void RemoveDeletedJobModel(const Job& job);
  void PublishJobModel(const Job& job);
  void RecordJob(const Job& job);
  void PublishAdapter(const Job& job, const std::string& path);
  // Serves an adapter that a job has made; needs no lock.
  void PublishAdapterAs(const std::string& name, const std::string& path,
                        std::shared_ptr<const ServedModel> base, std::optional<int64_t> owner);
  void PublishModel(const Job& job, const std::string& path);
  // The next three are defined in app_replicas.cc.
  void StartFollowing();
  void Follow(const std::string& table);
  bool LoadJobModel(const std::string& name);
  // Runs the load jobs of a pipeline (app_pipelines.cc).
  void LoadPipelineModels(const Job& job);
  void WaitForHost(const std::function<void(ModelHost::OnEnd)>& begin, const std::string& what);

  const AppOptions options_;
  const std::string replica_;  // this process among the replicas
  ApiKeys keys_;
  KeyUsage key_usage_;
  std::unique_ptr<ManagedKeys> managed_keys_;  // null: no database of keys
  bool has_admin_ = false;                     // whether a key opened the admin routes at the start
  MemoryLedger memory_;
  // Before the registry: the sinks of its engines use these three.
  std::unique_ptr<ResponseStore> responses_;
  BackgroundResponses background_;
  DetachedRequests detached_;
  std::unique_ptr<ModelHost> host_;  // before the registry: the registry's thread calls it
  ModelRegistry models_;
  std::atomic<bool> is_loading_{true};
  std::atomic<bool> is_draining_{false};
  DrainSignal drain_;
  Metrics metrics_;
  Admission admission_;
  HandlerContext context_;
  std::unique_ptr<BatchStore> batch_store_;  // before files_, which asks it
  std::unique_ptr<FileStore> files_;         // before jobs_, whose callbacks use it
  std::unique_ptr<JobBlobs> job_blobs_;      // null: one data directory; before jobs_, as files_
  std::mutex export_mutex_;                  // one embedded model is written out at a time
  std::mutex publish_mutex_;  // jobs publish one at a time: two may use the same name
  std::atomic<std::thread::id> publisher_{};  // the thread that has publish_mutex_ for job models
  std::set<std::string> published_jobs_;  // guarded by publish_mutex_; models served, or given up
  std::atomic<std::chrono::steady_clock::time_point> next_look_for_models_{};
  std::mutex checkpoint_mutex_;  // one checkpoint is loaded at a time
  std::string first_model_id_;
  std::unique_ptr<AdapterHost> adapters_;
  std::unique_ptr<AliasBook> aliases_;
  std::unique_ptr<JobSupervisor> jobs_;
  std::unique_ptr<ModelPulls> pulls_;  // after host_, which its callbacks use
  std::unique_ptr<Router> batch_router_;
  std::unique_ptr<Batches> batches_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> health_;       // the second listener; null: none
  std::unique_ptr<FollowTask> follow_jobs_;  // before follower_, which runs the two
  std::unique_ptr<FollowTask> follow_adapters_;
  std::unique_ptr<FollowTask> follow_garbage_;
  std::unique_ptr<RequestPool> follower_;  // slow reactions to changes of other replicas
  std::unique_ptr<ChangeFeed> feed_;       // null: no replicas
};

// Blocks the signals that RunUntilSignal waits for. Call it before the first thread starts.
void BlockServerSignals();
// On SIGHUP reloads keys and certificates and notifies the service manager. On SIGTERM or SIGINT
// stops the app and returns. A second SIGTERM or SIGINT ends the process at once.
void RunUntilSignal(App& app);

}  // namespace tandem::server
