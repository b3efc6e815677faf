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

// A begun event stream. Copies share it; any thread may write. Dropping the last copy without
// Close ends the stream with the server's error event: a client never waits for nothing.
class EventStream {
 public:
  // `data: <text>` and a blank line. REQUIRES: one line.
  void Send(std::string_view data) const;
  // The same with an `event:` line before it.
  void SendNamed(std::string_view event, std::string_view data) const;
  void Comment(std::string_view text) const;
  void Close() const;

  // True when the client is gone: what is sent goes nowhere.
  bool disconnected() const;
  void OnBackpressure(std::function<void(bool paused)> callback) const;

 private:
  friend class ResponseWriter;
  friend class BodyStream;
  struct Guard;
  explicit EventStream(std::shared_ptr<Guard> guard) : guard_(std::move(guard)) {}

  std::shared_ptr<Guard> guard_;
};

// A begun answer of a known length. Copies share it; any thread may write. Dropping the last copy
// before all bytes were sent resets the connection: no client takes a part for the whole.
class BodyStream {
 public:
  // Ends the answer when these were its last bytes. REQUIRES: no more than were announced.
  void Send(std::string_view bytes) const;
  // The rest will not come.
  void GiveUp() const;

  // True when the client is gone: what is sent goes nowhere.
  bool disconnected() const;
  void OnBackpressure(std::function<void(bool paused)> callback) const;

 private:
  friend class ResponseWriter;
  explicit BodyStream(EventStream stream) : stream_(std::move(stream)) {}

  EventStream stream_;
};

// The handle through which one request is answered, exactly once. Copies share it; any thread may
// use it. When the last copy goes without an answer the client gets `abandoned` (an internal
// error), so no request is ever left without one.
class ResponseWriter {
 public:
  struct Abandoned {
    Response response;         // sent when no answer has begun
    std::string error_events;  // sent when a stream was not closed: whole SSE frames
  };
  ResponseWriter(std::shared_ptr<ResponseChannel> channel,
                 std::function<Abandoned()> make_abandoned);

  // Of whatever answer comes; the last value of a name stays. Call before answering.
  void AddHeader(std::string name, std::string value) const;
  // For the report about the request: a word or a number, never what a client wrote; the last value
  // of a name stays. Names are literals.
  void Note(std::string_view name, LogValue value) const;

  void Send(Response response) const;
  void Json(int status, std::string body) const;
  void Text(int status, std::string body) const;
  // Sends the head of a text/event-stream; call it only once nothing can be refused any more.
  EventStream StartEventStream() const;
  // Sends `head` as that of a body of `n_bytes`. REQUIRES: n_bytes > 0.
  BodyStream StartBody(Response head, int64_t n_bytes) const;

  // Runs a task on the connection's strand, in order; dropped once the client is gone.
  void Post(std::function<void()> task) const;

  // The answer cannot be completed: the connection is reset. Never throws.
  void GiveUp() const;

  bool disconnected() const;
  // True when the client is gone or has its whole answer, such as the 503 of a server that stops.
  // A handler that works long asks now and then, and ends.
  bool is_over() const;
  // Called once, on an io thread, when the client leaves before the answer is complete.
  void OnDisconnect(std::function<void()> callback) const;

 private:
  std::shared_ptr<EventStream::Guard> guard_;
};

}  // namespace tandem::server
