#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace tandem::engine {

// How the hub is reached and where its files are kept.
struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::filesystem::path cache_dir;  // models--ORG--NAME lie in it
  std::string token;                // empty: none
  bool offline = false;             // only what the cache holds

  std::string https_proxy;  // URL, empty: none
  std::string http_proxy;
  std::string no_proxy;  // hosts with commas between them

  int connections = 8;
  // Faults in a row, without a byte of progress between them, after which a transfer is given up.
  int max_attempts = 6;
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds idle_timeout{10'000};      // without a byte
  std::chrono::milliseconds answer_timeout{120'000};   // a whole answer of the API
  std::chrono::milliseconds first_backoff{500};        // doubles from fault to fault, up to 8 s
  std::chrono::milliseconds max_retry_after{120'000};  // longer waits are the user's to decide

  // A large file is fetched in such pieces, by several connections at once. What arrives before
  // its turn waits in memory: at most two pieces for each connection.
  uint64_t segment_bytes = uint64_t{8} << 20;
};

using Environment = std::function<const char*(const char* name)>;

// What Hugging Face's own tools read: HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_TOKEN_PATH,
// HF_HUB_OFFLINE, HF_HUB_DISABLE_IMPLICIT_TOKEN, HF_HUB_DOWNLOAD_TIMEOUT, and the proxies of every
// other program. Throws kInvalidArgument naming the variable, never its value where that is secret.
HubOptions HubOptionsFromEnvironment(const Environment& environment);
HubOptions HubOptionsFromEnvironment();

}  // namespace tandem::engine
