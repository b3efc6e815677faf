#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "server/admission/rate_limiter.h"
#include "server/http/request.h"
#include "server/http/response_writer.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// The administrator's requests: no limit holds for them. Keys are numbered by their digests, which
// are never this; requests without a key are 0.
inline constexpr uint64_t kAdminClient = ~uint64_t{0};

// Who gets in at all: the limits of keys, and the bound on what waits. Thread-safe; nothing here
// waits for anything.
class Admission {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // How many requests of one API key may wait for a model; 0: as many as there is room for.
  using QueueShare = std::function<int64_t()>;

  Admission(const RateLimits& limits, const ModelRegistry& models, QueueShare queue_share,
            Clock now)
      : limiter_(limits),
        models_(models),
        queue_share_(std::move(queue_share)),
        now_(std::move(now)) {}

  // For every request of a client, as soon as it is read; `is_heavy` if it wants tokens made. Why
  // it is refused, or nothing; the answer gets the headers that belong to either. A heavy request
  // keeps its place in the bounds on waiting until `request.admission` is given up: the requests
  // that are being parsed and tokenised wait as much as those in the engine's queue. The
  // handler redeems it for a place in the engine's queue, so that no request counts twice, or not
  // at all.
  std::optional<Error> Admit(Request& request, bool is_heavy, const ResponseWriter& writer);

  // How many requests the client may have waiting for a model; 0: no bound of its own.
  int64_t ShareOf(uint64_t client) const;

  // Takes tokens before a request is submitted; throws kResourceExhausted (rate_limit_exceeded).
  void ChargeTokens(uint64_t client, int64_t n, const ResponseWriter& writer);
  // When it has ended: it was charged more, or less, than it used.
  void CorrectTokens(uint64_t client, int64_t charged, int64_t used);

  // When to come back to a queue that is full.
  void AddRetryAfter(const ResponseWriter& writer) const;

 private:
  bool IsLimited(uint64_t client) const {
    return limiter_.limits().any() && client != kAdminClient;
  }
  void AddLimitHeaders(uint64_t client, const ResponseWriter& writer);
  // The length of the queue over the rate at which requests end.
  double SecondsUntilRoom(int64_t n_preparing) const;
  // Why the queue does not take one more request of the client.
  std::optional<Error> RefuseToQueue(uint64_t client, const ResponseWriter& writer) const;

  // Requests that are being parsed and tokenised. Outlived by requests, perhaps.
  struct Preparing {
    std::mutex mutex;  // guards both
    int64_t n = 0;
    std::unordered_map<uint64_t, int64_t> of;  // clients that have any
  };

  RateLimiter limiter_;
  const ModelRegistry& models_;
  const QueueShare queue_share_;
  const Clock now_;
  const std::shared_ptr<Preparing> preparing_ = std::make_shared<Preparing>();
};

// The headers retry-after (whole seconds, rounded up) and retry-after-ms, for 1 to 60 seconds.
void AddRetryAfterSeconds(const ResponseWriter& writer, double seconds);

}  // namespace tandem::server
