#pragma once

// Private to this room: includes Boost.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "server/http/connection_shared.h"
#include "server/http/output_queue.h"
#include "server/http/request.h"
#include "server/http/response_channel.h"

namespace tandem::server {

// One request being answered: how its answer is framed, and what is counted and reported of it.
// Ends with one Finish or Abandon; its destructor abandons it otherwise.
class Exchange {
 public:
  // `wake` as OpenChannel says.
  Exchange(std::shared_ptr<ConnectionShared> shared, const Request& request,
           std::function<void()> wake);

  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& head() const { return head_; }  // what answers and reports need of it; no body
  const std::shared_ptr<ResponseChannel>& channel() const { return channel_; }
  bool has_begun() const { return status_ != 0; }
  bool is_stream() const { return is_stream_; }
  bool closes_connection() const { return !keep_alive_; }

  void set_route(const Route* route) { route_ = route; }
  // The answer will be the connection's last; its head says so if it is still to come.
  void CloseConnection() { keep_alive_ = false; }

  // Begins the answer, once. One to HEAD has no body; the producer of a stream then learns that
  // nobody listens, and Finish is next.
  void SendWhole(Response response, OutputQueue& out);
  // `length`: how many bytes will follow, where that is known.
  void BeginStream(Response response, std::optional<int64_t> length, OutputQueue& out);
  void SendStreamBytes(std::string bytes, OutputQueue& out);
  // Since when a stream has been silent.
  std::chrono::steady_clock::time_point last_stream_write() const { return last_stream_write_; }

  void Finish(OutputQueue& out);
  // The client is gone: tells the producer and sends nothing more. Never throws.
  void Abandon();

 private:
  bool is_head_request() const { return head_.method == "HEAD"; }
  void LeaveRunning();
  void Report(int status);

  const std::shared_ptr<ConnectionShared> shared_;
  Request head_;
  std::shared_ptr<ResponseChannel> channel_;
  const Route* route_ = nullptr;
  bool keep_alive_;
  bool is_running_ = true;  // counted in n_running
  bool is_stream_ = false;
  bool is_chunked_ = false;
  int status_ = 0;  // 0: the answer has not begun
  std::string error_code_;
  std::chrono::steady_clock::time_point last_stream_write_;
};

}  // namespace tandem::server
