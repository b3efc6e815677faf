#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/options.h"
#include "server/admission/admission.h"
#include "server/files/file_store.h"
#include "server/handlers/handlers.h"
#include "server/http/api_keys.h"
#include "server/http/http_server.h"
#include "server/jobs/job_supervisor.h"
#include "server/metrics/metrics.h"
#include "server/models/adapter_host.h"
#include "server/models/alias_book.h"
#include "server/models/load_adapter.h"
#include "server/models/load_model.h"
#include "server/models/model_host.h"

namespace tandem::server {

// Everything `tandem serve` can be told.
struct AppOptions {
  HttpOptions http;
  engine::EngineOptions engine;
  std::vector<ModelSource> models;              // empty: the embedded default
  std::vector<std::string> served_model_names;  // of the first model; the first one is canonical
  std::vector<AdapterSource> adapters;          // of the first model
  bool any_model_name = false;
  std::string chat_template;  // text that replaces every model's own; empty: theirs
  std::vector<std::string> api_keys;
  std::filesystem::path api_key_file;  // one key per line; read again on SIGHUP
  std::optional<std::string> admin_key;
  std::optional<std::string> metrics_key;
  // PEM files, read again on SIGHUP. Both or neither.
  std::filesystem::path tls_cert;
  std::filesystem::path tls_key;
  bool insecure = false;  // allow an open server on an address that others can reach
  std::chrono::milliseconds drain_timeout{30'000};
  std::chrono::milliseconds request_timeout{0};  // 0: none
  std::chrono::milliseconds queue_timeout{0};    // to have a place in the batch by; 0: none
  RateLimits rate_limits;                        // of every API key, and of all without one
  // Requests of one API key that may wait for a model; 0: three quarters of engine.max_queue where
  // there are several keys, else no bound of their own.
  int64_t max_queue_per_key = 0;
  // Whether requests of different API keys reuse each other's cached prefixes.
  bool share_prefix_cache = false;
  std::string metrics_namespace = "tandem";
  // What time-outs of keys and `/health` take for now.
  std::function<std::chrono::steady_clock::time_point()> clock = std::chrono::steady_clock::now;
  ReasoningParser reasoning_parser = ReasoningParser::kAuto;
  // Uploaded files, jobs and what they make. One server at a time: without an admin key, a
  // directory that another uses is done without. Empty: no files and no jobs.
  std::filesystem::path data_dir;
  int64_t max_file_bytes = int64_t{512} << 20;  // of an upload
  std::filesystem::path model_root = ".";       // what paths in request bodies are relative to
  JobSupervisorOptions jobs;
  // Asked now and then while the first models load; true ends Start with kCancelled.
  std::function<bool()> is_interrupted = {};
};

// The server as a whole: wiring and the order of starting and stopping. Built on one thread, which
// also stops it.
class App {
 public:
  // Checks the options and binds the port; nothing runs yet. Throws Error.
  explicit App(AppOptions options);
  ~App();
  App(const App&) = delete;
  App& operator=(const App&) = delete;

  uint16_t port() const { return http_->port(); }
  std::string base_url() const { return context_.base_url; }
  ModelRegistry& models() { return models_; }
  size_t open_connections() const { return http_->open_connections(); }
  size_t running_requests() const { return http_->running_requests(); }

  // Begins to answer (`/ready` says loading), then loads the models. Throws what loading throws.
  void Start();
  // Reads the key file and the TLS files again. What cannot be used changes nothing.
  void Reload();
  // Stops accepting, lets running requests end for up to `drain_timeout`, ends the rest.
  void Stop();

 private:
  std::vector<std::string> ReadApiKeys() const;
  int64_t QueueShareOfAKey() const;
  HttpPolicy MakePolicy();
  std::optional<Response> Admit(Request& request, const Route& route, const ResponseWriter& writer);
  void OnRequestEnd(const RequestSummary& summary);
  TlsPair ReadTlsPair() const;
  HttpOptions MakeHttpOptions() const;
  std::optional<JobStore> OpenJobStore();
  void StartJobs();
  void StartAdapters();
  std::shared_ptr<const ServedModel> MakeModel(OpenedModel opened,
                                               const engine::EngineOptions& options,
                                               const std::string& chat_template,
                                               LoadSettings settings);
  ModelHost::Maker ModelMaker();
  AdapterHost::Maker AdapterMaker();
  NameClaim ClaimFirst(const std::string& name);
  std::vector<std::vector<NameClaim>> ClaimFirstNames(const std::vector<ModelSource>& sources);
  MemoryReservation ReserveFirst(const std::string& name, const MemoryClaim& claim);
  void LoadFirstModels();
  void ThrowIfStopping() const;
  bool LoadsAtRunTime() const { return !options_.data_dir.empty() && options_.admin_key; }
  // All about jobs is in app_jobs.cc.
  bool IsInUse(const std::string& file_id);
  void OnJobSucceeded(const Job& job);
  void StoreFineTuningResult(const Job& job);
  std::string PathOfModel(const ServedModel& model);
  // Of names that no model has: those of checkpoints (app_checkpoints.cc).
  void LoadCheckpoint(const std::string& name);
  // Load what a finished training job has made and let it answer. REQUIRE: publish_mutex_ held.
  void RestoreJobModels();
  void PublishJobModel(const Job& job);
  void PublishAdapter(const Job& job, const std::string& path);
  // The same of any adapter that was made here; needs no lock.
  void PublishAdapterAs(const std::string& name, const std::string& path,
                        std::shared_ptr<const ServedModel> base);
  void PublishModel(const Job& job, const std::string& path);
  // Of a pipeline (app_pipelines.cc): what its jobs of kind load say.
  void LoadPipelineModels(const Job& job);
  void WaitForHost(const std::function<void(ModelHost::OnEnd)>& begin, const std::string& what);

  const AppOptions options_;
  ApiKeys keys_;
  MemoryLedger memory_;
  std::unique_ptr<ModelHost> host_;  // before the registry, whose thread calls it
  ModelRegistry models_;
  std::atomic<bool> is_loading_{true};
  std::atomic<bool> is_draining_{false};
  DrainSignal drain_;
  Metrics metrics_;
  Admission admission_;
  HandlerContext context_;
  std::unique_ptr<FileStore> files_;  // before the jobs, which are asked about files
  std::mutex export_mutex_;           // one embedded model is written out at a time
  std::mutex publish_mutex_;          // jobs publish one after the other: two may have one name
  std::mutex checkpoint_mutex_;       // one checkpoint is loaded at a time
  std::unique_ptr<AdapterHost> adapters_;
  std::unique_ptr<AliasBook> aliases_;
  std::unique_ptr<JobSupervisor> jobs_;
  std::unique_ptr<HttpServer> http_;
};

// Blocks the signals that RunUntilSignal waits for. Call before any thread exists.
void BlockServerSignals();
// Reloads keys and certificates on SIGHUP, telling the service manager; on SIGTERM or SIGINT stops
// the app and returns. A second SIGTERM or SIGINT ends the process at once.
void RunUntilSignal(App& app);

}  // namespace tandem::server
