#pragma once

// Private to this room: includes Boost.

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/connection_shared.h"
#include "server/http/exchange.h"
#include "server/http/net.h"
#include "server/http/output_queue.h"
#include "server/http/request_queue.h"
#include "server/http/tls.h"

namespace tandem::server {

// One client: read -> dispatch -> respond | stream -> read. Everything except the Post-ing
// functions runs on the io thread. A read is always pending while a request runs, so a client that
// leaves is noticed at once. Further input waits as requests.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(StrandSocket socket, std::string remote, std::shared_ptr<ConnectionShared> shared);
  ~Connection();

  void Start();
  // Answers 503 and closes, because there are too many connections.
  void StartOverloaded();

  // Any thread; these post to the io thread.
  void CloseIfIdle();
  void AbortRequests();
  void CloseNow();

 private:
  // reading
  void BeginReading();
  void ReadMore();
  void WatchUnreadInput();
  void OnRead(const boost::system::error_code& error, size_t n);
  bool Decrypt(std::string_view bytes);
  void OnPeerGone(bool is_eof);
  void ParseInput();
  void ArmReadTimer();
  void OnReadTimeout();
  std::function<void()> SinkRoomCallback();

  // answering
  void StartNext();
  void SendContinue();
  Exchange& Activate(const Request& request);
  void Begin(Request request);
  void AnswerDirectly(Response response, bool close);
  void OnChannelReady();
  bool BeginAnswer(ResponseChannel::Output& out);
  void FinishActive();
  void AbandonActive();
  void ArmPingTimer();
  void OnOutputSent();

  // ending
  void Linger();
  void ShutdownSend();
  void Close();
  void Reset();

  template <class Callback>
  void Enter(Callback callback);
  template <class Callback>
  void Post(Callback callback);
  template <class Callback>
  void Arm(StrandTimer& timer, std::chrono::milliseconds after, Callback callback);

  StrandSocket socket_;
  const std::string remote_;
  const std::shared_ptr<ConnectionShared> shared_;
  StrandTimer read_timer_;
  StrandTimer ping_timer_;
  StrandTimer leave_timer_;

  std::optional<TlsSession> tls_;  // absent: the socket carries plain HTTP
  std::string plain_;              // the last read, decrypted
  OutputQueue output_;

  RequestQueue queue_;
  RequestParser::Phase armed_phase_ = RequestParser::Phase::kRefused;
  std::string read_buffer_;
  bool is_reading_ = false;

  std::unique_ptr<Exchange> active_;
  bool close_after_write_ = false;
  bool is_lingering_ = false;
  size_t lingered_bytes_ = 0;
  bool is_closed_ = false;

  std::mutex descriptor_mutex_;  // guards descriptor_: any thread may shut the socket down
  int descriptor_;               // the socket's; -1: closed
};

}  // namespace tandem::server
