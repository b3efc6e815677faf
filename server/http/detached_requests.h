#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "server/http/request.h"
#include "server/http/request_pool.h"
#include "server/http/response_channel.h"
#include "server/http/response_writer.h"

namespace tandem::server {

// Plays the connection for requests that have no client, such as background responses. They never
// wait for a slow reader, and only their owner disconnects them. Thread-safe.
class DetachedRequests {
 public:
  // The answer to an exception of a task, and to a request that its handler has dropped.
  using Failure = std::function<Response(const Error& error, const std::string& request_id)>;
  explicit DetachedRequests(Failure failure);

  // A request's writer, and the channel to end it.
  struct Detached {
    ResponseWriter writer;
    // Disconnect() cancels the work as a client that leaves does; then `on_answer` gets nothing.
    std::shared_ptr<ResponseChannel> channel;
  };
  // `on_answer` gets the complete answer once, on this object's thread. The events of a stream
  // are its body. It must not block, nor own the writer.
  Detached Open(std::string request_id, std::function<void(Response)> on_answer);

  // Runs a task on this object's thread, after the tasks of earlier calls. False after Stop.
  bool Post(std::function<void()> task);
  // Waits for the running task and drops the others: their answers never come.
  void Stop() { thread_->Stop(); }

 private:
  const Failure failure_;
  // One thread, because the tasks of a channel must run in order. Shared with the channels, which
  // may outlive this object.
  const std::shared_ptr<RequestPool> thread_;
};

}  // namespace tandem::server
