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

// One request with its answer in progress: framing, counting and the report. Ends with one Finish
// or Abandon; the destructor abandons it otherwise.
class Exchange {
 public:
  // See ResponseChannel for `wake`.
  Exchange(std::shared_ptr<ConnectionShared> shared, const Request& request,
           std::function<void()> wake);

  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  const Request& head() const { return head_; }  // without the body
  const std::shared_ptr<ResponseChannel>& channel() const { return channel_; }
  bool has_begun() const { return status_ != 0; }
  bool is_stream() const { return is_stream_; }
  bool closes_connection() const { return !keep_alive_; }

  // null: OpenAI's. Known from the path, so that refusals of the head have it too.
  const ApiStyle* style() const { return style_; }
  void set_route(const Route* route) { route_ = route; }
  // Makes this answer the connection's last; its head says so if it has not been sent yet.
  void CloseConnection() { keep_alive_ = false; }

  // Starts the answer, once. An answer to HEAD has no body: the producer of a stream then gets a
  // disconnect, and Finish follows.
  void SendWhole(Response response, OutputQueue& out);
  // `length` is the number of body bytes, if known.
  void BeginStream(Response response, std::optional<int64_t> length, OutputQueue& out);
  void SendStreamBytes(std::string bytes, OutputQueue& out);
  // The time of the stream's last output.
  std::chrono::steady_clock::time_point last_stream_write() const { return last_stream_write_; }

  void Finish(OutputQueue& out);
  // Notifies the producer that the client has left, and sends nothing more. Never throws.
  void Abandon();

 private:
  bool is_head_request() const { return head_.method == "HEAD"; }
  void AddHeaders(Response& response) const;
  void LeaveRunning();
  void Report(int status);

  const std::shared_ptr<ConnectionShared> shared_;
  Request head_;
  std::shared_ptr<ResponseChannel> channel_;
  const Route* route_ = nullptr;
  const ApiStyle* const style_;  // null: OpenAI's
  bool keep_alive_;
  bool is_running_ = true;  // counted in n_running
  bool is_stream_ = false;
  bool is_chunked_ = false;
  int status_ = 0;  // 0: no answer has started
  std::string error_code_;
  std::chrono::steady_clock::time_point last_stream_write_;
};

}  // namespace tandem::server
