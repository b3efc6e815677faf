#include "config/app_config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/edit_distance.h"
#include "engine/io/atomic_write.h"

namespace tandem::config {
namespace {

constexpr double kAny = 1e18;

// clang-format off
const ConfigKey kKeys[] = {
    {.name = "model", .member = &AppConfig::model, .unit = "PATH",
     .effect = "model: directory, GGUF or llama2.c file, embedded name or hub name; repeatable",
     .default_text = "the embedded model", .short_flag = 'm'},
    {.name = "served-model-name", .member = &AppConfig::served_model_name, .unit = "NAME",
     .effect = "names of the first model; responses carry the first name; repeatable",
     .default_text = "the model's own"},
    {.name = "adapter", .member = &AppConfig::adapter, .unit = "NAME=DIR",
     .effect = "LoRA adapter of the first model: a PEFT directory, served as NAME; repeatable",
     .default_text = "none"},
    {.name = "any-model-name", .member = &AppConfig::any_model_name, .unit = "",
     .effect = "the first model also answers to unknown model names"},
    {.name = "dtype", .member = &AppConfig::dtype, .unit = "",
     .effect = "type of the weights; int8 and int4 compute in bf16",
     .choices = "auto|f32|bf16|int8|int4"},
    {.name = "max-model-len", .member = &AppConfig::max_model_len, .unit = "tokens",
     .effect = "longest context; a model that supports less keeps its own; 0: the model's own",
     .min = 0, .max = 1 << 30},
    {.name = "chat-template", .member = &AppConfig::chat_template, .unit = "FILE",
     .effect = "Jinja chat template to use instead of the model's",
     .default_text = "the model's own", .must_exist = true},
    {.name = "reasoning-parser", .member = &AppConfig::reasoning_parser, .unit = "",
     .effect = "return <think> text separately; auto: by chat template",
     .choices = "auto|think|none"},
    {.name = "tool-parser", .member = &AppConfig::tool_parser, .unit = "NAME",
     .effect = "format of tool calls: auto (by chat template), none, or a name"},
    {.name = "threads", .member = &AppConfig::threads, .unit = "threads",
     .effect = "compute threads; 0: one per physical core", .min = 0, .max = 4096},
    {.name = "memory", .member = &AppConfig::memory, .unit = "bytes",
     .effect = "budget of all models for weights, KV cache and scratch, such as 8G",
     .default_text = "80 % of available memory"},
    {.name = "cache-size", .member = &AppConfig::cache_size, .unit = "bytes",
     .effect = "size limit of the packed-weight cache on disk"},
    {.name = "host", .member = &AppConfig::host, .unit = "ADDRESS",
     .effect = "address to listen on"},
    {.name = "port", .member = &AppConfig::port, .unit = "",
     .effect = "port to listen on; 0 picks a free one", .min = 0, .max = 65535},
    {.name = "insecure", .member = &AppConfig::insecure, .unit = "",
     .effect = "allow serving without a key on an address that other machines can reach"},
    {.name = "api-key", .member = &AppConfig::api_key, .unit = "KEY",
     .effect = "key that clients must send; repeatable", .default_text = "none: open",
     .environment = "TANDEM_API_KEY", .is_secret = true},
    {.name = "api-key-file", .member = &AppConfig::api_key_file, .unit = "FILE",
     .effect = "file with one API key per line; read again on SIGHUP", .default_text = "none",
     .must_exist = true},
    {.name = "api-keys-db", .member = &AppConfig::api_keys_db, .unit = "FILE",
     .effect = "database of `tandem keys`; changes apply within a second",
     .default_text = "DATA_DIR/keys.db"},
    {.name = "isolate-keys", .member = &AppConfig::isolate_keys, .unit = "",
     .effect = "files, fine-tuning jobs and their models are visible only to the key that made them"},
    {.name = "admin-key", .member = &AppConfig::admin_key, .unit = "KEY",
     .effect = "key of the admin routes; prefer admin-key-file to the flag",
     .default_text = "none: off", .environment = "TANDEM_ADMIN_KEY", .is_secret = true},
    {.name = "admin-key-file", .member = &AppConfig::admin_key_file, .unit = "FILE",
     .effect = "file that contains only the admin key; read at start",
     .default_text = "none", .must_exist = true},
    {.name = "metrics-key", .member = &AppConfig::metrics_key, .unit = "KEY",
     .effect = "key of /metrics, which is open without one", .default_text = "none: open",
     .environment = "TANDEM_METRICS_KEY", .is_secret = true},
    {.name = "tls-cert", .member = &AppConfig::tls_cert, .unit = "FILE",
     .effect = "PEM file of the certificate chain, which turns on https; read again on SIGHUP",
     .default_text = "none: http", .must_exist = true},
    {.name = "tls-key", .member = &AppConfig::tls_key, .unit = "FILE",
     .effect = "PEM file with the certificate's key; read again on SIGHUP",
     .default_text = "none", .must_exist = true},
    {.name = "allowed-host", .member = &AppConfig::allowed_host, .unit = "NAME",
     .effect = "another accepted Host name; * accepts all; repeatable",
     .default_text = "none; every name with an API key"},
    {.name = "cors-origin", .member = &AppConfig::cors_origin, .unit = "ORIGIN",
     .effect = "web origin with access; * allows every origin",
     .default_text = "pages of this machine; any with an API key"},
    {.name = "no-console", .member = &AppConfig::no_console, .unit = "",
     .effect = "no pages for browsers at `/`"},
    {.name = "max-seqs", .member = &AppConfig::max_seqs, .unit = "sequences",
     .effect = "most sequences that run at once; more wait", .min = 1, .max = 4096},
    {.name = "max-queue", .member = &AppConfig::max_queue, .unit = "requests",
     .effect = "most waiting requests; more get 503 with Retry-After", .min = 1, .max = 1 << 20},
    {.name = "max-queue-per-key", .member = &AppConfig::max_queue_per_key, .unit = "requests",
     .effect = "waiting requests per API key, then 429; 0: 3/4 of max-queue if several keys",
     .min = 0, .max = 1 << 20},
    {.name = "batch-concurrency", .member = &AppConfig::batch_concurrency, .unit = "requests",
     .effect = "lines of all batches that run at once; 0: 16, at most half of max-seqs",
     .min = 0, .max = 4096},
    {.name = "share-prefix-cache", .member = &AppConfig::share_prefix_cache, .unit = "",
     .effect = "let API keys share cached prompt prefixes; one key can then detect another's"},
    {.name = "idle-release", .member = &AppConfig::idle_release, .unit = "s",
     .effect = "idle time after which a model releases cached prefixes and KV memory; 0: never",
     .min = 0, .max = 86400},
    {.name = "prefill-chunk", .member = &AppConfig::prefill_chunk, .unit = "tokens",
     .effect = "prompt tokens per step, all sequences together; 0: 256 to 1024 by model size",
     .min = 0, .max = 1 << 16},
    {.name = "max-body", .member = &AppConfig::max_body, .unit = "bytes",
     .effect = "largest JSON body; larger ones get 413"},
    {.name = "body-memory", .member = &AppConfig::body_memory, .unit = "bytes",
     .effect = "memory of all JSON bodies together; a body beyond it gets 503 with Retry-After"},
    {.name = "max-file", .member = &AppConfig::max_file, .unit = "bytes",
     .effect = "largest uploaded file; larger ones get 413"},
    {.name = "max-connections", .member = &AppConfig::max_connections, .unit = "connections",
     .effect = "most open connections; more get 503", .min = 1, .max = 1 << 20},
    {.name = "request-threads", .member = &AppConfig::request_threads, .unit = "threads",
     .effect = "threads that parse requests, render templates and tokenise", .min = 1, .max = 256},
    {.name = "header-timeout", .member = &AppConfig::header_timeout, .unit = "s",
     .effect = "time for a request header, and for a TLS handshake",
     .min = 0.01, .max = 86400},
    {.name = "body-timeout", .member = &AppConfig::body_timeout, .unit = "s",
     .effect = "time without progress of a request body", .min = 0.01, .max = 86400},
    {.name = "keep-alive-timeout", .member = &AppConfig::keep_alive_timeout, .unit = "s",
     .effect = "time that a kept connection may be idle", .min = 0.01, .max = 86400},
    {.name = "write-timeout", .member = &AppConfig::write_timeout, .unit = "s",
     .effect = "time in which a client may read nothing of its response",
     .min = 0.01, .max = 86400},
    {.name = "ping-interval", .member = &AppConfig::ping_interval, .unit = "s",
     .effect = "silence after which a stream sends a keep-alive comment",
      .min = 0.05, .max = 86400},
    {.name = "queue-timeout", .member = &AppConfig::queue_timeout, .unit = "s",
     .effect = "time a request may wait for the batch, then 503; 0: unlimited",
     .min = 0, .max = 86400},
    {.name = "request-timeout", .member = &AppConfig::request_timeout, .unit = "s",
     .effect = "time a request may take in total, then 503 or an error event; 0: unlimited",
     .min = 0, .max = 86400},
    {.name = "drain-timeout", .member = &AppConfig::drain_timeout, .unit = "s",
     .effect = "time for running requests to end when the server stops", .min = 0, .max = 86400},
    {.name = "rate-limit-rpm", .member = &AppConfig::rate_limit_rpm, .unit = "requests/min",
     .effect = "most requests per API key; more get 429 with Retry-After; 0: unlimited",
     .min = 0, .max = 1e9},
    {.name = "rate-limit-tpm", .member = &AppConfig::rate_limit_tpm, .unit = "tokens/min",
     .effect = "prompt and output tokens of one API key, then 429; 0: unlimited",
     .min = 0, .max = 1e12},
    {.name = "data-dir", .member = &AppConfig::data_dir, .unit = "DIR",
     .effect = "uploaded files, jobs and their results; one server at a time",
     .default_text = "$XDG_DATA_HOME/tandem"},
    {.name = "response-store", .member = &AppConfig::response_store, .unit = "responses",
     .effect = "newest stored responses of /v1/responses, of the last 30 days",
     .min = 1, .max = 1e6},
    {.name = "model-root", .member = &AppConfig::model_root, .unit = "DIR",
     .effect = "directory that paths in admin requests are relative to", .must_exist = true},
    {.name = "metrics-namespace", .member = &AppConfig::metrics_namespace, .unit = "NAME",
     .effect = "prefix of metric names; vllm suits dashboards made for vLLM"},
    {.name = "log-level", .member = &AppConfig::log_level, .unit = "",
     .effect = "log threshold",
     .choices = "trace|debug|info|warn|error|off", .environment = "TANDEM_LOG_LEVEL"},
    {.name = "log-format", .member = &AppConfig::log_format, .unit = "",
     .effect = "format of log lines", .choices = "text|json"},
};
// clang-format on

// An unusable value; `why` follows the key's name in messages.
struct Unusable {
  std::string why;
};

std::string Quoted(const ConfigKey& key, const std::string& text) {
  if (key.is_secret) return "";
  return ", got '" + text.substr(0, 80) + "'";
}

bool IsWholeNumber(double value) { return value == std::floor(value) && std::abs(value) < 1e15; }

std::string NumberText(double value) {
  if (IsWholeNumber(value)) return std::to_string(static_cast<int64_t>(value));
  std::string text = std::to_string(value);
  while (text.back() == '0') text.pop_back();
  return text;
}

template <class Number>
Number ParseNumber(const ConfigKey& key, const std::string& text, const char* kind) {
  Number value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto as_double = static_cast<double>(value);
  if (fault != std::errc() || end != text.data() + text.size() || !(as_double >= key.min) ||
      !(as_double <= key.max)) {
    throw Unusable{std::string("must be ") + kind + " from " + NumberText(key.min) + " to " +
                   NumberText(key.max) + Quoted(key, text)};
  }
  return value;
}

bool IsChoice(std::string_view choices, std::string_view text) {
  while (!choices.empty()) {
    const size_t bar = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, bar) == text) return true;
    choices.remove_prefix(std::min(bar + 1, choices.size()));
  }
  return false;
}

// Prometheus would reject such a name, and every scrape would fail much later.
bool IsMetricPrefix(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  if (text.empty() || !is_letter(text.front())) return false;
  for (const char c : text) {
    if (!is_letter(c) && !(c >= '0' && c <= '9')) return false;
  }
  return true;
}

// Whether the text is a host name or an address without a port, or `*` for every name.
bool IsHostPattern(std::string_view text) {
  if (text == "*") return true;
  const auto is_of = [&](std::string_view more) {
    return std::all_of(text.begin(), text.end(), [&](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             more.find(c) != std::string_view::npos;
    });
  };
  // One colon is a port; an IPv6 address has more.
  return std::count(text.begin(), text.end(), ':') >= 2 ? is_of(":[].") : is_of("-._");
}

void CheckText(const ConfigKey& key, const std::string& text) {
  if (!key.choices.empty() && !IsChoice(key.choices, text)) {
    throw Unusable{"must be one of " + std::string(key.choices) + Quoted(key, text)};
  }
  if (key.name == "metrics-namespace" && !IsMetricPrefix(text)) {
    throw Unusable{"must be letters, digits and underscores, not starting with a digit" +
                   Quoted(key, text)};
  }
  if (key.name == "allowed-host" && !IsHostPattern(text)) {
    throw Unusable{"must be a host name or an address, without scheme and port, or *" +
                   Quoted(key, text)};
  }
  if (key.must_exist && !text.empty() && !std::filesystem::exists(text)) {
    throw Unusable{"does not exist" + Quoted(key, text)};
  }
}

class Setter {
 public:
  Setter(AppConfig& config, const ConfigKey& key, const std::vector<std::string>& words)
      : config_(config), key_(key), words_(words) {}

  void operator()(bool AppConfig::*member) const {
    const std::string& text = One();
    if (text != "true" && text != "false") {
      throw Unusable{"must be true or false" + Quoted(key_, text)};
    }
    config_.*member = text == "true";
  }
  void operator()(int64_t AppConfig::*member) const {
    config_.*member = ParseNumber<int64_t>(key_, One(), "an integer");
  }
  void operator()(Bytes AppConfig::*member) const {
    try {
      (config_.*member).n = ParseBytes(One(), "");
    } catch (const Error&) {
      throw Unusable{"must be a size such as 512M or 8G" + Quoted(key_, One())};
    }
  }
  void operator()(Seconds AppConfig::*member) const {
    (config_.*member).s = ParseNumber<double>(key_, One(), "a number of seconds");
  }
  void operator()(std::string AppConfig::*member) const {
    CheckText(key_, One());
    config_.*member = One();
  }
  void operator()(std::vector<std::string> AppConfig::*member) const {
    for (const std::string& word : words_) {
      if (word.empty()) throw Unusable{"must not be empty"};
      CheckText(key_, word);
    }
    config_.*member = words_;
  }

 private:
  const std::string& One() const {
    if (words_.size() != 1) throw Unusable{"takes one value"};
    return words_.front();
  }

  AppConfig& config_;
  const ConfigKey& key_;
  const std::vector<std::string>& words_;
};

std::string BytesText(Bytes bytes) {
  static constexpr std::string_view kUnits = "KMGT";
  int64_t n = bytes.n;
  size_t power = 0;
  while (n > 0 && n % 1024 == 0 && power < kUnits.size()) {
    n /= 1024;
    ++power;
  }
  return std::to_string(n) + (power > 0 ? std::string(1, kUnits[power - 1]) : "");
}

// Returns the value as words: one, or those of a list.
struct Reader {
  const AppConfig& config;

  std::vector<std::string> operator()(bool AppConfig::*m) const {
    return {config.*m ? "true" : "false"};
  }
  std::vector<std::string> operator()(int64_t AppConfig::*m) const {
    return {std::to_string(config.*m)};
  }
  std::vector<std::string> operator()(Bytes AppConfig::*m) const { return {BytesText(config.*m)}; }
  std::vector<std::string> operator()(Seconds AppConfig::*m) const {
    return {NumberText((config.*m).s)};
  }
  std::vector<std::string> operator()(std::string AppConfig::*m) const { return {config.*m}; }
  std::vector<std::string> operator()(std::vector<std::string> AppConfig::*m) const {
    return config.*m;
  }
};

const ConfigKey* FindKey(std::string_view name) {
  for (const ConfigKey& key : kKeys) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

std::string NearestKey(std::string_view name) {
  const ConfigKey* nearest = &kKeys[0];
  for (const ConfigKey& key : kKeys) {
    if (EditDistance(name, key.name) < EditDistance(name, nearest->name)) nearest = &key;
  }
  return std::string(nearest->name);
}

class Loader {
 public:
  LoadedConfig loaded;

  void Set(const ConfigKey& key, const std::vector<std::string>& words, const std::string& origin,
           const std::string& label) {
    try {
      std::visit(Setter(loaded.values, key, words), key.member);
      loaded.origins[key.name] = origin;
    } catch (const Unusable& unusable) {
      faults_.push_back(label + " " + unusable.why);
    }
  }

  void ReadFile(const std::string& path) {
    const std::string text = engine::ReadWholeFile(path, 1 << 20);
    YAML::Node root;
    try {
      root = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      faults_.push_back(Place(path, error.mark) + error.msg);
      return;
    }
    if (root.IsNull()) return;  // empty, or comments only
    if (!root.IsMap()) {
      faults_.push_back(path + ": must be a mapping of keys to values");
      return;
    }
    std::set<std::string> seen;
    for (const auto& entry : root) ReadEntry(path, entry.first, entry.second, seen);
  }

  LoadedConfig Finish() {
    if (faults_.empty()) return std::move(loaded);
    std::string message = "the configuration has " + std::to_string(faults_.size()) +
                          (faults_.size() == 1 ? " fault:" : " faults:");
    for (const std::string& fault : faults_) message += "\n  " + fault;
    throw Error(ErrorCode::kInvalidArgument, message);
  }

 private:
  static std::string Place(const std::string& path, const YAML::Mark& mark) {
    return path + ":" + std::to_string(mark.line + 1) + ": ";
  }

  void ReadEntry(const std::string& path, const YAML::Node& name_node, const YAML::Node& value,
                 std::set<std::string>& seen) {
    const std::string place = Place(path, name_node.Mark());
    const std::string name = name_node.IsScalar() ? name_node.Scalar() : "";
    const ConfigKey* key = FindKey(name);
    if (key == nullptr) {
      faults_.push_back(place + "unknown key '" + name.substr(0, 80) + "'; did you mean '" +
                        NearestKey(name) + "'?");
      return;
    }
    if (!seen.insert(name).second) {
      faults_.push_back(place + name + " is given twice");
      return;
    }
    if (value.IsNull()) return;  // "key:" leaves the default
    std::vector<std::string> words;
    bool is_plain = value.IsScalar();
    if (is_plain) words.push_back(value.Scalar());
    if (value.IsSequence()) {
      is_plain = std::holds_alternative<std::vector<std::string> AppConfig::*>(key->member);
      for (const YAML::Node& item : value) {
        is_plain = is_plain && item.IsScalar();
        if (is_plain) words.push_back(item.Scalar());
      }
    }
    if (!is_plain) {
      faults_.push_back(place + name + " must be a value" +
                        (value.IsSequence() ? ", not a list" : ", not a mapping"));
      return;
    }
    Set(*key, words, path + ":" + std::to_string(name_node.Mark().line + 1), place + name);
  }

  std::vector<std::string> faults_;
};

std::string YamlText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (static_cast<unsigned char>(c) < 0x20) {
      out += "\\x" + std::string(1, "0123456789abcdef"[c >> 4]) +
             std::string(1, "0123456789abcdef"[c & 15]);
      continue;
    }
    out.push_back(c);
  }
  return out + "\"";
}

bool IsText(const ConfigKey& key) {
  return std::holds_alternative<std::string AppConfig::*>(key.member) ||
         std::holds_alternative<std::vector<std::string> AppConfig::*>(key.member);
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return kKeys; }

std::string DefaultText(const ConfigKey& key) {
  if (!key.default_text.empty()) return std::string(key.default_text);
  const std::vector<std::string> words = std::visit(Reader{AppConfig()}, key.member);
  return words.empty() ? "" : words.front();
}

LoadedConfig LoadConfig(const ConfigSources& sources) {
  Loader loader;
  if (!sources.file.empty()) loader.ReadFile(sources.file);
  for (const ConfigKey& key : kKeys) {
    if (key.environment.empty() || !sources.environment) continue;
    const std::string variable(key.environment);
    const char* text = sources.environment(variable.c_str());
    if (text != nullptr && *text != '\0') loader.Set(key, {text}, variable, variable);
  }
  for (const auto& [name, words] : sources.flags) {
    const ConfigKey* key = FindKey(name);
    TANDEM_CHECK(key != nullptr);
    loader.Set(*key, words, "--" + name, "--" + name);
  }
  return loader.Finish();
}

std::string DescribeConfig(const LoadedConfig& config) {
  std::string out;
  for (const ConfigKey& key : kKeys) {
    std::vector<std::string> words = std::visit(Reader{config.values}, key.member);
    const auto origin = config.origins.find(key.name);
    const bool is_list = std::holds_alternative<std::vector<std::string> AppConfig::*>(key.member);
    const bool is_decided_later = origin == config.origins.end() && !key.default_text.empty();
    std::string value;
    for (std::string& word : words) {
      if (key.is_secret && !word.empty()) word = "(redacted)";
      value += (value.empty() ? "" : ", ") + (IsText(key) ? YamlText(word) : word);
    }
    if (is_list) value = "[" + value + "]";
    // An empty value leaves the default, in a file as well.
    out += std::string(key.name) + ":" + (is_decided_later ? "" : " " + value) + "  # " +
           (origin != config.origins.end() ? origin->second
            : is_decided_later             ? "default: " + std::string(key.default_text)
                                           : "default") +
           "\n";
  }
  return out;
}

std::string ConfigTable() {
  std::string out = "| key | unit | default | effect |\n|---|---|---|---|\n";
  for (const ConfigKey& key : kKeys) {
    std::string effect(key.effect);
    std::string choices;
    for (const char c : key.choices) choices += c == '|' ? "`, `" : std::string(1, c);
    if (!choices.empty()) effect += ": `" + choices + "`";
    if (!key.environment.empty()) effect += " (also `" + std::string(key.environment) + "`)";
    const bool is_value = key.default_text.empty();
    std::string text = DefaultText(key);
    if (is_value && !text.empty()) text = "`" + text + "`";
    out += "| `" + std::string(key.name) + "` | " + std::string(key.unit) + " | " + text + " | " +
           effect + " |\n";
  }
  return out;
}

int64_t ParseBytes(const std::string& text, const std::string& what) {
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  for (char& c : unit) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  const std::string_view units = "kmgt";
  const size_t power = unit.empty() ? 0 : units.find(unit) + 1;
  if (fault != std::errc() || number <= 0 || unit.size() > 1 || (unit.size() == 1 && power == 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                what + " must be a size such as 512M or 8G, got '" + text + "'");
  }
  for (size_t i = 0; i < power; ++i) number = CheckedMul<int64_t>(number, 1024, what.c_str());
  return number;
}

}  // namespace tandem::config
