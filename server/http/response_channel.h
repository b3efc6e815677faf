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

// Where the answer to one request passes from whichever thread produces it to the connection that
// sends it. Thread-safe; knows no sockets, so tests read it directly.
//
// The producer's side is ResponseWriter and EventStream. The connection's side is Take, Sent and
// Disconnect, called on its strand. `wake` is called (from the producer's thread, outside the lock)
// when there is something new to take; it must only post, and must not throw.
class ResponseChannel : public std::enable_shared_from_this<ResponseChannel> {
 public:
  // What has become ready since the last Take.
  struct Output {
    std::optional<Response> head;   // once; of a stream its body is empty
    bool is_stream = false;         // valid with head
    std::optional<int64_t> length;  // with head, of a stream: how many bytes it will have
    std::string bytes;              // of the stream's body
    bool finished = false;          // nothing will follow
  };

  // Asks somebody to call RunTasks, soon and on a thread where that may take its time.
  using TaskRunner = std::function<void(const std::shared_ptr<ResponseChannel>&)>;

  ResponseChannel(size_t max_unsent_bytes, std::function<void()> wake, TaskRunner run_tasks);

  // ---- producer ----
  // The whole answer. False when an answer has begun already or the client is gone.
  bool Respond(Response response);
  bool BeginStream(Response head);
  // A stream of so many bytes; it is finished when Append has had them all. REQUIRES: n_bytes > 0.
  bool BeginBody(Response head, int64_t n_bytes);
  // Text of a begun stream. Above the bound the producer is asked to pause; what it makes before it
  // obeys is kept. One that cannot be asked is given up at four times the bound.
  void Append(std::string_view text);
  void Finish();
  // Resets the connection: the rest of the answer will not come. Never throws.
  void GiveUp();
  bool has_begun() const;
  bool is_streaming() const;  // begun as a stream and not finished
  bool has_length() const;    // begun as a stream of so many bytes
  bool disconnected() const;
  // The answer is complete, or the client is gone: further work for it is useless.
  bool is_over() const;
  // Called once when the client is gone before the answer is finished; at once if it already is.
  // Must not block (it runs on an io thread) and must not own the writer.
  void OnDisconnect(std::function<void()> callback);
  // Called with true when more than the bound waits unsent, with false once half of it is gone.
  void OnBackpressure(std::function<void(bool paused)> callback);

  // Runs a task on the answer thread (STYLE §6): what shapes an answer costs neither the engine
  // nor an io thread anything. Tasks run in order; they are dropped, not run, once the client is
  // gone. What a task throws becomes the answer.
  void Post(std::function<void()> task);
  // For the report about the request (RequestSummary); the last value of a name stays.
  void Note(std::string_view name, LogValue value);

  // ---- answer thread ----
  // Runs what Post has brought. What the tasks produce is taken in one piece. They are left in
  // `ran`: a task that throws may hold the last writer, which must not go before the exception is
  // answered.
  void RunTasks(std::vector<std::function<void()>>& ran);

  // ---- connection ----
  Output Take();
  void Sent(size_t body_bytes);  // bytes of Take that have left
  void Disconnect();
  // The server is stopping: answers for the producer (`response`, or `error_events` at the end of a
  // begun stream; one of a known length is given up) and tells it, through OnDisconnect, that
  // nobody listens any more.
  void Abort(Response response, std::string_view error_events);
  LogFields TakeNotes();

 private:
  enum class Phase { kWaiting, kStreaming, kFinished };

  bool Begin(Response head, std::optional<int64_t> length);
  void EndTasks();
  // Says that there is something to take; while tasks run, their end says so for all of them.
  void Wake();

  // Tells the producer whether it is paused, in order, whichever threads find out: a "resumed" that
  // overtakes its "paused" would leave the producer waiting for ever.
  void TellProducer();

  const size_t max_unsent_bytes_;
  const std::function<void()> wake_;
  const TaskRunner run_tasks_;
  mutable std::mutex mutex_;  // guards everything below
  Phase phase_ = Phase::kWaiting;
  bool disconnected_ = false;
  bool paused_ = false;
  bool told_paused_ = false;  // what the producer has heard last
  bool is_telling_ = false;   // somebody is, and will also tell what comes meanwhile
  std::optional<Response> head_;
  bool head_is_stream_ = false;
  std::optional<int64_t> length_;
  int64_t bytes_to_come_ = 0;  // of length_
  std::string pending_;
  size_t unsent_bytes_ = 0;  // pending_ and what the connection has taken but not sent
  std::vector<std::function<void()>> tasks_;
  LogFields notes_;
  bool runs_tasks_ = false;
  bool owes_wake_ = false;  // while runs_tasks_
  std::function<void()> on_disconnect_;
  std::function<void(bool)> on_backpressure_;
};

}  // namespace tandem::server
