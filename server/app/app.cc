#include "server/app/app.h"

#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "config/embedded_models.h"
#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "server/fine_tuning/examine_training_data.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/tool_formats.h"
#include "server/http/allowed_hosts.h"
#include "server/respond/error_response.h"
#include "training/observe/roof.h"
#include "training/plan/plan.h"

namespace tandem::server {
namespace {

// Room for hundreds of thousands of keys, and for chains of dozens of certificates.
constexpr size_t kMaxKeyFileBytes = 64 << 20;
constexpr size_t kMaxPemBytes = 1 << 20;
// Descriptors reserved for models, jobs, databases and logs, and as many for the health port.
constexpr size_t kOtherDescriptors = 256;

// The machine, for people who read the table of leases, and a number.
std::string NewReplicaName() {
  char host[256] = {};  // POSIX allows 255 bytes
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  uint64_t number = 0;
  TANDEM_CHECK(::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number));
  return std::string(host) + "-" + std::to_string(number);
}

// Raises the soft limit of descriptors (usually 1024) for `wanted` connections and `others`.
// Returns the number of connections that the limit allows.
size_t ConnectionsWithinDescriptors(size_t wanted, size_t others) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = wanted + others;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return wanted;
  const size_t possible =
      limit.rlim_cur > 2 * others ? limit.rlim_cur - others : limit.rlim_cur / 2;
  spdlog::warn("few_descriptors limit={} max_connections={} wanted={}", limit.rlim_cur, possible,
               wanted);
  return possible;
}

double MeasureRoof(engine::DType compute) {
  ThreadPool pool(0);
  engine::OpsContext ops(engine::Kernels(), pool);
  return training::RoofFlops(ops, compute, {});
}

// Plans with this machine's peak FLOP/s, measured at the first call for each compute dtype.
std::string PlanOfTraining(const training::TrainSpec& spec) {
  const auto roof = [&] {
    if (spec.compute == engine::DType::kF32) {
      static const double f32 = MeasureRoof(engine::DType::kF32);
      return f32;
    }
    static const double bf16 = MeasureRoof(engine::DType::kBF16);
    return bf16;
  };
  training::TrainingPlan plan = training::PlanTraining(spec, {.flops_per_second = roof()});
  // The job's process makes the same check before its first step.
  const auto refused =
      ErrorOf({ErrorCode::kResourceExhausted}, [&] { training::RefuseWhatCannotFit(spec); });
  if (refused) plan.refusal = refused->what();
  return training::PlanJson(plan);
}

}  // namespace

App::App(AppOptions options)
    : options_(std::move(options)),
      replica_(NewReplicaName()),
      keys_(ReadApiKeys(), options_.admin_key, options_.metrics_key),
      memory_(options_.engine.memory_bytes > 0 ? options_.engine.memory_bytes
                                               : engine::DefaultMemoryBudgetBytes()),
      detached_([](const Error& error, const std::string& request_id) {
        return ToResponse(MakeErrorReply(error, request_id));
      }),
      models_(options_.any_model_name),
      metrics_(options_.metrics_namespace),
      admission_(
          options_.rate_limits, models_, [this] { return QueueShareOfAKey(); }, options_.clock,
          key_usage_),
      context_{
          .models = models_,
          .is_loading = is_loading_,
          .is_draining = is_draining_,
          .request_timeout = options_.request_timeout,
          .queue_timeout = options_.queue_timeout,
          .share_prefix_cache = options_.share_prefix_cache,
          .isolate_keys = options_.isolate_keys,
          .key_usage = &key_usage_,
          .admission = &admission_,
          .metrics = &metrics_,
          .open_connections = [this] { return http_->open_connections(); },
          .may_see_models =
              [this](const Request& request) {
                if (!keys_.requires_key()) return true;
                if (!options_.isolate_keys) return keys_.HasAnyKey(request);
                return keys_.HasAdminScope(request) || keys_.HasMetricsKey(request);
              },
          .may_see_keys =
              [this](const Request& request) {
                return keys_.HasAdminScope(request) || keys_.HasMetricsKey(request);
              },
          .reasoning_parser = options_.reasoning_parser,
          .tool_parser = options_.tool_parser,
          .background = &background_,
          .detached = &detached_,
          .max_file_bytes = options_.max_file_bytes,
          .memory = &memory_,
          .named_models = {config::EmbeddedModelNames().begin(),
                           config::EmbeddedModelNames().end()},
          .is_named_model =
              [](const std::string& name) { return config::OpenEmbeddedModel(name).has_value(); },
          .plan_training = PlanOfTraining,
          .examine_data = ExamineTrainingData,
          .path_of_model = [this](const ServedModel& model) { return PathOfModel(model); },
          .model_root = options_.model_root,
          .drain = &drain_,
          .base_url = "",
          .has_console = options_.has_console,
          .console_dir = options_.console_dir,
          .requires_key = [this] { return keys_.requires_key(); },
          .now = options_.clock} {
  StartManagedKeys();
  if (!ParseListenHost(options_.http.host).is_loopback && !keys_.requires_key() &&
      !options_.insecure) {
    throw Error(ErrorCode::kInvalidArgument,
                "--host " + options_.http.host +
                    " is reachable from other machines: set "
                    "--api-key, create a key with 'tandem keys create', or "
                    "set --insecure to serve without keys");
  }
  CheckToolParser(options_.tool_parser);
  models_.SetLoader(
      [this](const std::string& name, const Viewer& viewer) { LoadCheckpoint(name, viewer); });
  const HttpOptions http = MakeHttpOptions();
  http_ = std::make_unique<HttpServer>(http, AllRoutes(context_), MakePolicy());
  context_.base_url = UrlOfPort(http_->port());
  if (options_.health_port) OpenHealthPort(http, *options_.health_port);
}

// Before the port opens: without the keys of the database the API would be open.
void App::StartManagedKeys() {
  ManagedKeys::Options options;
  options.file = options_.api_keys_db;
  options.must_exist = !options.file.empty();
  options.interval = options_.keys_interval;
  if (options.file.empty() && options_.database.is_shared()) {
    options.shared = options_.database;
  } else if (options.file.empty() && !options_.data_dir.empty()) {
    options.file = std::filesystem::absolute(options_.data_dir) / "keys.db";
  }
  if (!options.file.empty() || options.shared.is_shared()) {
    managed_keys_ = std::make_unique<ManagedKeys>(std::move(options), keys_, key_usage_);
    context_.keys = managed_keys_.get();
  }
  has_admin_ = options_.admin_key.has_value();
  if (managed_keys_ == nullptr) return;
  for (const KeyRecord& key : managed_keys_->List()) {
    if (!key.revoked_at && key.scopes.Has(Scope::kAdmin)) has_admin_ = true;
  }
  if (has_admin_) keys_.EnableAdmin();
}

// Computed per request: a reload may change the number of keys.
int64_t App::QueueShareOfAKey() const {
  if (options_.max_queue_per_key > 0) return options_.max_queue_per_key;
  return keys_.n_api_keys() > 1 ? std::max<int64_t>(1, options_.engine.max_queue * 3 / 4) : 0;
}

HttpPolicy App::MakePolicy() {
  HttpPolicy policy;
  policy.refusal = [](int status, std::string_view code, std::string_view message) {
    return ToResponse(MakeErrorReply(status, code, message));
  };
  policy.failure = [](const Error& error, const Request& request) {
    ErrorReply reply = MakeErrorReply(error, request.id);
    if (reply.status >= 500 && reply.status != 503) {
      LogEvent(spdlog::level::err, "request_failed",
               {{"request_id", request.id},
                {"method", request.method.substr(0, 32)},
                {"path", request.path.substr(0, 120)},
                {"what", std::string(error.what())}});
    }
    return ToResponse(std::move(reply));
  };
  policy.gate = [this](const Request& request, Access access) -> std::optional<Response> {
    if (const std::optional<Error> error = keys_.Check(request, access)) {
      return ToResponse(MakeErrorReply(*error, request.id));
    }
    return std::nullopt;
  };
  policy.admit = [this](Request& request, const Route& route, const ResponseWriter& writer) {
    return Admit(request, route, writer);
  };
  policy.on_end = [this](const RequestSummary& summary) { OnRequestEnd(summary); };
  return policy;
}

std::optional<Response> App::Admit(Request& request, const Route& route,
                                   const ResponseWriter& writer) {
  if (route.access == Access::kOpen || route.access == Access::kMetricsKey) return std::nullopt;
  request.client = keys_.IsAdmin(request) ? kAdminClient : keys_.ClientOf(request);
  request.sees_all_records = keys_.HasAdminScope(request);
  key_usage_.CountRequest(request.client);
  if (route.access == Access::kAdminKey) return std::nullopt;
  if (const std::optional<Error> error = admission_.Admit(request, route.is_heavy, writer)) {
    return ToResponse(MakeErrorReply(*error, request.id));
  }
  return std::nullopt;
}

void App::OnRequestEnd(const RequestSummary& summary) {
  metrics_.CountHttp(summary.method, summary.route, summary.status);
  // Log monitoring requests at debug level only.
  const bool is_watching = summary.route == "/health" || summary.route == "/ready" ||
                           summary.route == "/metrics" || summary.route == "/version";
  LogRequest(summary, is_watching ? spdlog::level::debug : spdlog::level::info);
}

void App::LogRequest(const RequestSummary& summary, spdlog::level::level_enum level) const {
  if (!spdlog::default_logger_raw()->should_log(level)) return;
  LogFields fields = {{"request_id", std::string(summary.request_id)},
                      {"method", std::string(summary.method.substr(0, 32))},
                      {"route", std::string(summary.route)},
                      {"status", int64_t{summary.status}},
                      {"ms", std::chrono::duration<double, std::milli>(summary.elapsed).count()}};
  // Log the path only if no route matched, and cut it: it may be long.
  if (summary.route.empty()) fields.emplace_back("path", std::string(summary.path.substr(0, 120)));
  // Only refusals and errors carry the reason and the client's address.
  if (summary.status >= 400) {
    if (!summary.error_code.empty()) fields.emplace_back("error", std::string(summary.error_code));
    fields.emplace_back("client", std::string(summary.remote));
  }
  fields.insert(fields.end(), summary.notes.begin(), summary.notes.end());
  LogEvent(level, "request", fields);
}

App::~App() { Stop(); }

std::vector<std::string> App::ReadApiKeys() const {
  std::vector<std::string> keys = options_.api_keys;
  if (options_.api_key_file.empty()) return keys;
  const std::string text = engine::ReadWholeFile(options_.api_key_file, kMaxKeyFileBytes);
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = text.find('\n', begin);
    if (end == std::string::npos) end = text.size();
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty() && line.front() != '#') keys.push_back(std::move(line));
  }
  if (keys.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--api-key-file " + options_.api_key_file.string() +
                                                 " has no key: write one key per line");
  }
  return keys;
}

TlsPair App::ReadTlsPair() const {
  return {engine::ReadWholeFile(options_.tls_cert, kMaxPemBytes),
          engine::ReadWholeFile(options_.tls_key, kMaxPemBytes)};
}

HttpOptions App::MakeHttpOptions() const {
  HttpOptions http = options_.http;
  http.requires_key = keys_.requires_key();
  http.max_connections = ConnectionsWithinDescriptors(
      http.max_connections, options_.health_port ? 2 * kOtherDescriptors : kOtherDescriptors);
  if (http.body_memory_bytes < http.max_body_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "--body-memory " + std::to_string(http.body_memory_bytes) +
                    " must be at least --max-body " + std::to_string(http.max_body_bytes) +
                    ", or a body of that size is never accepted");
  }
  if (options_.tls_cert.empty() != options_.tls_key.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--tls-cert and --tls-key must be given together");
  }
  if (!options_.tls_cert.empty()) http.tls = ReadTlsPair();
  return http;
}

void App::Start() {
  if (health_) health_->Start();
  http_->Start();
  LoadFirstModels();
  StartJobs();
  StartAdapters();
  StartBatches();
  StartFollowing();
  is_loading_ = false;
}

// Runs after StartJobs: an alias may name a job's model, and StartJobs locks the data directory.
void App::StartAdapters() {
  if (!has_admin_) return;
  adapters_ = std::make_unique<AdapterHost>(models_, memory_, jobs_.get(), AdapterMaker(),
                                            feed_ ? OpenAdapterBook() : nullptr);
  aliases_ = LoadsAtRunTime() && options_.database.is_shared()
                 ? std::make_unique<AliasBook>(models_, options_.database)
                 : std::make_unique<AliasBook>(
                       models_, LoadsAtRunTime()
                                    ? std::filesystem::absolute(options_.data_dir) / "tandem.db"
                                    : std::filesystem::path());
  context_.adapter_host = adapters_.get();
  context_.aliases = aliases_.get();
}

void App::Reload() {
  if (!options_.api_key_file.empty()) {
    if (const auto error = ErrorOf([&] { keys_.SetApiKeys(ReadApiKeys()); })) {
      spdlog::error("api_keys_kept reason=\"{}\"", error->what());
    } else {
      spdlog::info("api_keys_reloaded");
    }
  }
  if (!options_.tls_cert.empty()) {
    const auto error = ErrorOf([&] {
      const TlsPair pair = ReadTlsPair();
      http_->ReplaceCertificate(pair);
      if (health_) health_->ReplaceCertificate(pair);
    });
    if (error) {
      spdlog::error("tls_certificate_kept reason=\"{}\"", error->what());
    } else {
      spdlog::info("tls_certificate_reloaded");
    }
  }
}

void App::Stop() {
  if (is_draining_.exchange(true)) return;
  // A router sees that /ready has ended, and sends no more requests here.
  if (!is_loading_) std::this_thread::sleep_for(options_.drain_delay);
  http_->Drain();
  drain_.Raise();
  if (batches_) batches_->Stop();
  // Jobs write their checkpoints while requests finish.
  std::thread stop_jobs([this] {
    if (jobs_) jobs_->Stop(JobSupervisor::StopMode::kInterruptJobs);
  });
  // Loads are aborted meanwhile; clients that wait for one get an error.
  std::thread stop_loading([this] {
    if (pulls_) pulls_->Stop();
    if (host_) host_->StopLoading();
    if (adapters_) adapters_->Stop();
  });
  const auto deadline = std::chrono::steady_clock::now() + options_.drain_timeout;
  if (!http_->WaitDrained(options_.drain_timeout)) {
    spdlog::warn("drain_timeout requests_left={}", http_->running_requests());
  }
  WaitForBackgroundResponses(deadline);
  if (options_.blobs) options_.blobs->Stop();
  stop_loading.join();
  stop_jobs.join();
  if (host_) host_->Stop();
  http_->Stop();
  EndBackgroundResponses();
  // Late: as long as work of this replica may end, the others count it as alive.
  if (feed_) feed_->Stop();
  if (follower_) follower_->Stop();
  // Last of the listeners, but before what its handlers read.
  if (health_) health_->Stop();
  context_.pulls = nullptr;
  context_.model_host = nullptr;
  context_.adapter_host = nullptr;
  context_.aliases = nullptr;
  context_.jobs = nullptr;
  context_.batches = nullptr;
  context_.files = nullptr;
  if (files_) files_->Stop();
  jobs_.reset();
  models_.Clear();
  detached_.Stop();
}

}  // namespace tandem::server
