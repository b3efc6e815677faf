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
#include "server/keys/key_usage.h"
#include "server/models/model_registry.h"

namespace tandem::server {

// The client number of the administrator, who has no limits. The numbers of API keys come from
// their digests and never have this value; requests without a key are 0.
inline constexpr uint64_t kAdminClient = ~uint64_t{0};

// Decides which requests may enter: the limits of keys, and the bound on waiting requests.
// Thread-safe; never blocks.
class Admission {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;

  // The number of requests of one API key that may wait for a model; 0: no bound per key.
  using QueueShare = std::function<int64_t()>;

  // `usage` receives the tokens of each client.
  Admission(const RateLimits& limits, const ModelRegistry& models, QueueShare queue_share,
            Clock now, KeyUsage& usage)
      : limiter_(limits),
        models_(models),
        queue_share_(std::move(queue_share)),
        now_(std::move(now)),
        usage_(usage) {}

  // Call for every request of a client as soon as it is read; `is_heavy` if it generates tokens.
  // Returns the reason of a refusal, or nullopt, and adds the matching headers to the answer.
  //
  // A heavy request counts as waiting until `request.admission` is released, so that requests being
  // parsed and tokenised count like those in the engine's queue. The handler redeems it for a place
  // in that queue, so that each request counts exactly once.
  std::optional<Error> Admit(Request& request, bool is_heavy, const ResponseWriter& writer);

  // The number of requests that the client may have waiting; 0: no bound per client.
  int64_t ShareOf(uint64_t client) const;

  // Takes tokens before a request is submitted; throws kResourceExhausted (rate_limit_exceeded).
  void ChargeTokens(uint64_t client, int64_t n, const ResponseWriter& writer);
  // Corrects the charge of an ended request to its real use.
  void CorrectTokens(uint64_t client, int64_t charged, int64_t used);

  // Counts the tokens of an ended request for its client.
  void CountTokens(uint64_t client, int64_t n_prompt, int64_t n_generated) {
    usage_.CountTokens(client, n_prompt, n_generated);
  }

  // Adds the retry time of a full queue.
  void AddRetryAfter(const ResponseWriter& writer) const;

 private:
  bool IsLimited(uint64_t client) const {
    return limiter_.limits().any() && client != kAdminClient;
  }
  void AddLimitHeaders(uint64_t client, const ResponseWriter& writer);
  // The length of the queue divided by the rate at which requests end.
  double SecondsUntilRoom(int64_t n_preparing) const;
  // The reason why the queue refuses one more request of the client; nullopt if it has room.
  std::optional<Error> RefuseToQueue(uint64_t client, const ResponseWriter& writer) const;

  // Requests being parsed and tokenised. Reservations share it, because they can outlive Admission.
  struct Preparing {
    std::mutex mutex;  // guards both
    int64_t n = 0;
    std::unordered_map<uint64_t, int64_t> of;  // per client, without zero entries
  };

  RateLimiter limiter_;
  const ModelRegistry& models_;
  const QueueShare queue_share_;
  const Clock now_;
  KeyUsage& usage_;
  const std::shared_ptr<Preparing> preparing_ = std::make_shared<Preparing>();
};

// Adds the headers retry-after (whole seconds, rounded up) and retry-after-ms, clamped to 1 to 60
// seconds.
void AddRetryAfterSeconds(const ResponseWriter& writer, double seconds);

}  // namespace tandem::server
