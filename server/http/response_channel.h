#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log.h"
#include "server/http/request.h"

namespace tandem::server {

// Passes the answer to one request from its producer's thread to the connection that sends it.
// Thread-safe. Knows no sockets, so tests read it directly.
//
// ResponseWriter and EventStream are the producer's side. Take, Sent and Disconnect are the
// connection's side, called on the io thread. `wake` is called when there is new output, on the
// producer's thread and outside the lock; it must only post, and must not throw.
class ResponseChannel : public std::enable_shared_from_this<ResponseChannel> {
 public:
  // The output since the last Take.
  struct Output {
    std::optional<Response> head;   // once; the head of a stream has no body
    bool is_stream = false;         // valid with head
    std::optional<int64_t> length;  // with the head of a stream: its total bytes, if known
    std::string bytes;              // of the stream's body
    bool finished = false;          // no output follows
  };

  // Arranges a call of RunTasks soon, on a thread that may block.
  using TaskRunner = std::function<void(const std::shared_ptr<ResponseChannel>&)>;

  ResponseChannel(size_t max_unsent_bytes, std::function<void()> wake, TaskRunner run_tasks);

  // ---- producer ----
  // Sends a whole answer. False if an answer has begun or the client has left.
  bool Respond(Response response);
  bool BeginStream(Response head);
  // Begins a stream of `n_bytes`; Append finishes it with the last byte. REQUIRES: n_bytes > 0.
  bool BeginBody(Response head, int64_t n_bytes);
  // Adds text to the stream. Above the bound the producer is asked to pause, and its text until
  // then is kept. A producer without OnBackpressure is disconnected at four times the bound.
  void Append(std::string_view text);
  void Finish();
  // Resets the connection, because the answer cannot be completed. Never throws.
  void GiveUp();
  bool has_begun() const;
  bool is_streaming() const;  // a stream that is not finished
  bool has_length() const;    // a stream of known length
  bool disconnected() const;
  // The answer is complete or the client has left; further work is useless.
  bool is_over() const;
  // Called once if the client leaves before the answer is complete; called at once if it has
  // already left. Usually runs on the io thread. Must not block, and must not own the writer.
  void OnDisconnect(std::function<void()> callback);
  // Called with true when more than the bound is unsent, and with false at half of the bound.
  void OnBackpressure(std::function<void(bool paused)> callback);

  // Called on the answer thread when the stream has been silent for the ping interval. Must not own
  // the writer.
  void OnSilence(std::function<void()> callback);

  // Runs a task on the answer thread, so that shaping an answer costs the engine and the io thread
  // nothing. Tasks run in order, and are dropped once the client has left. An exception of a task
  // becomes the answer.
  void Post(std::function<void()> task);
  // Adds a field to the RequestSummary; a repeated name keeps the last value.
  void Note(std::string_view name, LogValue value);

  // ---- answer thread ----
  // Runs the posted tasks; their output is taken in one piece. The tasks stay in `ran`: a task that
  // throws may own the last writer, which must outlive the answer to the exception.
  void RunTasks(std::vector<std::function<void()>>& ran);

  // ---- connection ----
  Output Take();
  void Sent(size_t body_bytes);  // bytes of Take that were sent
  // Returns false if the producer has no pings of its own; else its next one arrives soon.
  bool RequestPing();
  void Disconnect();
  // Ends the answer because the server is stopping, and notifies the producer through OnDisconnect.
  // It sends `response`, or `error_events` at the end of a begun stream. A stream of known length
  // is given up.
  void Abort(Response response, std::string_view error_events);
  LogFields TakeNotes();

 private:
  enum class Phase { kWaiting, kStreaming, kFinished };

  bool Begin(Response head, std::optional<int64_t> length);
  void EndTasks();
  // Signals new output. While tasks run, the signal waits for their end.
  void Wake();

  // Reports changes of paused_ in order, from any thread. A "resumed" that overtook its "paused"
  // would leave the producer paused forever.
  void TellProducer();

  const size_t max_unsent_bytes_;
  const std::function<void()> wake_;
  const TaskRunner run_tasks_;
  mutable std::mutex mutex_;  // guards everything below
  Phase phase_ = Phase::kWaiting;
  bool disconnected_ = false;
  bool paused_ = false;
  bool told_paused_ = false;  // the last value reported to the producer
  bool is_telling_ = false;   // a thread is reporting, and also reports later changes
  std::optional<Response> head_;
  bool head_is_stream_ = false;
  std::optional<int64_t> length_;
  int64_t bytes_to_come_ = 0;  // remaining bytes of length_
  std::string pending_;
  size_t unsent_bytes_ = 0;  // pending_, plus bytes that the connection took and has not sent
  std::vector<std::function<void()>> tasks_;
  LogFields notes_;
  bool runs_tasks_ = false;
  bool owes_wake_ = false;  // a signal is due; only while runs_tasks_
  std::function<void()> on_disconnect_;
  std::function<void(bool)> on_backpressure_;
  std::function<void()> on_silence_;
};

}  // namespace tandem::server
