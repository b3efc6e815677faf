#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cctype>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "config/app_config.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/constrain/grammar.h"
#include "engine/io/atomic_write.h"
#include "engine/io/mapping_faults.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "server/app/app.h"
#include "server/app/service_notify.h"
#include "server/blobs/object_blobs.h"
#include "server/cli/data_dir.h"
#include "server/cli/example_request.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/verbs.h"
#include "server/launch/job_runners.h"
#include "server/terminal/terminal.h"

namespace tandem::server {
namespace {

using config::AppConfig;
using config::ConfigKey;

constexpr size_t kMaxAdminKeyBytes = 4096;

struct ServeFlags {
  config::ConfigSources sources;
  bool only_check = false;
};

std::chrono::milliseconds Milliseconds(config::Seconds seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds.s * 1000));
}

engine::EngineOptions ToEngineOptions(const AppConfig& config) {
  engine::EngineOptions options;
  SetDType(config.dtype, options);
  options.cache_dir = CacheDir();
  options.cache_limit_bytes = config.cache_size.n;
  options.threads = static_cast<int>(config.threads);
  options.memory_bytes = config.memory.n;
  options.max_model_len = config.max_model_len;
  options.max_seqs = config.max_seqs;
  options.max_queue = config.max_queue;
  options.prefill_chunk_tokens = config.prefill_chunk;
  if (config.speculate == "lookup") options.draft_rows = engine::kDraftRows;
  if (config.kv_dtype == "int8") options.kv_format = engine::KvFormat::kInt8;
  options.prefix_dir = config.cache_dir;
  options.prefix_dir_bytes = config.cache_dir_size.n;
  options.idle_release = Milliseconds(config.idle_release);
  options.prefix_idle = Milliseconds(config.prefix_idle);
  return options;
}

// The admin key from the file or the flag; empty: none.
std::string AdminKey(const AppConfig& config) {
  if (config.admin_key_file.empty()) return config.admin_key;
  if (!config.admin_key.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "give --admin-key-file or --admin-key (TANDEM_ADMIN_KEY), not both");
  }
  std::string key = engine::ReadWholeFile(config.admin_key_file, kMaxAdminKeyBytes);
  while (!key.empty() && std::isspace(static_cast<unsigned char>(key.back())) != 0) key.pop_back();
  if (key.empty() || key.find_first_of(std::string(" \t\r\n\0", 5)) != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "--admin-key-file " + config.admin_key_file + " must hold one key on one line");
  }
  return key;
}

// Warns if other users of this machine can read the admin key.
void WarnOfExposedAdminKey(const config::LoadedConfig& loaded) {
  const auto origin = loaded.origins.find("admin-key");
  if (origin != loaded.origins.end() && origin->second == "--admin-key") {
    LogEvent(spdlog::level::warn, "admin_key_in_process_list",
             {{"use", "--admin-key-file or TANDEM_ADMIN_KEY"}});
  }
  const std::string& path = loaded.values.admin_key_file;
  std::error_code ignored;
  const std::filesystem::perms rights = std::filesystem::status(path, ignored).permissions();
  const auto of_others = std::filesystem::perms::others_read | std::filesystem::perms::others_write;
  if (!path.empty() && (rights & of_others) != std::filesystem::perms::none) {
    LogEvent(spdlog::level::warn, "admin_key_file_open_to_all",
             {{"path", path}, {"use", "chmod 600"}});
  }
}

// The object store of replicas; null: none.
std::shared_ptr<BlobStore> ReplicaBlobs(const AppConfig& config) {
  if (config.blob_store.empty()) return nullptr;
  if (config.database.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--blob-store needs --database, which names the objects for all replicas");
  }
  if (config.jobs_on != "local") {
    throw Error(ErrorCode::kInvalidArgument,
                "--blob-store needs --jobs-on local: the nodes of a cluster share one --data-dir");
  }
  return OpenBlobStore(config.blob_store);
}

AppOptions ToAppOptions(const AppConfig& config) {
  AppOptions options;
  options.http.host = config.host;
  options.http.port = static_cast<uint16_t>(config.port);
  if (config.health_port != 0) options.health_port = static_cast<uint16_t>(config.health_port);
  options.http.max_body_bytes = static_cast<size_t>(config.max_body.n);
  options.http.body_memory_bytes = static_cast<size_t>(config.body_memory.n);
  options.http.allowed_hosts = config.allowed_host;
  options.http.cors_origin = config.cors_origin;
  options.http.max_connections = static_cast<size_t>(config.max_connections);
  options.http.n_request_threads = static_cast<int>(config.request_threads);
  options.http.header_timeout = Milliseconds(config.header_timeout);
  options.http.handshake_timeout = options.http.header_timeout;
  options.http.body_idle_timeout = Milliseconds(config.body_timeout);
  options.http.keep_alive_timeout = Milliseconds(config.keep_alive_timeout);
  options.http.write_timeout = Milliseconds(config.write_timeout);
  options.http.ping_interval = Milliseconds(config.ping_interval);
  options.engine = ToEngineOptions(config);
  for (const std::string& model : config.model) options.models.push_back(ParseModelArgument(model));
  for (const std::string& adapter : config.adapter) {
    options.adapters.push_back(ParseAdapterSource(adapter));
  }
  for (const std::string& draft : config.draft_model) {
    options.draft_models.push_back(ParseModelArgument(draft));
  }
  options.served_model_names = config.served_model_name;
  options.any_model_name = config.any_model_name;
  if (!config.chat_template.empty()) {
    options.chat_template = engine::ReadWholeFile(config.chat_template, 1 << 20);
  }
  options.api_keys = config.api_key;
  options.api_key_file = config.api_key_file;
  options.api_keys_db = config.api_keys_db;
  options.isolate_keys = config.isolate_keys;
  if (std::string key = AdminKey(config); !key.empty()) options.admin_key = std::move(key);
  if (!config.metrics_key.empty()) options.metrics_key = config.metrics_key;
  options.tls_cert = config.tls_cert;
  options.tls_key = config.tls_key;
  options.insecure = config.insecure;
  options.has_console = !config.no_console;
  // For work on the console without a rebuild, see server/console/README.md.
  if (const char* dir = std::getenv("TANDEM_CONSOLE_DIR")) options.console_dir = dir;
  options.reasoning_parser = config.reasoning_parser == "think"  ? ReasoningParser::kThink
                             : config.reasoning_parser == "none" ? ReasoningParser::kNone
                                                                 : ReasoningParser::kAuto;
  options.tool_parser = config.tool_parser;
  options.drain_timeout = Milliseconds(config.drain_timeout);
  options.drain_delay = Milliseconds(config.drain_delay);
  options.request_timeout = Milliseconds(config.request_timeout);
  options.queue_timeout = Milliseconds(config.queue_timeout);
  options.max_queue_per_key = config.max_queue_per_key;
  options.batch_concurrency = config.batch_concurrency;
  options.rate_limits = {config.rate_limit_rpm, config.rate_limit_tpm};
  options.share_prefix_cache = config.share_prefix_cache;
  options.metrics_namespace = config.metrics_namespace;
  options.data_dir = DataDirOr(config.data_dir);
  options.database = SharedDatabase(config.database, config.database_password_file);
  options.blobs = ReplicaBlobs(config);
  options.blob_cache_bytes = config.blob_cache.n;
  options.jobs.runner = MakeJobRunner(config.jobs_on, config.jobs_program, config.jobs_option);
  if (options.jobs.runner) {
    // The scheduler of the cluster decides how many jobs run at once.
    options.jobs.max_running = options.jobs.max_queued;
    options.jobs.restart_delay = std::chrono::seconds(30);
  }
  options.max_file_bytes = config.max_file.n;
  options.max_responses = config.response_store;
  options.model_root = config.model_root;
  return options;
}

// Programs that wait for the server read the first line; the rest is for people.
void Announce(App& app, const AppConfig& config, const std::string& admin_key) {
  if (engine::LlguidanceVersion().empty()) {
    spdlog::warn(
        "no_structured_output reason=\"this program was built without Rust 1.87 or newer\" "
        "effect=\"requests "
        "that constrain their answer get 400\"");
  }
  std::printf("listening on %s\n", app.base_url().c_str());
  if (app.health_port()) {
    std::printf("/health, /ready and /metrics also on %s\n", app.health_url().c_str());
  }
  const std::vector<ModelRegistry::Entry> models = app.models().List();
  if (!models.empty()) {
    std::printf("\nTry it:\n  %s\n\n", ExampleRequest(app.base_url(), *models.front().model,
                                                      app.requires_key() ? "TANDEM_API_KEY" : "")
                                           .c_str());
    std::printf("Or chat in a terminal:\n  %s\n\n",
                ExampleChat(app.base_url(), *models.front().model).c_str());
  }
  if (!config.no_console) {
    // Only a terminal gets the key: a file or a service's journal would keep it.
    const bool is_seen = IsTerminal(STDOUT_FILENO);
    std::printf("Console:\n  %s\n",
                ConsoleAddress(app.base_url(), is_seen ? admin_key : "").c_str());
    if (!is_seen && !config.admin_key_file.empty()) {
      std::printf("  admin key: %s\n", config.admin_key_file.c_str());
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

int Serve(const ServeFlags& flags) {
  const config::LoadedConfig loaded = config::LoadConfig(flags.sources);
  const AppConfig& config = loaded.values;
  if (config.reproducible) engine::UseCommonArithmetic();
  if (flags.only_check) {
    engine::Kernels();  // throws if TANDEM_FORCE_ISA names an ISA that this CPU lacks
    std::printf("%s", config::DescribeConfig(loaded).c_str());
    return 0;
  }
  BlockServerSignals();
  ConfigureLog(config.log_level, config.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  WarnOfExposedAdminKey(loaded);
  AppOptions options = ToAppOptions(config);
  // SIGTERM and SIGINT stay pending until RunUntilSignal takes them. Loading may take minutes, so
  // it checks for them and ends early.
  options.is_interrupted = [] {
    sigset_t pending;
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1);
  };
  // A truncated weight file then fails one model instead of the process: loads and the engine check
  // for mapping faults.
  engine::SurviveMappingFaults();
  // Loading may take minutes. A terminal shows a bar until then; the log has lines.
  std::optional<ShownProgress> shown;
  if (CanDrawBar() && config.log_format == "text") {
    shown.emplace(ProgressFlags());
  } else {
    LogProgress();
  }
  const std::string admin_key = options.admin_key.value_or("");
  App app(std::move(options));
  app.Start();
  if (shown) {
    shown.reset();
    LogProgress();
  }
  Announce(app, config, admin_key);
  NotifyService("READY=1");
  RunUntilSignal(app);
  return 0;
}

// A flag only records its words. LoadConfig parses and checks them together with the configuration
// file and the environment.
void AddFlag(CLI::App& command, const ConfigKey& key, config::ConfigSources& sources) {
  const std::string name(key.name);
  std::string flag = "--" + name;
  if (key.short_flag != 0) flag += std::string(",-") + key.short_flag;
  std::string help(key.effect);
  if (!key.environment.empty()) help += " (or " + std::string(key.environment) + ")";
  auto& flags = sources.flags;
  if (std::holds_alternative<bool AppConfig::*>(key.member)) {
    command.add_flag_function(
        flag, [&flags, name](int64_t n) { flags[name] = {n > 0 ? "true" : "false"}; }, help);
    return;
  }
  CLI::Option* option = nullptr;
  if (std::holds_alternative<std::vector<std::string> AppConfig::*>(key.member)) {
    option = command
                 .add_option_function<std::vector<std::string>>(
                     flag,
                     [&flags, name](const std::vector<std::string>& given) { flags[name] = given; },
                     help)
                 ->allow_extra_args(false);
  } else {
    option = command.add_option_function<std::string>(
        flag, [&flags, name](const std::string& given) { flags[name] = {given}; }, help);
  }
  const bool is_number = std::holds_alternative<int64_t AppConfig::*>(key.member);
  option->type_name(!key.choices.empty() ? std::string(key.choices)
                    : !key.unit.empty()  ? std::string(key.unit)
                    : is_number          ? "INT"
                                         : "TEXT");
  if (const std::string text = config::DefaultText(key); !text.empty()) option->default_str(text);
}

}  // namespace

void AddServe(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ServeFlags>();
  flags->sources.environment = [](const char* name) -> const char* { return std::getenv(name); };
  command
      .add_option("--config", flags->sources.file,
                  "YAML file with any of the flags below as `name: value`; environment variables "
                  "override it, flags override both")
      ->type_name("FILE");
  command.add_flag(
      "--check-config", flags->only_check,
      "check the configuration and exit: print its errors, or each value with its origin");
  for (const ConfigKey& key : config::ConfigKeys()) AddFlag(command, key, flags->sources);
  command.callback([flags, &exit_code] { exit_code = Serve(*flags); });
}

}  // namespace tandem::server
