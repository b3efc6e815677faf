#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace tandem::engine {

// How to reach the hub and where to store its files.
struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  std::filesystem::path cache_dir;  // holds the models--ORG--NAME folders
  std::string token;                // empty: none
  bool offline = false;             // use the cache only

  std::string https_proxy;  // URL, empty: none
  std::string http_proxy;
  std::string no_proxy;  // hosts, separated by commas

  int connections = 8;
  // A transfer fails after this many consecutive faults without progress.
  int max_attempts = 6;
  std::chrono::milliseconds connect_timeout{10'000};
  std::chrono::milliseconds idle_timeout{10'000};      // without any byte
  std::chrono::milliseconds answer_timeout{120'000};   // for a whole API response
  std::chrono::milliseconds first_backoff{500};        // doubles per consecutive fault, up to 8 s
  std::chrono::milliseconds max_retry_after{120'000};  // a longer Retry-After fails the transfer

  // Segment size of large files, which several connections fetch at once. Segments that arrive
  // early wait in memory: at most two for each connection.
  uint64_t segment_bytes = uint64_t{8} << 20;
};

using Environment = std::function<const char*(const char* name)>;

// Reads the variables of Hugging Face's own tools: HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_TOKEN,
// HF_TOKEN_PATH, HF_HUB_OFFLINE, HF_HUB_DISABLE_IMPLICIT_TOKEN, HF_HUB_DOWNLOAD_TIMEOUT, and the
// usual proxy variables. Throws kInvalidArgument naming the variable, without its value where that
// is secret.
HubOptions HubOptionsFromEnvironment(const Environment& environment);
HubOptions HubOptionsFromEnvironment();

}  // namespace tandem::engine
