#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace tandem::server {

// Requests and tokens of one client since the server started.
struct UsageCounts {
  int64_t requests = 0;  // that passed the check of their key
  int64_t prompt_tokens = 0;
  int64_t generation_tokens = 0;
  int64_t last_used_at = 0;  // seconds since 1970; 0: not used
};

// Counts the use of each client (ApiKeys::ClientOf). Only valid keys have a client number, so the
// number of entries is bounded by the number of keys. Thread-safe.
class KeyUsage {
 public:
  void CountRequest(uint64_t client);
  void CountTokens(uint64_t client, int64_t n_prompt, int64_t n_generated);

  UsageCounts Of(uint64_t client) const;
  std::unordered_map<uint64_t, UsageCounts> All() const;

 private:
  mutable std::mutex mutex_;  // guards counts_
  std::unordered_map<uint64_t, UsageCounts> counts_;
};

}  // namespace tandem::server
