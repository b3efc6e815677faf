#include "server/http/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/out_of_memory.h"
#include "server/http/dispatch.h"
#include "server/http/sse.h"
#include "server/http/strand_timer.h"

namespace tandem::server {
namespace {

constexpr size_t kReadBytes = 16 << 10;
// A pipelined request starts when at most this much output of earlier answers is unsent.
constexpr size_t kOutputBeforeNextRequest = 64 << 10;
// Some clients (Node's fetch) write their whole body before they read an answer. Closing earlier
// resets the connection and loses the 413. linger_timeout bounds this too.
constexpr size_t kMaxLingerBytes = size_t{256} << 20;

}  // namespace

// Entry point of every callback. An exception, in practice out of memory, resets only this
// connection.
template <class Callback>
void Connection::Enter(Callback callback) {
  if (const auto error = Attempt([&] { callback(*this); })) {
    spdlog::error("http_connection_failed what=\"{}\"", error->what());
    Reset();
  }
}

// Runs `callback` on the io thread; any thread may call this. Never throws: if posting fails, the
// socket is shut down, and the pending read reports that.
template <class Callback>
void Connection::Post(Callback callback) {
  const bool is_posted = HasMemoryFor([&] {
    net::post(socket_.get_executor(),
              [self = shared_from_this(), callback] { self->Enter(callback); });
  });
  if (is_posted) return;
  const std::lock_guard lock(descriptor_mutex_);
  if (descriptor_ >= 0) ::shutdown(descriptor_, SHUT_RDWR);
}

Connection::Connection(StrandSocket socket, std::string remote,
                       std::shared_ptr<ConnectionShared> shared)
    : socket_(std::move(socket)),
      remote_(std::move(remote)),
      shared_(std::move(shared)),
      read_timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()),
      leave_timer_(socket_.get_executor()),
      output_(socket_, tls_, shared_->options.write_timeout,
              {[this] { return shared_from_this(); },
               [this] { Enter([](Connection& self) { self.OnOutputSent(); }); },
               [this] { Enter([](Connection& self) { self.OnPeerGone(false); }); },
               [this] {
                 spdlog::debug("http_slow_reader remote={}", remote_);
                 Reset();
               }}),
      queue_(*shared_, [this] { return SinkRoomCallback(); }),
      descriptor_(socket_.native_handle()) {
  std::shared_ptr<const TlsContext> tls;
  {
    const std::lock_guard lock(shared_->mutex);
    tls = shared_->tls;
  }
  if (tls) tls_.emplace(*tls);
}

Connection::~Connection() {
  const std::lock_guard lock(shared_->mutex);
  shared_->connections.erase(this);
  shared_->changed.notify_all();
}

void Connection::Start() {
  Enter([](Connection& self) { self.BeginReading(); });
}

void Connection::StartOverloaded() {
  Enter([](Connection& self) {
    self.queue_.Refuse({503, "server_overloaded", "too many open connections"});
    if (self.tls_) self.BeginReading();  // the answer waits for the handshake
    self.StartNext();
  });
}

// ---- timers

template <class Callback>
void Connection::Arm(StrandTimer& timer, std::chrono::milliseconds after, Callback callback) {
  ArmTimer(timer, after, [self = shared_from_this(), callback] {
    if (!self->is_closed_) self->Enter(callback);
  });
}

void Connection::ArmReadTimer() {
  const RequestParser::Phase phase = queue_.phase();
  if (is_lingering_ || is_closed_) return;
  if (tls_ && tls_->state() == TlsSession::State::kHandshake) return;  // handshake_timeout applies
  if (queue_.is_full()) {
    // The delay is ours: a full queue stops the reading.
    read_timer_.cancel();
    armed_phase_ = RequestParser::Phase::kRefused;
    return;
  }
  const auto on_timeout = [](Connection& self) { self.OnReadTimeout(); };
  switch (phase) {
    case RequestParser::Phase::kHead:
      // Armed once per head, so that a client sending single bytes gains no time.
      if (armed_phase_ != phase) Arm(read_timer_, shared_->options.header_timeout, on_timeout);
      break;
    case RequestParser::Phase::kBody:
      if (queue_.owes_continue()) {
        read_timer_.cancel();
      } else {
        Arm(read_timer_, shared_->options.body_idle_timeout, on_timeout);
      }
      break;
    case RequestParser::Phase::kIdle:
      if (active_ || !queue_.empty() || output_.is_writing()) {
        read_timer_.cancel();
        armed_phase_ = RequestParser::Phase::kRefused;  // means that no timer is armed
        return;
      }
      Arm(read_timer_, shared_->options.keep_alive_timeout, on_timeout);
      break;
    case RequestParser::Phase::kRefused:
      read_timer_.cancel();
      break;
  }
  armed_phase_ = phase;
}

void Connection::OnReadTimeout() {
  switch (queue_.phase()) {
    case RequestParser::Phase::kHead:
      queue_.Refuse(
          {408, "request_timeout", "the request head did not arrive in time (--header-timeout)"});
      break;
    case RequestParser::Phase::kBody:
      queue_.Refuse({408, "request_timeout", "the request body stopped arriving (--body-timeout)"});
      break;
    case RequestParser::Phase::kIdle:
      if (!active_ && queue_.empty() && !output_.is_writing()) Close();
      return;
    case RequestParser::Phase::kRefused:
      return;
  }
  StartNext();
}

// ---- reading

void Connection::BeginReading() {
  if (tls_) {
    Arm(read_timer_, shared_->options.handshake_timeout, [](Connection& self) { self.Close(); });
  } else {
    ArmReadTimer();
  }
  ReadMore();
}

void Connection::ReadMore() {
  if (is_reading_ || is_closed_) return;
  if (queue_.is_full() && !is_lingering_) return WatchUnreadInput();
  is_reading_ = true;
  read_buffer_.resize(kReadBytes);
  socket_.async_read_some(
      net::buffer(read_buffer_.data(), read_buffer_.size()),
      [self = shared_from_this()](const boost::system::error_code& error, size_t n) {
        self->Enter([&](Connection& entered) { entered.OnRead(error, n); });
      });
}

// Called by the sink of a body, which may outlive the connection.
std::function<void()> Connection::SinkRoomCallback() {
  return [weak = weak_from_this()] {
    const std::shared_ptr<Connection> connection = weak.lock();
    if (!connection) return;
    connection->Post([](Connection& self) {
      if (self.is_closed_) return;
      self.queue_.SinkHasRoom();
      self.ParseInput();
      self.ReadMore();
    });
  };
}

// While input is not read, its end stays unseen behind it, so this polls the kernel for the end.
void Connection::WatchUnreadInput() {
  Arm(leave_timer_, shared_->options.leave_poll_interval, [](Connection& self) {
    if (self.is_reading_) return;
    pollfd asked{self.socket_.native_handle(), POLLRDHUP, 0};
    if (poll(&asked, 1, 0) > 0) return self.OnPeerGone((asked.revents & POLLERR) == 0);
    self.ReadMore();
  });
}

void Connection::OnRead(const boost::system::error_code& error, size_t n) {
  is_reading_ = false;
  if (is_closed_) return;
  if (error) return OnPeerGone(error == net::error::eof);

  if (is_lingering_) {
    lingered_bytes_ += n;
    return lingered_bytes_ > kMaxLingerBytes ? Close() : ReadMore();
  }
  std::string_view bytes = std::string_view(read_buffer_).substr(0, n);
  if (tls_) {
    if (!Decrypt(bytes)) return;
    bytes = plain_;
  }
  if (!bytes.empty() && queue_.phase() != RequestParser::Phase::kRefused) {
    queue_.Append(bytes);
    ParseInput();
  }
  if (is_closed_) return;
  if (tls_ && tls_->state() == TlsSession::State::kEnded) return OnPeerGone(true);
  ReadMore();
}

// Returns false if the TLS session has ended; the connection then closes or continues without TLS.
bool Connection::Decrypt(std::string_view bytes) {
  const bool was_in_handshake = tls_->state() == TlsSession::State::kHandshake;
  plain_.clear();
  const TlsSession::State state = tls_->Receive(bytes, plain_);
  if (state == TlsSession::State::kFailed) {
    Close();  // sends the alert
    return false;
  }
  if (state == TlsSession::State::kPlainHttp) {
    tls_.reset();
    read_timer_.cancel();
    queue_.Refuse({400, "invalid_request", "this port speaks TLS: use https://"});
    StartNext();
    ReadMore();
    return false;
  }
  if (was_in_handshake && state != TlsSession::State::kHandshake) {
    read_timer_.cancel();
    ArmReadTimer();
  }
  output_.WriteMore();  // the next handshake message, or output that waited for the handshake
  return !is_closed_;
}

// End of file counts as leaving, because an aborting client sends nothing else.
void Connection::OnPeerGone(bool is_eof) {
  const bool was_waiting = active_ != nullptr || !queue_.empty();
  AbandonActive();
  queue_.Abandon();
  if (is_eof && !was_waiting && output_.is_writing() && !is_lingering_) {
    // The answer is complete, and only its bytes are still in transit.
    close_after_write_ = true;
    return;
  }
  Close();
}

void Connection::ParseInput() {
  // The next head gets a full header_timeout.
  if (queue_.Parse()) armed_phase_ = RequestParser::Phase::kRefused;
  StartNext();
  ArmReadTimer();
}

// ---- answering

void Connection::StartNext() {
  if (active_ || is_closed_ || close_after_write_ || output_.bytes() > kOutputBeforeNextRequest) {
    return;
  }
  if (queue_.empty()) {
    if (queue_.owes_continue()) SendContinue();
    if (shared_->draining && queue_.is_idle() && output_.empty()) {
      return Linger();
    }
    ArmReadTimer();
    return;
  }

  const bool was_full = queue_.is_full();
  RequestQueue::Entry next = queue_.Pop();
  // Reading stopped while the queue was full: parse the buffered bytes first, then read the socket.
  if (was_full) {
    Post([](Connection& self) {
      if (self.is_closed_) return;
      self.ParseInput();
      self.ReadMore();
    });
  }
  if (Request* request = std::get_if<Request>(&next)) {
    Begin(std::move(*request));
  } else {
    auto& early = std::get<RequestQueue::EarlyAnswer>(next);
    early.head.remote = remote_;
    Activate(early.head);
    AnswerDirectly(std::move(early.response), early.close);
  }
}

void Connection::SendContinue() {
  queue_.ContinueSent();
  output_.Push("HTTP/1.1 100 Continue\r\n\r\n");
}

Exchange& Connection::Activate(const Request& request) {
  // The connection may be destroyed before a producer wakes it; the wake-up then has no effect.
  auto wake = [weak = weak_from_this()] {
    if (const std::shared_ptr<Connection> connection = weak.lock()) {
      connection->Post([](Connection& self) { self.OnChannelReady(); });
    }
  };
  active_ = std::make_unique<Exchange>(shared_, request, std::move(wake));
  return *active_;
}

void Connection::Begin(Request request) {
  request.remote = remote_;
  Exchange& active = Activate(request);
  request.id = active.head().id;
  Router::Match match;
  std::optional<Response> answer = CheckHead(*shared_, request, match);
  active.set_route(match.route);
  if (answer) return AnswerDirectly(std::move(*answer), false);
  request.path_params = std::move(match.params);
  RunHandler(shared_, *match.route, std::move(request), active.channel());
}

void Connection::AnswerDirectly(Response response, bool close) {
  if (close) active_->CloseConnection();
  ResponseChannel::Output whole;
  whole.head = std::move(response);
  BeginAnswer(whole);
  FinishActive();
}

void Connection::OnChannelReady() {
  if (!active_ || is_closed_) return;
  ResponseChannel& channel = *active_->channel();
  if (channel.disconnected()) return Reset();  // see ResponseChannel::Append
  ResponseChannel::Output out = channel.Take();
  if (out.head && !BeginAnswer(out)) return FinishActive();
  if (!active_->has_begun()) return;
  if (!out.bytes.empty()) active_->SendStreamBytes(std::move(out.bytes), output_);
  if (out.finished) FinishActive();
}

// Returns false if the answer is complete, even if the producer writes more.
bool Connection::BeginAnswer(ResponseChannel::Output& out) {
  // Requests that have already arrived still get an answer, perhaps a 503.
  if (shared_->draining && queue_.is_idle()) {
    active_->CloseConnection();
  }
  if (!out.is_stream) {
    active_->SendWhole(std::move(*out.head), output_);
    return true;
  }
  active_->BeginStream(std::move(*out.head), out.length, output_);
  if (active_->head().method == "HEAD") return false;
  if (!out.length) ArmPingTimer();
  return true;
}

void Connection::ArmPingTimer() {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - active_->last_stream_write());
  const auto interval = shared_->options.ping_interval;
  const auto wait = since >= interval ? interval : interval - since;
  Arm(ping_timer_, wait, [](Connection& self) {
    if (!self.active_ || !self.active_->is_stream()) return;
    const auto silent = std::chrono::steady_clock::now() - self.active_->last_stream_write();
    if (silent >= self.shared_->options.ping_interval && self.output_.empty() &&
        !self.active_->channel()->RequestPing()) {
      self.active_->SendStreamBytes(SseComment("ping"), self.output_);
    }
    self.ArmPingTimer();
  });
}

void Connection::FinishActive() {
  if (active_->is_stream()) ping_timer_.cancel();
  if (active_->closes_connection()) close_after_write_ = true;
  active_->Finish(output_);
  active_.reset();
  if (close_after_write_) {
    queue_.Abandon();
    if (output_.empty()) Linger();
    return;
  }
  StartNext();
}

// The client has left.
void Connection::AbandonActive() {
  if (!active_) return;
  ping_timer_.cancel();
  const std::unique_ptr<Exchange> left = std::move(active_);
  left->Abandon();
}

void Connection::OnOutputSent() {
  if (is_lingering_) return ShutdownSend();
  if (close_after_write_) return Linger();
  StartNext();
}

// ---- ending

// Closing at once can reset the connection and lose the answer in transit. So further input is read
// and dropped until linger_timeout.
void Connection::Linger() {
  if (is_closed_ || is_lingering_) return;
  is_lingering_ = true;
  Arm(read_timer_, shared_->options.linger_timeout, [](Connection& self) { self.Close(); });
  if (tls_) {
    tls_->SendEnd();
    output_.WriteMore();
  }
  if (!output_.is_writing()) ShutdownSend();
  ReadMore();
}

void Connection::ShutdownSend() {
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Connection::Close() {
  if (is_closed_) return;
  is_closed_ = true;  // first: a failure below must not enter here again
  AbandonActive();
  queue_.Abandon();
  output_.Close();
  boost::system::error_code ignored;
  read_timer_.cancel();
  ping_timer_.cancel();
  leave_timer_.cancel();
  if (tls_ && !output_.is_writing()) {
    // Sends an alert or the closing message of an idle connection, if the socket has room.
    HasMemoryFor([&] {
      tls_->SendEnd();
      const std::string last_words = tls_->TakeOutput();
      send(socket_.native_handle(), last_words.data(), last_words.size(),
           MSG_DONTWAIT | MSG_NOSIGNAL);
    });
  }
  tls_.reset();
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  const std::lock_guard lock(descriptor_mutex_);
  descriptor_ = -1;
  socket_.close(ignored);
}

void Connection::Reset() {
  if (is_closed_) return;
  tls_.reset();  // no closing message
  boost::system::error_code ignored;
  socket_.set_option(net::socket_base::linger(true, 0), ignored);
  Close();
}

void Connection::CloseIfIdle() {
  Post([](Connection& self) {
    if (!self.active_ && self.queue_.is_idle() && self.output_.empty()) self.Close();
  });
}

void Connection::AbortRequests() {
  Post([](Connection& self) {
    self.queue_.Abandon();
    if (self.active_) {
      self.active_->CloseConnection();
      Exchange& active = *self.active_;
      AbortForShutdown(self.shared_->policy, active.head(), active.style(), *active.channel());
    } else if (self.output_.empty()) {
      self.Close();
    } else {
      self.close_after_write_ = true;
    }
  });
}

void Connection::CloseNow() {
  Post([](Connection& self) { self.Close(); });
}

}  // namespace tandem::server
