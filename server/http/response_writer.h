#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/log.h"
#include "server/http/request.h"
#include "server/http/response_channel.h"

namespace tandem::server {

// A begun event stream. Copies share it; any thread may write. Dropping the last copy without Close
// ends the stream with an error event, so that the client does not wait forever.
class EventStream {
 public:
  // Sends `data: <text>` and a blank line. REQUIRES: `data` is one line.
  void Send(std::string_view data) const;
  // Like Send, with an `event:` line first.
  void SendNamed(std::string_view event, std::string_view data) const;
  // Sends a JSON value as one line of a stream of StartLineStream.
  void SendLine(std::string_view json) const;
  void Close() const;

  // True if the client has left; further output is dropped.
  bool disconnected() const;
  void OnBackpressure(std::function<void(bool paused)> callback) const;

 private:
  friend class ResponseWriter;
  friend class BodyStream;
  struct Guard;
  explicit EventStream(std::shared_ptr<Guard> guard) : guard_(std::move(guard)) {}

  std::shared_ptr<Guard> guard_;
};

// A begun answer of known length. Copies share it; any thread may write. Dropping the last copy
// before the last byte resets the connection, so that no client takes a part for the whole.
class BodyStream {
 public:
  // The last byte ends the answer. REQUIRES: no more bytes than announced.
  void Send(std::string_view bytes) const;
  // Resets the connection, because the rest cannot be sent.
  void GiveUp() const;

  // True if the client has left; further output is dropped.
  bool disconnected() const;
  void OnBackpressure(std::function<void(bool paused)> callback) const;

 private:
  friend class ResponseWriter;
  explicit BodyStream(EventStream stream) : stream_(std::move(stream)) {}

  EventStream stream_;
};

// The handle that answers one request, exactly once. Copies share it; any thread may use it. If the
// last copy is destroyed without an answer, the client gets `make_abandoned()`, an internal error.
// So every request gets an answer.
class ResponseWriter {
 public:
  struct Abandoned {
    Response response;         // sent if no answer has begun
    std::string error_events;  // sent if a stream was not closed: whole SSE frames or lines
  };
  ResponseWriter(std::shared_ptr<ResponseChannel> channel,
                 std::function<Abandoned()> make_abandoned);

  // Adds a header to the answer; a repeated name keeps the last value. Call before answering.
  void AddHeader(std::string name, std::string value) const;
  // Adds a field to the request's report: a word or a number, never text from a client. A repeated
  // name keeps the last value. `name` must be a literal.
  void Note(std::string_view name, LogValue value) const;

  void Send(Response response) const;
  void Json(int status, std::string body) const;
  void Text(int status, std::string body) const;
  // Sends the head of a text/event-stream. Call it when the request can no longer be refused.
  EventStream StartEventStream() const;
  // The same with application/x-ndjson: lines of JSON. REQUIRES: OnSilence is set, because comment
  // lines would be no JSON.
  EventStream StartLineStream() const;
  // Sends the head of a body of `n_bytes`. REQUIRES: n_bytes > 0.
  BodyStream StartBody(Response head, int64_t n_bytes) const;

  // Runs `send_ping` on the answer thread when a stream was silent for the server's ping interval.
  // Unset: the stream gets a comment line. `send_ping` must not own the writer.
  void OnSilence(std::function<void()> send_ping) const;

  // Runs a task on the answer thread, in order; drops it once the client has left.
  void Post(std::function<void()> task) const;

  // Resets the connection, because the answer cannot be completed. Never throws.
  void GiveUp() const;

  bool disconnected() const;
  // True if the client has left or has its whole answer, such as the 503 of a stopping server. A
  // slow handler polls this and ends.
  bool is_over() const;
  // Called once if the client leaves before the answer is complete; see
  // ResponseChannel::OnDisconnect.
  void OnDisconnect(std::function<void()> callback) const;

 private:
  EventStream StartStream(std::string content_type) const;

  std::shared_ptr<EventStream::Guard> guard_;
};

}  // namespace tandem::server
