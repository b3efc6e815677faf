#include "server/admission/rate_limiter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace tandem::server {
namespace {

// Tolerates rounding of the refill.
constexpr double kTolerance = 1e-6;

}  // namespace

std::string DurationText(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", std::max(0.0, seconds));
  std::string out = text.data();
  while (out.back() == '0') out.pop_back();
  if (out.back() == '.') out.pop_back();
  return out + "s";
}

double RateLimiter::LevelOf(Bucket& bucket, int64_t per_minute, TimePoint now) {
  const auto capacity = static_cast<double>(per_minute);
  if (bucket.level && now > bucket.at) {
    const double seconds = std::chrono::duration<double>(now - bucket.at).count();
    bucket.level = std::min(capacity, *bucket.level + seconds * capacity / 60);
  }
  if (!bucket.level) bucket.level = capacity;
  bucket.at = std::max(bucket.at, now);
  return *bucket.level;
}

std::optional<double> RateLimiter::Take(Bucket& bucket, int64_t per_minute, double n,
                                        TimePoint now) {
  const auto capacity = static_cast<double>(per_minute);
  const double missing = std::min(n, capacity) - LevelOf(bucket, per_minute, now);
  if (missing > kTolerance) return missing * 60 / capacity;
  *bucket.level -= n;
  return std::nullopt;
}

std::optional<double> RateLimiter::TakeRequest(uint64_t client, TimePoint now) {
  if (limits_.requests <= 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return Take(clients_[client].requests, limits_.requests, 1, now);
}

std::optional<double> RateLimiter::TakeTokens(uint64_t client, int64_t n, TimePoint now) {
  if (limits_.tokens <= 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return Take(clients_[client].tokens, limits_.tokens, static_cast<double>(n), now);
}

void RateLimiter::SettleTokens(uint64_t client, int64_t charged, int64_t used, TimePoint now) {
  if (limits_.tokens <= 0) return;
  const std::lock_guard lock(mutex_);
  Bucket& bucket = clients_[client].tokens;
  const double level = LevelOf(bucket, limits_.tokens, now) + static_cast<double>(charged) -
                       static_cast<double>(used);
  bucket.level = std::min(static_cast<double>(limits_.tokens), level);
}

Headers RateLimiter::HeadersOf(uint64_t client, TimePoint now) {
  Headers headers;
  const std::lock_guard lock(mutex_);
  const auto add = [&](Bucket& bucket, int64_t per_minute, const std::string& kind) {
    if (per_minute <= 0) return;
    const double level = LevelOf(bucket, per_minute, now);
    const auto remaining = static_cast<int64_t>(std::floor(std::max(0.0, level + kTolerance)));
    const double reset =
        (static_cast<double>(per_minute) - level) * 60 / static_cast<double>(per_minute);
    headers.emplace_back("x-ratelimit-limit-" + kind, std::to_string(per_minute));
    headers.emplace_back("x-ratelimit-remaining-" + kind, std::to_string(remaining));
    headers.emplace_back("x-ratelimit-reset-" + kind, DurationText(reset));
  };
  Client& state = clients_[client];
  add(state.requests, limits_.requests, "requests");
  add(state.tokens, limits_.tokens, "tokens");
  return headers;
}

}  // namespace tandem::server
