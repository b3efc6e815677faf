#include "server/app/app.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "config/embedded_models.h"
#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "server/app/service_notify.h"
#include "server/fine_tuning/examine_training_data.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/tool_formats.h"
#include "server/http/allowed_hosts.h"
#include "server/respond/error_response.h"
#include "training/observe/roof.h"
#include "training/plan/plan.h"

namespace tandem::server {
namespace {

// The host as it appears in a URL: an IPv6 address gets brackets.
std::string UrlHost(const std::string& host) {
  return host.find(':') != std::string::npos ? "[" + host + "]" : host;
}

// Room for hundreds of thousands of keys, and for chains of dozens of certificates.
constexpr size_t kMaxKeyFileBytes = 64 << 20;
constexpr size_t kMaxPemBytes = 1 << 20;
// Descriptors reserved for models, jobs, databases and logs.
constexpr size_t kOtherDescriptors = 256;

// Raises the soft limit of descriptors (usually 1024) for `wanted` connections. Returns the number
// of connections that the limit allows.
size_t ConnectionsWithinDescriptors(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  const rlim_t needed = wanted + kOtherDescriptors;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur >= needed) return wanted;
  const size_t possible = limit.rlim_cur > 2 * kOtherDescriptors
                              ? limit.rlim_cur - kOtherDescriptors
                              : limit.rlim_cur / 2;
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
  return training::PlanJson(training::PlanTraining(spec, {.flops_per_second = roof()}));
}

}  // namespace

App::App(AppOptions options)
    : options_(std::move(options)),
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
          .is_named_model =
              [](const std::string& name) { return config::OpenEmbeddedModel(name).has_value(); },
          .plan_training = PlanOfTraining,
          .examine_data = ExamineTrainingData,
          .path_of_model = [this](const ServedModel& model) { return PathOfModel(model); },
          .model_root = options_.model_root,
          .drain = &drain_,
          .base_url = "",
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
  http_ = std::make_unique<HttpServer>(MakeHttpOptions(), AllRoutes(context_), MakePolicy());
  context_.base_url = (options_.tls_cert.empty() ? "http://" : "https://") +
                      UrlHost(options_.http.host) + ":" + std::to_string(http_->port());
}

// Before the port opens: without the keys of the database the API would be open.
void App::StartManagedKeys() {
  ManagedKeys::Options options;
  options.file = options_.api_keys_db;
  options.must_exist = !options.file.empty();
  options.interval = options_.keys_interval;
  if (options.file.empty() && !options_.data_dir.empty()) {
    options.file = std::filesystem::absolute(options_.data_dir) / "keys.db";
  }
  if (!options.file.empty()) {
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
  LogEvent(is_watching ? spdlog::level::debug : spdlog::level::info, "request", fields);
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
  http.max_connections = ConnectionsWithinDescriptors(http.max_connections);
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
  http_->Start();
  LoadFirstModels();
  StartJobs();
  StartAdapters();
  StartBatches();
  is_loading_ = false;
}

std::shared_ptr<const ServedModel> App::MakeModel(OpenedModel opened,
                                                  const engine::EngineOptions& options,
                                                  const std::string& chat_template,
                                                  LoadSettings settings) {
  std::shared_ptr<const ServedModel> model =
      LoadServedModel(std::move(opened), options, chat_template, std::move(settings));
  metrics_.Track({.name = model->id,
                  .figures = model->engine->figures(),
                  .prefix_cache = options.prefix_cache,
                  .kv_dtype = model->loaded().kv_dtype});
  if (options.max_model_len > model->loaded().max_model_len) {
    LogEvent(spdlog::level::warn, "max_model_len_lowered",
             {{"model", model->id},
              {"requested", options.max_model_len},
              {"used", model->loaded().max_model_len},
              {"reason", std::string("the model supports a smaller context")}});
  }
  return model;
}

NameClaim App::ClaimFirst(const std::string& name) {
  const auto as_two_models = [&](const Error& error) {
    return Error(error.code(), "'" + name +
                                   "' names two models: give each a different name with --model, "
                                   "--served-model-name or --adapter (NAME=PATH)");
  };
  return WithContext(as_two_models, [&] { return models_.Claim(name); });
}

MemoryReservation App::ReserveFirst(const std::string& name, const MemoryClaim& claim) {
  const auto with_advice = [](const Error& error) {
    return Error(error.code(), std::string(error.what()) +
                                   ": raise --memory, lower --max-model-len, or choose --dtype "
                                   "int8 or int4");
  };
  return WithContext(with_advice, [&] { return memory_.Reserve(name, claim); });
}

// Returns one list of claims per model, then one per adapter.
std::vector<std::vector<NameClaim>> App::ClaimFirstNames(
    const std::vector<ModelArgument>& sources) {
  std::vector<std::vector<NameClaim>> names;
  for (const ModelArgument& source : sources)
    names.emplace_back().push_back(ClaimFirst(NameOf(source)));
  std::vector<NameClaim>& of_first = names.front();
  for (const std::string& name : options_.served_model_names) {
    const bool is_again = std::any_of(of_first.begin(), of_first.end(),
                                      [&](const NameClaim& claim) { return claim.name() == name; });
    if (!is_again) of_first.push_back(ClaimFirst(name));
  }
  for (const AdapterSource& adapter : options_.adapters) {
    names.emplace_back().push_back(ClaimFirst(adapter.name));
  }
  return names;
}

// Claims all names and all memory before the first model is packed, so that a conflict is refused
// at once. Then splits the free memory evenly between the KV caches. One more part stays free if
// models can be loaded later.
void App::LoadFirstModels() {
  struct First {
    OpenedModel opened;
    int64_t most_kv;
    MemoryReservation memory;
  };
  std::vector<ModelArgument> sources = options_.models;
  if (sources.empty()) sources.push_back({"", std::string(config::kDefaultModel)});
  if (!options_.served_model_names.empty()) {
    sources.front().name = options_.served_model_names.front();
  }
  std::vector<std::vector<NameClaim>> names = ClaimFirstNames(sources);
  std::vector<First> first;
  for (const ModelArgument& source : sources) {
    OpenedModel opened = OpenModelArgument(source);
    const engine::MemoryPlan plan = engine::PlanMemory(opened.files, options_.engine);
    MemoryReservation memory = ReserveFirst(opened.id, plan.least);
    first.push_back({std::move(opened), plan.most_kv, std::move(memory)});
  }
  std::vector<MemoryReservation> adapter_memory;
  for (const AdapterSource& adapter : options_.adapters) {
    adapter_memory.push_back(ReserveFirst(
        adapter.name,
        engine::PlanAdapterMemory(adapter.path, first.front().opened.files, options_.engine)));
  }
  int64_t parts = static_cast<int64_t>(first.size()) + (LoadsAtRunTime() ? 1 : 0);
  for (First& model : first) model.memory.GrowKv(model.most_kv, parts--);

  const std::string base_id = first.front().opened.id;
  auto next_names = names.begin();
  for (First& model : first) {
    LoadSettings settings;
    settings.memory = std::move(model.memory);
    settings.progress = [this](double) { ThrowIfStopping(); };
    models_.Publish(MakeModel(std::move(model.opened), options_.engine, options_.chat_template,
                              std::move(settings)),
                    std::move(*next_names++));
  }
  for (size_t i = 0; i < options_.adapters.size(); ++i) {
    models_.Publish(LoadServedAdapter(options_.adapters[i], models_.Look(base_id), options_.engine,
                                      std::move(adapter_memory[i])),
                    std::move(*next_names++));
  }
}

void App::ThrowIfStopping() const {
  if (is_draining_ || (options_.is_interrupted && options_.is_interrupted())) {
    throw Error(ErrorCode::kCancelled, "stopped while loading");
  }
}

ModelHost::Maker App::ModelMaker() {
  const auto options_for = [this](const ModelLoadSpec& spec) {
    engine::EngineOptions options = options_.engine;
    if (spec.max_model_len) options.max_model_len = *spec.max_model_len;
    if (spec.dtype) {
      options.dtype.reset();
      options.block = engine::BlockFormat::kNone;
      SetDType(*spec.dtype, options);
    }
    return options;
  };
  const auto open = [](const ModelLoadSpec& spec) {
    return OpenModelArgument(
        {.name = spec.id, .path = spec.source, .is_embedded = spec.is_embedded});
  };
  ModelHost::Maker maker;
  maker.plan = [open, options_for](const ModelLoadSpec& spec) {
    return engine::PlanMemory(open(spec).files, options_for(spec));
  };
  maker.make = [this, open, options_for](const ModelLoadSpec& spec, MemoryReservation memory,
                                         const std::function<void(double)>& progress) {
    LoadSettings settings;
    if (spec.parent)
      settings.labels = {.owned_by = "user", .parent = spec.parent, .owner = spec.owner};
    settings.pinned = spec.pinned;
    settings.idle_unload_s = spec.idle_unload_s;
    settings.memory = std::move(memory);
    settings.in_background = true;
    settings.progress = progress;
    return MakeModel(open(spec), options_for(spec), options_.chat_template, std::move(settings));
  };
  return maker;
}

AdapterHost::Maker App::AdapterMaker() {
  AdapterHost::Maker maker;
  maker.plan = [](const AdapterLoadSpec& spec, const ServedModel& base) {
    return engine::PlanAdapterMemory(spec.path, base.loaded());
  };
  maker.make = [this](const AdapterLoadSpec& spec, std::shared_ptr<const ServedModel> base,
                      MemoryReservation memory) {
    return LoadServedAdapter({spec.name, spec.path}, std::move(base), options_.engine,
                             std::move(memory));
  };
  return maker;
}

// Runs after StartJobs: an alias may name a job's model, and StartJobs locks the data directory.
void App::StartAdapters() {
  if (!has_admin_) return;
  adapters_ = std::make_unique<AdapterHost>(models_, memory_, jobs_.get(), AdapterMaker());
  aliases_ = std::make_unique<AliasBook>(
      models_, LoadsAtRunTime() ? std::filesystem::absolute(options_.data_dir) / "tandem.db"
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
    if (const auto error = ErrorOf([&] { http_->ReplaceCertificate(ReadTlsPair()); })) {
      spdlog::error("tls_certificate_kept reason=\"{}\"", error->what());
    } else {
      spdlog::info("tls_certificate_reloaded");
    }
  }
}

void App::Stop() {
  if (is_draining_.exchange(true)) return;
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
  stop_loading.join();
  stop_jobs.join();
  if (host_) host_->Stop();
  http_->Stop();
  EndBackgroundResponses();
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

void BlockServerSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal_number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails the write, not the process
}

void RunUntilSignal(App& app) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal_number);
  for (;;) {
    int received = 0;
    if (sigwait(&signals, &received) != 0) continue;
    if (received == SIGHUP) {
      NotifyReloading();
      app.Reload();
      NotifyService("READY=1");
      continue;
    }
    spdlog::info("stopping signal={}", received);
    NotifyService("STOPPING=1");
    // No thread waits for signals any more: the next one ends the process in its handler.
    std::signal(SIGTERM, [](int) { _exit(1); });
    std::signal(SIGINT, [](int) { _exit(1); });
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
    app.Stop();
    return;
  }
}

}  // namespace tandem::server
