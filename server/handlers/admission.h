#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "engine/base/error.h"
#include "server/handlers/model_registry.h"
#include "server/handlers/rate_limiter.h"
#include "server/http/request.h"
#include "server/http/response_writer.h"

namespace tandem::server {

// The administrator's requests: no limit holds for them. Keys are numbered by their digests, which
// are never this; requests without a key are 0.
inline constexpr uint64_t kAdminClient = ~uint64_t{0};

// Who gets in at all: the limits of keys, and the bound on what waits. Thread-safe; nothing here
// waits for anything.
class Admission {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  Admission(const RateLimits& limits, const ModelRegistry& models, Clock now)
      : limiter_(limits), models_(models), now_(std::move(now)) {}

  // For every request of a client, as soon as it is read; `is_heavy` if it wants tokens made. Why
  // it is refused, or nothing; the answer gets the headers that belong to either. A heavy request
  // keeps its place in the bound on waiting until `request.admission` is released: the requests
  // that are being parsed and tokenised wait as much as those in the engine's queue.
  std::optional<Error> Admit(Request& request, bool is_heavy, const ResponseWriter& writer);

  // Takes tokens before a request is submitted; throws kResourceExhausted (rate_limit_exceeded).
  void ChargeTokens(uint64_t client, int64_t n, const ResponseWriter& writer);
  // When it has ended: it was charged more, or less, than it used.
  void CorrectTokens(uint64_t client, int64_t charged, int64_t used);

  // When to come back to a queue that is full: its length over the rate at which requests end.
  void AddRetryAfter(const ResponseWriter& writer) const;

 private:
  bool IsLimited(uint64_t client) const {
    return limiter_.limits().any() && client != kAdminClient;
  }
  void AddLimitHeaders(uint64_t client, const ResponseWriter& writer);

  RateLimiter limiter_;
  const ModelRegistry& models_;
  const Clock now_;
  const std::shared_ptr<std::atomic<int64_t>> n_preparing_ =
      std::make_shared<std::atomic<int64_t>>(0);
};

// The headers retry-after (whole seconds, rounded up) and retry-after-ms, for 1 to 60 seconds.
void AddRetryAfterSeconds(const ResponseWriter& writer, double seconds);

}  // namespace tandem::server
