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

// What one client has sent, as requests that wait for their turn. Heads are checked as they come,
// so that the bodies of requests that will be refused take no memory. Bounded: a full queue parses
// nothing more, nor does one whose body sink has enough. Knows no sockets and no clock but that of
// `received`.
class RequestQueue {
 public:
  // A request that no handler sees, and the answer to it.
  struct EarlyAnswer {
    Request head;  // as far as it could be read
    Response response;
    bool close = true;  // what follows on the wire cannot be read as requests
  };
  using Entry = std::variant<Request, EarlyAnswer>;

  // `room_callback` makes what sinks call, on any thread, when they had enough and want more:
  // SinkHasRoom and Parse are then due.
  RequestQueue(const ConnectionShared& shared,
               std::function<std::function<void()>()> room_callback);

  void Append(std::string_view bytes) { parser_.Append(bytes); }
  // Parses what is there until the queue is full. True when a request was completed.
  bool Parse();
  // Nothing behind the request that is being read can be read as a request: this answers it.
  void Refuse(const Refusal& refusal);

  void SinkHasRoom() { parser_.SinkHasRoom(); }

  bool empty() const { return entries_.empty(); }
  bool is_full() const;
  // REQUIRES: not empty.
  Entry Pop();
  // Nothing more is read, and what waits is dropped.
  void Abandon();
  void Stop() { parser_.Stop(); }  // nothing more is read

  RequestParser::Phase phase() const { return parser_.phase(); }
  // Nothing is being read or waits.
  bool is_idle() const { return empty() && phase() == RequestParser::Phase::kIdle; }
  // The client waits for leave to send the body of the request that is being read.
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
  std::optional<Response> early_refusal_;  // of the request whose body is being dropped
};

}  // namespace tandem::server
