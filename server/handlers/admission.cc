#include "server/handlers/admission.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace tandem::server {
namespace {

constexpr double kLongestRetryS = 60;

Error Exceeded(const char* what, int64_t limit, double wait_s) {
  return Error(ErrorCode::kResourceExhausted,
               std::string("this key has used its ") + what + " per minute, of which it has " +
                   std::to_string(limit) + "; try again in " + DurationText(wait_s))
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

  const std::vector<ModelRegistry::Entry> models = models_.List();
  int64_t room = 0;
  for (const auto& [name, model] : models) {
    if (name == model->id) room += model->engine->queue_room();
  }
  // Before a model is loaded the handler has a better answer.
  if (!models.empty() && n_preparing_->load() >= room) {
    AddRetryAfter(writer);
    return Error(ErrorCode::kUnavailable, "the queue is full (--max-queue); try again later")
        .WithReason("server_overloaded");
  }
  ++*n_preparing_;
  request.admission =
      std::shared_ptr<void>(nullptr, [counter = n_preparing_](void*) { --*counter; });
  return std::nullopt;
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
  if (IsLimited(client)) limiter_.ReturnTokens(client, charged - used, now_());
}

void Admission::AddRetryAfter(const ResponseWriter& writer) const {
  double waiting = static_cast<double>(n_preparing_->load());
  double ended_per_second = 0;
  for (const auto& [name, model] : models_.List()) {
    if (name != model->id) continue;
    const engine::EngineStats stats = model->engine->stats();
    waiting += static_cast<double>(stats.requests_waiting);
    ended_per_second += stats.requests_ended_per_second;
  }
  AddRetryAfterSeconds(writer, ended_per_second > 0 ? waiting / ended_per_second : kLongestRetryS);
}

void Admission::AddLimitHeaders(uint64_t client, const ResponseWriter& writer) {
  for (auto& [name, value] : limiter_.HeadersOf(client, now_())) {
    writer.AddHeader(name, std::move(value));
  }
}

}  // namespace tandem::server
