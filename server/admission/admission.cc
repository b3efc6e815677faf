#include "server/admission/admission.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tandem::server {
namespace {

constexpr double kLongestRetryS = 60;

Error Exceeded(const char* what, int64_t limit, double wait_s) {
  return Error(ErrorCode::kResourceExhausted,
               "this key has reached its limit of " + std::to_string(limit) + " " + what +
                   " per minute; try again in " + DurationText(wait_s))
      .WithReason("rate_limit_exceeded");
}

}  // namespace

void AddRetryAfterSeconds(const ResponseWriter& writer, double seconds) {
  const double clamped = std::clamp(seconds, 1.0, kLongestRetryS);
  writer.AddHeader("retry-after", std::to_string(static_cast<int64_t>(std::ceil(clamped))));
  writer.AddHeader("retry-after-ms", std::to_string(static_cast<int64_t>(clamped * 1000)));
}

std::optional<Error> Admission::Admit(Request& request, bool is_heavy,
                                      const ResponseWriter& writer) {
  if (IsLimited(request.client)) {
    const std::optional<double> wait_s = limiter_.TakeRequest(request.client, now_());
    AddLimitHeaders(request.client, writer);
    if (wait_s) {
      AddRetryAfterSeconds(writer, *wait_s);
      return Exceeded("requests", limiter_.limits().requests, *wait_s);
    }
  }
  if (!is_heavy) return std::nullopt;

  // One lock for check and count, so that simultaneous requests cannot exceed the bound.
  const std::lock_guard lock(preparing_->mutex);
  if (std::optional<Error> refused = RefuseToQueue(request.client, writer)) return refused;
  ++preparing_->n;
  ++preparing_->of[request.client];
  request.admission = std::make_shared<Reservation>(
      [preparing = preparing_, client = request.client](const std::function<void()>& take) {
        const std::lock_guard release(preparing->mutex);
        --preparing->n;
        const auto of_client = preparing->of.find(client);
        if (--of_client->second == 0) preparing->of.erase(of_client);
        take();
      });
  return std::nullopt;
}

int64_t Admission::ShareOf(uint64_t client) const {
  return client == 0 || client == kAdminClient ? 0 : queue_share_();
}

// REQUIRES: preparing_->mutex held.
std::optional<Error> Admission::RefuseToQueue(uint64_t client, const ResponseWriter& writer) const {
  const std::vector<ModelRegistry::Entry> models = models_.List();
  if (models.empty()) return std::nullopt;  // the handler reports a missing model better
  const int64_t share = ShareOf(client);
  int64_t room = 0;
  int64_t room_of_client = 0;
  for (const auto& [name, model] : models) {
    if (name != model->id || model->adapter) continue;
    room += model->engine->queue_room();
    if (share > 0) room_of_client += model->engine->queue_room_of(client, share);
  }
  const auto of_client = preparing_->of.find(client);
  const int64_t n_of_client = of_client == preparing_->of.end() ? 0 : of_client->second;
  if (share > 0 && n_of_client >= room_of_client) {
    AddRetryAfterSeconds(writer, SecondsUntilRoom(preparing_->n));
    return Error(ErrorCode::kResourceExhausted,
                 "this key has reached its limit of " + std::to_string(share) +
                     " waiting requests (--max-queue-per-key); try again later")
        .WithReason("rate_limit_exceeded");
  }
  if (preparing_->n < room) return std::nullopt;
  AddRetryAfterSeconds(writer, SecondsUntilRoom(preparing_->n));
  return Error(ErrorCode::kUnavailable, "the queue is full (--max-queue); try again later")
      .WithReason("server_overloaded");
}

void Admission::ChargeTokens(uint64_t client, int64_t n, const ResponseWriter& writer) {
  if (!IsLimited(client)) return;
  const std::optional<double> wait_s = limiter_.TakeTokens(client, n, now_());
  AddLimitHeaders(client, writer);
  if (!wait_s) return;
  AddRetryAfterSeconds(writer, *wait_s);
  throw Exceeded("tokens", limiter_.limits().tokens, *wait_s);
}

void Admission::CorrectTokens(uint64_t client, int64_t charged, int64_t used) {
  if (IsLimited(client)) limiter_.SettleTokens(client, charged, used, now_());
}

void Admission::AddRetryAfter(const ResponseWriter& writer) const {
  int64_t n_preparing = 0;
  {
    const std::lock_guard lock(preparing_->mutex);
    n_preparing = preparing_->n;
  }
  AddRetryAfterSeconds(writer, SecondsUntilRoom(n_preparing));
}

double Admission::SecondsUntilRoom(int64_t n_preparing) const {
  auto waiting = static_cast<double>(n_preparing);
  double ended_per_second = 0;
  for (const auto& [name, model] : models_.List()) {
    if (name != model->id || model->adapter) continue;
    const engine::EngineStats stats = model->engine->stats();
    waiting += static_cast<double>(stats.requests_queued);
    ended_per_second += stats.requests_ended_per_second;
  }
  return ended_per_second > 0 ? waiting / ended_per_second : kLongestRetryS;
}

void Admission::AddLimitHeaders(uint64_t client, const ResponseWriter& writer) {
  for (auto& [name, value] : limiter_.HeadersOf(client, now_())) {
    writer.AddHeader(name, std::move(value));
  }
}

}  // namespace tandem::server
