#pragma once

// Private to this room: includes Boost.

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <variant>

#include "server/http/http_server.h"
#include "server/http/net.h"
#include "server/http/request_parser.h"
#include "server/http/request_pool.h"
#include "server/http/response_channel.h"
#include "server/http/router.h"
#include "server/http/tls.h"

namespace tandem::server {

class Connection;

// What all connections of one server share. Outlives them.
struct ConnectionShared {
  ConnectionShared(HttpOptions the_options, std::vector<Route> routes, HttpPolicy the_policy)
      : options(std::move(the_options)), router(std::move(routes)), policy(std::move(the_policy)) {
    if (options.tls) tls = std::make_shared<const TlsContext>(*options.tls);
  }

  const HttpOptions options;
  const Router router;
  const HttpPolicy policy;
  std::atomic<bool> draining{false};

  net::io_context io;
  // Where answers are shaped: one thread, so that a large body never keeps an io thread from
  // reading, writing and answering /health.
  net::io_context answer_io;
  std::unique_ptr<RequestPool> pool;

  std::mutex mutex;  // guards the rest
  std::condition_variable changed;
  std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
  size_t n_running = 0;
  std::shared_ptr<const TlsContext> tls;  // of connections to come; null: plain HTTP
};

// One client: read -> dispatch -> respond | stream -> read. Everything below runs on the strand of
// its socket. A read is always pending while a request runs, so a client that leaves is noticed at
// once; what arrives meanwhile is kept as further requests.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(StrandSocket socket, std::string remote, std::shared_ptr<ConnectionShared> shared);
  ~Connection();

  void Start();
  // Answers 503 and closes: there are too many connections.
  void StartOverloaded();

  // These post to the strand.
  void CloseIfIdle();
  void AbortRequests();
  void CloseNow();

 private:
  // A request that no handler sees, and the answer to it.
  struct EarlyAnswer {
    Request head;  // as far as it could be read
    Response response;
    bool close = true;  // what follows on the wire cannot be read as requests
  };
  using Incoming = std::variant<Request, EarlyAnswer>;

  // The request being answered.
  struct Active {
    Request head;  // without body
    const Route* route = nullptr;
    std::shared_ptr<ResponseChannel> channel;
    bool head_sent = false;
    bool is_stream = false;
    bool is_chunked = false;
    bool keep_alive = true;
    int status = 0;
    std::chrono::steady_clock::time_point last_stream_write;
  };
  struct OutputPart {
    std::string bytes;
    size_t sent = 0;
    std::shared_ptr<ResponseChannel> channel;  // told what has left; null: nobody
  };

  // reading
  void BeginReading();
  bool IsInputFull() const;
  void ReadMore();
  void WatchUnreadInput();
  void OnRead(const boost::system::error_code& error, size_t n);
  bool Decrypt(std::string_view bytes);
  void OnPeerGone(bool is_eof);
  void ParseInput();
  void OnHeadReady(bool awaits_continue);
  void Refuse(const Refusal& refusal);
  void ArmReadTimer();
  void OnReadTimeout();

  // dispatching
  void StartNext();
  void SendContinue();
  std::optional<Response> CheckHead(const Request& request, Router::Match& match) const;
  void Begin(Request request);
  void RunHandler(const Route& route, Request request);

  // answering
  Active& Activate(const Request& request);
  void OnChannelReady();
  void AnswerDirectly(Response response, bool close);
  void SendResponse(Response response);
  void SendStreamBytes(std::string bytes);
  void FinishActive();
  void AbandonActive();
  void ReportEnd(const Active& active, int status, ResponseChannel& channel) const;
  void DropQueue();
  void ArmPingTimer();
  void Enqueue(std::string bytes, std::shared_ptr<ResponseChannel> channel);
  bool Encrypt();
  void WriteMore();
  void ArmWriteTimer();
  void OnWritten(const boost::system::error_code& error, size_t n);

  // ending
  void Linger();
  void ShutdownSend();
  void Close();
  void Reset();

  template <class Callback>
  void Arm(StrandTimer& timer, std::chrono::milliseconds after, Callback callback);

  StrandSocket socket_;
  const std::string remote_;
  const std::shared_ptr<ConnectionShared> shared_;
  StrandTimer read_timer_;
  StrandTimer write_timer_;
  StrandTimer ping_timer_;
  StrandTimer leave_timer_;

  std::optional<TlsSession> tls_;  // absent: what is read and written is HTTP itself
  std::string plain_;              // what the last read has meant
  std::string cipher_;             // on its way to the client
  size_t cipher_sent_ = 0;
  size_t encrypted_bytes_ = 0;  // of output_, that are in cipher_

  RequestParser parser_;
  RequestParser::Phase armed_phase_ = RequestParser::Phase::kRefused;
  std::string read_buffer_;
  std::deque<Incoming> queue_;
  size_t queued_body_bytes_ = 0;
  bool is_reading_ = false;
  bool continue_owed_ = false;
  std::optional<Response> early_refusal_;  // of the request whose body is being dropped

  std::optional<Active> active_;
  std::deque<OutputPart> output_;
  size_t output_bytes_ = 0;
  bool is_writing_ = false;
  bool close_after_write_ = false;
  bool is_lingering_ = false;
  size_t lingered_bytes_ = 0;
  bool is_closed_ = false;
};

}  // namespace tandem::server
