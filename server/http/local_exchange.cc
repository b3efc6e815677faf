#include "server/http/local_exchange.h"

#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/out_of_memory.h"
#include "server/http/response_writer.h"

namespace tandem::server {
namespace {

// Bytes of a stream between two calls of Advance.
constexpr size_t kMaxPendingBytes = 1 << 20;

Response InternalError(const HttpPolicy& policy, const std::string& request_id) {
  return policy.refusal(500, "internal_error", "internal error; the request id is " + request_id);
}

}  // namespace

LocalExchange::LocalExchange(std::shared_ptr<const HttpPolicy> policy, const Route& route,
                             Request request, std::function<void()> notify)
    : policy_(std::move(policy)) {
  head_.id = request.id;
  head_.method = request.method;
  head_.path = request.path;
  channel_ = std::make_shared<ResponseChannel>(
      kMaxPendingBytes, notify, [notify](const std::shared_ptr<ResponseChannel>&) { notify(); });
  const ResponseWriter writer(channel_,
                              [shared = policy_, id = request.id]() -> ResponseWriter::Abandoned {
                                return {InternalError(*shared, id), ""};
                              });
  const auto error = Attempt([&] { route.handler(std::move(request), writer); });
  if (!error) return;
  const bool is_answered = HasMemoryFor([&] { writer.Send(policy_->failure(*error, head_)); });
  if (!is_answered) writer.GiveUp();
}

LocalExchange::~LocalExchange() {
  HasMemoryFor([&] { channel_->Disconnect(); });
}

std::optional<Response> LocalExchange::Advance() {
  if (is_over_) return std::nullopt;
  // Outlives the answer to its exception: a task may own the last writer.
  std::vector<std::function<void()>> ran;
  const auto error = Attempt([&] { channel_->RunTasks(ran); });
  if (error) channel_->Abort(policy_->failure(*error, head_), "");
  ResponseChannel::Output output = channel_->Take();
  if (output.head) answer_ = std::move(*output.head);
  if (answer_ && !output.bytes.empty()) {
    answer_->body += output.bytes;
    channel_->Sent(output.bytes.size());
  }
  if (!output.finished && !channel_->disconnected()) return std::nullopt;
  is_over_ = true;
  if (!output.finished || !answer_) return InternalError(*policy_, head_.id);
  return std::move(answer_);
}

}  // namespace tandem::server
