#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tandem::config {

// Sizes in flags and files, such as "32M", "8G", "4GiB", "1000". 0: the program decides.
struct Bytes {
  int64_t n = 0;
  bool operator==(const Bytes&) const = default;
};
struct Seconds {
  double s = 0;
  bool operator==(const Seconds&) const = default;
};

// The configuration of `tandem serve`. ConfigKeys describes each field; a test checks that the two
// agree.
struct AppConfig {
  std::vector<std::string> model;
  std::vector<std::string> served_model_name;
  std::vector<std::string> adapter;
  std::vector<std::string> draft_model;
  bool any_model_name = false;
  std::string dtype = "auto";
  std::string kv_dtype = "auto";
  int64_t max_model_len = 0;
  std::string chat_template;
  std::string reasoning_parser = "auto";
  std::string tool_parser = "auto";
  int64_t threads = 0;
  Bytes memory;
  Bytes cache_size{int64_t{64} << 30};
  std::string cache_dir;
  Bytes cache_dir_size{int64_t{8} << 30};

  std::string host = "127.0.0.1";
  int64_t port = 8080;
  int64_t health_port = 0;
  bool insecure = false;
  std::vector<std::string> api_key;
  std::string api_key_file;
  std::string api_keys_db;
  bool isolate_keys = false;
  std::string admin_key;
  std::string admin_key_file;
  std::string metrics_key;
  std::string tls_cert;
  std::string tls_key;
  std::vector<std::string> allowed_host;
  std::string cors_origin;
  bool no_console = false;

  int64_t max_seqs = 64;
  int64_t max_queue = 1024;
  int64_t max_queue_per_key = 0;
  int64_t batch_concurrency = 0;
  bool share_prefix_cache = false;
  std::string speculate = "off";
  bool reproducible = false;
  Seconds idle_release{300};
  Seconds prefix_idle{1800};
  int64_t prefill_chunk = 0;
  Bytes max_body{32 << 20};
  Bytes body_memory{512 << 20};
  Bytes max_file{512 << 20};
  int64_t max_connections = 4096;
  int64_t request_threads = 8;
  Seconds header_timeout{10};
  Seconds body_timeout{30};
  Seconds keep_alive_timeout{75};
  Seconds write_timeout{60};
  Seconds ping_interval{15};
  Seconds queue_timeout;
  Seconds request_timeout;
  Seconds drain_timeout{30};
  Seconds drain_delay{0};
  int64_t rate_limit_rpm = 0;
  int64_t rate_limit_tpm = 0;

  std::string data_dir;
  std::string database;
  std::string database_password_file;
  std::string blob_store;
  Bytes blob_cache{int64_t{16} << 30};
  std::string jobs_on = "local";
  std::string jobs_program;
  std::vector<std::string> jobs_option;
  int64_t response_store = 10000;
  std::string model_root = ".";
  std::string metrics_namespace = "tandem";
  std::string log_level = "info";
  std::string log_format = "text";
};

// One configuration key: a flag `--name`, a key `name` of the file, a row of config/README.md.
struct ConfigKey {
  using Member = std::variant<bool AppConfig::*, int64_t AppConfig::*, Bytes AppConfig::*,
                              Seconds AppConfig::*, std::string AppConfig::*,
                              std::vector<std::string> AppConfig::*>;
  std::string_view name;
  Member member;
  std::string_view unit;    // of the value: "tokens", "s", "FILE"; empty for bool
  std::string_view effect;  // one line
  double min = 0;           // of numbers
  double max = 0;
  std::string_view choices = {};       // "auto|f32": the only allowed values
  std::string_view default_text = {};  // for defaults that are decided at start
  std::string_view environment = {};   // variable that also sets it
  bool is_secret = false;              // never shown
  bool must_exist = false;             // a path that is read at start
  char short_flag = 0;
};
std::span<const ConfigKey> ConfigKeys();

// The built-in value in the form of flags ("32M", "30"), or default_text; empty: none.
std::string DefaultText(const ConfigKey& key);

struct ConfigSources {
  std::string file;                                          // YAML; empty: none
  std::map<std::string, std::vector<std::string>> flags;     // by key; the values of the flag
  std::function<const char*(const char* name)> environment;  // as std::getenv
};

struct LoadedConfig {
  AppConfig values;
  std::map<std::string_view, std::string> origins;  // by key: "FILE:LINE", a variable, a flag
};

// Merges the sources: built-in values, then the file's, the environment's and the flags', each
// overriding the previous ones. Throws kInvalidArgument with every fault of every source, each with
// its file and line, variable or flag; kIo when the file cannot be read. Messages never show values
// of secrets.
LoadedConfig LoadConfig(const ConfigSources& sources);

// The effective configuration as an equivalent file (without secrets), each line with its origin.
std::string DescribeConfig(const LoadedConfig& config);

// The keys as a Markdown table, as in config/README.md.
std::string ConfigTable();

// Throws kInvalidArgument naming `what`.
int64_t ParseBytes(const std::string& text, const std::string& what);

}  // namespace tandem::config
