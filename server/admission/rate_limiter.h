#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "server/http/request.h"

namespace tandem::server {

// Per minute and key; 0: no limit.
struct RateLimits {
  int64_t requests = 0;
  int64_t tokens = 0;

  bool any() const { return requests > 0 || tokens > 0; }
};

// What a key may still do: a bucket of requests and one of tokens, each as large as a minute's
// worth and refilled all the time. Thread-safe; times are the caller's and may not go back.
class RateLimiter {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  explicit RateLimiter(const RateLimits& limits) : limits_(limits) {}

  // Nothing: taken. Else how many seconds until it could be.
  std::optional<double> TakeRequest(uint64_t client, TimePoint now);
  // More than a minute's worth is taken from a full bucket, which then takes that much longer to
  // fill: otherwise such a request could never be made.
  std::optional<double> TakeTokens(uint64_t client, int64_t n, TimePoint now);
  // What was taken and then not used.
  void ReturnTokens(uint64_t client, int64_t n, TimePoint now);

  // x-ratelimit-… (CONTRACT §3), of the limits that there are.
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
  std::unordered_map<uint64_t, Client> clients_;  // as many as there are keys
};

// "1.5s", "0s", "59.25s": at most three decimals.
std::string DurationText(double seconds);

}  // namespace tandem::server
