#include "server/http/request_queue.h"

#include <chrono>
#include <utility>

#include "server/http/dispatch.h"

namespace tandem::server {

RequestQueue::RequestQueue(const ConnectionShared& shared,
                           std::function<std::function<void()>()> room_callback)
    : shared_(shared),
      room_callback_(std::move(room_callback)),
      parser_(
          shared.options,
          [&shared](const Request& head) {
            const Router::Match match = shared.router.Find(head.method, head.path);
            const size_t limit = match.route == nullptr ? 0 : match.route->max_body_bytes;
            return limit == 0 ? shared.options.max_body_bytes : limit;
          },
          shared.body_budget) {}

bool RequestQueue::is_full() const {
  return parser_.is_sink_full() || entries_.size() >= shared_.options.max_pipelined_requests ||
         body_bytes_ > shared_.options.max_body_bytes;
}

bool RequestQueue::Parse() {
  bool has_completed = false;
  while (!is_full()) {
    RequestParser::Result result = parser_.Next();
    if (std::holds_alternative<RequestParser::NeedMore>(result)) break;
    if (const auto* ready = std::get_if<RequestParser::HeadReady>(&result)) {
      OnHeadReady(ready->awaits_continue);
    } else if (Request* request = std::get_if<Request>(&result)) {
      has_completed = true;
      owes_continue_ = false;
      if (parser_.is_over_budget()) early_refusal_ = RefuseForMemory();
      if (early_refusal_) {
        entries_.push_back(EarlyAnswer{std::move(*request), std::move(*early_refusal_), false});
        early_refusal_.reset();
      } else {
        body_bytes_ += request->body.size();
        entries_.push_back(std::move(*request));
      }
    } else {
      Refuse(std::get<Refusal>(result));
    }
  }
  return has_completed;
}

// A refused client that waits for `100 Continue` gets its answer at once. Other refused bodies are
// read first: a reset would lose the answer, and the connection stays usable.
void RequestQueue::OnHeadReady(bool awaits_continue) {
  Router::Match match;
  std::optional<Response> refused = CheckHead(shared_, parser_.head(), match);
  if (!refused && match.route->open_body) {
    OpenedBody body = OpenBodyOf(shared_, *match.route, parser_.head(), room_callback_());
    refused = std::move(body.refused);
    if (!refused) parser_.SendBodyTo(std::move(body.sink));
  } else if (!refused && !shared_.body_budget->HasRoomFor(parser_.announced_bytes())) {
    refused = RefuseForMemory();
  }
  if (!refused) {
    owes_continue_ = awaits_continue;
  } else if (awaits_continue) {
    Request head = parser_.head();
    parser_.Stop();
    entries_.push_back(EarlyAnswer{std::move(head), std::move(*refused)});
  } else {
    parser_.DropBody();
    early_refusal_ = std::move(*refused);
  }
}

Response RequestQueue::RefuseForMemory() const {
  return shared_.policy.refusal(503, "server_overloaded",
                                "the bodies of all requests together reach the limit of " +
                                    std::to_string(shared_.options.body_memory_bytes) +
                                    " bytes (--body-memory); try again later");
}

void RequestQueue::Refuse(const Refusal& refusal) {
  parser_.Stop();  // first: the head is kept without copying its body
  EarlyAnswer answer{parser_.head(), {}};
  answer.head.received = std::chrono::steady_clock::now();
  // A caller without access gets its own refusal, not the size limit.
  answer.response = refusal.status == 413 && early_refusal_
                        ? std::move(*early_refusal_)
                        : shared_.policy.refusal(refusal.status, refusal.code, refusal.message);
  early_refusal_.reset();
  entries_.push_back(std::move(answer));
}

RequestQueue::Entry RequestQueue::Pop() {
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  if (const Request* request = std::get_if<Request>(&entry)) body_bytes_ -= request->body.size();
  return entry;
}

void RequestQueue::Abandon() {
  parser_.Stop();
  entries_.clear();
  body_bytes_ = 0;
  early_refusal_.reset();
}

}  // namespace tandem::server
