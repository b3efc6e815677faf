#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/http/request.h"

namespace tandem::server {

// Limits per minute and API key; 0: no limit.
struct RateLimits {
  int64_t requests = 0;
  int64_t tokens = 0;

  bool any() const { return requests > 0 || tokens > 0; }
};

// Remaining rates of each key: a bucket of requests and one of tokens. A bucket holds one minute's
// worth and refills continuously. Thread-safe. The caller passes the time; an earlier time refills
// nothing.
class RateLimiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit RateLimiter(const RateLimits& limits) : limits_(limits) {}

  // nullopt: taken. Otherwise the seconds until it can be taken.
  std::optional<double> TakeRequest(uint64_t client, TimePoint now);
  // More than a minute's worth needs only a full bucket, which then refills for longer. Otherwise
  // such a request could never run.
  std::optional<double> TakeTokens(uint64_t client, int64_t n, TimePoint now);
  // Replaces a charge of `charged` tokens by the tokens used: returns the unused ones, or charges
  // the rest.
  void SettleTokens(uint64_t client, int64_t charged, int64_t used, TimePoint now);

  // The x-ratelimit-… headers of the configured limits.
  Headers HeadersOf(uint64_t client, TimePoint now);

  const RateLimits& limits() const { return limits_; }

 private:
  struct Bucket {
    std::optional<double> level{};  // unset: full
    TimePoint at{};
  };
  struct Client {
    Bucket requests;
    Bucket tokens;
  };
  static double LevelOf(Bucket& bucket, int64_t per_minute, TimePoint now);
  static std::optional<double> Take(Bucket& bucket, int64_t per_minute, double n, TimePoint now);

  const RateLimits limits_;
  std::mutex mutex_;                              // guards clients_
  std::unordered_map<uint64_t, Client> clients_;  // one entry per key
};

// Formats with at most three decimals: "1.5s", "0s", "59.25s".
std::string DurationText(double seconds);

}  // namespace tandem::server
