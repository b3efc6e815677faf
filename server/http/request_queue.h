#pragma once

// Private to this room: includes Boost.

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <variant>

#include "server/http/connection_shared.h"
#include "server/http/request.h"
#include "server/http/request_parser.h"

namespace tandem::server {

// The input of one client, as requests that wait for their turn. Heads are checked on arrival, so
// that bodies of refused requests use no memory. Bounded: parsing stops while the queue or a body
// sink is full. Knows no sockets, and no clock except for `received`.
class RequestQueue {
 public:
  // A request that reaches no handler, with its answer.
  struct EarlyAnswer {
    Request head;  // up to the fault
    Response response;
    bool close = true;  // the rest of the input cannot be parsed as requests
  };
  using Entry = std::variant<Request, EarlyAnswer>;

  // `room_callback` creates the `has_room` callback of a sink, which any thread may call.
  // SinkHasRoom and Parse must then follow.
  RequestQueue(const ConnectionShared& shared,
               std::function<std::function<void()>()> room_callback);

  void Append(std::string_view bytes) { parser_.Append(bytes); }
  // Parses the buffered input until the queue is full. True if a request was completed.
  bool Parse();
  // Answers the current request with `refusal` and parses nothing after it.
  void Refuse(const Refusal& refusal);

  void SinkHasRoom() { parser_.SinkHasRoom(); }

  bool empty() const { return entries_.empty(); }
  bool is_full() const;
  // REQUIRES: not empty.
  Entry Pop();
  // Stops parsing and drops the waiting requests.
  void Abandon();
  void Stop() { parser_.Stop(); }  // stops parsing

  RequestParser::Phase phase() const { return parser_.phase(); }
  // Whether no request is incomplete or waiting.
  bool is_idle() const { return empty() && phase() == RequestParser::Phase::kIdle; }
  // Whether the client waits for `100 Continue` before it sends the current body.
  bool owes_continue() const { return owes_continue_; }
  void ContinueSent() { owes_continue_ = false; }

 private:
  void OnHeadReady(bool awaits_continue);
  Response RefuseForMemory() const;

  const ConnectionShared& shared_;
  const std::function<std::function<void()>()> room_callback_;
  RequestParser parser_;
  std::deque<Entry> entries_;
  size_t body_bytes_ = 0;  // of entries_
  bool owes_continue_ = false;
  std::optional<Response> early_refusal_;  // for the request whose body is being dropped
};

}  // namespace tandem::server
