#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "engine/base/log.h"
#include "server/app.h"
#include "server/cli/model_options.h"
#include "server/cli/verbs.h"
#include "server/service_notify.h"

namespace tandem::server {
namespace {

double Seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1000; }

struct ServeFlags {
  std::vector<std::string> models;
  ModelFlags model;
  std::vector<std::string> served_names;
  bool any_model_name = false;
  std::string host = "127.0.0.1";
  int port = 8080;
  int64_t max_seqs = engine::EngineOptions().max_seqs;
  int64_t max_queue = engine::EngineOptions().max_queue;
  int64_t prefill_chunk = engine::EngineOptions().prefill_chunk_tokens;
  std::string max_body = "32M";
  size_t max_connections = HttpOptions().max_connections;
  double header_timeout_s = Seconds(HttpOptions().header_timeout);
  double body_timeout_s = Seconds(HttpOptions().body_idle_timeout);
  double keep_alive_timeout_s = Seconds(HttpOptions().keep_alive_timeout);
  double write_timeout_s = Seconds(HttpOptions().write_timeout);
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::string admin_key;
  std::string metrics_key;
  std::string tls_cert;
  std::string tls_key;
  std::string data_dir;
  std::string model_root = ".";
  bool insecure = false;
  std::string cors_origin;
  double drain_timeout_s = 30;
  double request_timeout_s = 0;
  double ping_interval_s = 15;
  std::string reasoning_parser = "auto";
  std::string log_level = "info";
  std::string log_format = "text";
};

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::filesystem::path DefaultDataDir() {
  if (const char* xdg = std::getenv("XDG_DATA_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::filesystem::path(xdg) / "tandem";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".local" / "share" / "tandem";
  }
  return {};
}

AppOptions ToAppOptions(const ServeFlags& flags) {
  AppOptions options;
  options.http.host = flags.host;
  options.http.port = static_cast<uint16_t>(flags.port);
  options.http.max_body_bytes = static_cast<size_t>(ParseBytes(flags.max_body, "--max-body"));
  options.http.cors_origin = flags.cors_origin;
  options.http.max_connections = flags.max_connections;
  options.http.header_timeout = Milliseconds(flags.header_timeout_s);
  options.http.handshake_timeout = options.http.header_timeout;
  options.http.body_idle_timeout = Milliseconds(flags.body_timeout_s);
  options.http.keep_alive_timeout = Milliseconds(flags.keep_alive_timeout_s);
  options.http.write_timeout = Milliseconds(flags.write_timeout_s);
  options.engine = ToEngineOptions(flags.model);
  options.engine.max_seqs = flags.max_seqs;
  options.engine.max_queue = flags.max_queue;
  options.engine.prefill_chunk_tokens = flags.prefill_chunk;
  for (const std::string& model : flags.models) options.models.push_back(ParseModelSource(model));
  options.served_model_names = flags.served_names;
  options.any_model_name = flags.any_model_name;
  options.chat_template = ReadChatTemplate(flags.model);
  options.api_keys = flags.api_keys;
  options.api_key_file = flags.api_key_file;
  if (!flags.admin_key.empty()) options.admin_key = flags.admin_key;
  if (!flags.metrics_key.empty()) options.metrics_key = flags.metrics_key;
  options.tls_cert = flags.tls_cert;
  options.tls_key = flags.tls_key;
  options.insecure = flags.insecure;
  options.reasoning_parser = flags.reasoning_parser == "think"  ? ReasoningParser::kThink
                             : flags.reasoning_parser == "none" ? ReasoningParser::kNone
                                                                : ReasoningParser::kAuto;
  options.drain_timeout = Milliseconds(flags.drain_timeout_s);
  options.request_timeout = Milliseconds(flags.request_timeout_s);
  options.http.ping_interval = Milliseconds(flags.ping_interval_s);
  options.data_dir =
      flags.data_dir.empty() ? DefaultDataDir() : std::filesystem::path(flags.data_dir);
  options.model_root = flags.model_root;
  // Keys in the environment stay out of process listings.
  if (const char* key = std::getenv("TANDEM_API_KEY"); key != nullptr && *key != '\0') {
    options.api_keys.emplace_back(key);
  }
  if (const char* key = std::getenv("TANDEM_ADMIN_KEY"); key != nullptr && *key != '\0') {
    if (!options.admin_key) options.admin_key = key;
  }
  if (const char* key = std::getenv("TANDEM_METRICS_KEY"); key != nullptr && *key != '\0') {
    if (!options.metrics_key) options.metrics_key = key;
  }
  return options;
}

int Serve(const ServeFlags& flags) {
  BlockServerSignals();
  ConfigureLog(flags.log_level, flags.log_format == "json" ? LogFormat::kJson : LogFormat::kText);
  App app(ToAppOptions(flags));
  app.Start();
  std::printf("listening on %s\n", app.base_url().c_str());
  std::fflush(stdout);
  NotifyService("READY=1");
  RunUntilSignal(app);
  return 0;
}

}  // namespace

void AddServe(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<ServeFlags>();
  command.add_option("--model,-m", flags->models,
                     "model to serve: a directory or an embedded name; NAME=PATH names it; "
                     "repeatable (default: the embedded model)");
  AddModelFlags(command, flags->model);
  command.add_option("--served-model-name", flags->served_names,
                     "names of the first model; the first is what answers carry");
  command.add_flag("--any-model-name", flags->any_model_name,
                   "unknown model names mean the first model");
  command.add_option("--host", flags->host, "address to listen on")->capture_default_str();
  command.add_option("--port", flags->port, "port to listen on (0 picks a free one)")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command.add_option("--max-seqs", flags->max_seqs, "sequences running at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command.add_option("--max-queue", flags->max_queue, "waiting requests; further ones get 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", flags->prefill_chunk,
                  "prompt tokens computed in one step, all sequences together")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--max-body", flags->max_body, "largest request body")->capture_default_str();
  command
      .add_option("--max-connections", flags->max_connections,
                  "open connections; further ones get 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  const auto add_timeout = [&command](const char* name, double& seconds, const char* what) {
    command.add_option(name, seconds, what)
        ->check(CLI::Range(0.01, 86400.0))
        ->capture_default_str();
  };
  add_timeout("--header-timeout", flags->header_timeout_s,
              "seconds for the head of a request, and for a TLS handshake");
  add_timeout("--body-timeout", flags->body_timeout_s,
              "seconds that a request body may stand still");
  add_timeout("--keep-alive-timeout", flags->keep_alive_timeout_s,
              "seconds that a connection may be idle");
  add_timeout("--write-timeout", flags->write_timeout_s,
              "seconds that a client may read nothing of its answer");
  command.add_option("--tls-cert", flags->tls_cert,
                     "PEM file with the certificate and its chain: serve https; read again on "
                     "SIGHUP");
  command.add_option("--tls-key", flags->tls_key,
                     "PEM file with the certificate's key; read again on SIGHUP");
  command.add_option("--api-key", flags->api_keys,
                     "key that clients must send; repeatable (or TANDEM_API_KEY)");
  command.add_option("--api-key-file", flags->api_key_file,
                     "file with one key per line; read again on SIGHUP");
  command.add_option("--admin-key", flags->admin_key,
                     "key of the admin routes, which are off without one (or TANDEM_ADMIN_KEY)");
  command.add_option("--metrics-key", flags->metrics_key,
                     "key of /metrics, which is open without one (or TANDEM_METRICS_KEY)");
  command.add_option("--data-dir", flags->data_dir,
                     "jobs and their files, used with an admin key (default: "
                     "$XDG_DATA_HOME/tandem)");
  command
      .add_option("--model-root", flags->model_root,
                  "directory that paths in admin requests are relative to")
      ->capture_default_str();
  command.add_flag("--insecure", flags->insecure,
                   "serve without a key on an address that other machines can reach");
  command.add_option("--cors-origin", flags->cors_origin,
                     "the one web origin that may use this server");
  command
      .add_option("--drain-timeout", flags->drain_timeout_s,
                  "seconds that running requests get when the server stops")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option("--request-timeout", flags->request_timeout_s,
                  "seconds a request may take in all (0: unlimited)")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  command
      .add_option("--ping-interval", flags->ping_interval_s,
                  "seconds of silence after which a stream sends a comment")
      ->check(CLI::Range(0.05, 86400.0))
      ->capture_default_str();
  command
      .add_option("--reasoning-parser", flags->reasoning_parser,
                  "answer what a model writes between <think> and </think> apart from its text: "
                  "think, none, or auto (if its chat template knows <think>)")
      ->check(CLI::IsMember({"auto", "think", "none"}))
      ->capture_default_str();
  command.add_option("--log-level", flags->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  command.add_option("--log-format", flags->log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command.callback([flags, &exit_code] { exit_code = Serve(*flags); });
}

}  // namespace tandem::server
