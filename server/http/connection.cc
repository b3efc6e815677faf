#include "server/http/connection.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/log.h"
#include "server/http/response_writer.h"
#include "server/http/sse.h"
#include "server/http/standard_headers.h"

namespace tandem::server {
namespace {

constexpr size_t kReadBytes = 16 << 10;
// A pipelined request waits until the answers before it have left but for this much.
constexpr size_t kOutputBeforeNextRequest = 64 << 10;
// Some clients (Node's fetch) write their whole body before they read an answer: closing while they
// write would reset the connection and lose the 413 that explains it. Time bounds it too.
constexpr size_t kMaxLingerBytes = size_t{256} << 20;
// What is encrypted at once: it counts as sent only when all of it has left.
constexpr size_t kEncryptBytes = 64 << 10;

std::string Hex(size_t value) {
  std::array<char, 17> text{};
  snprintf(text.data(), text.size(), "%zx", value);
  return text.data();
}

std::string ErrorEvents(const Response& response) {
  return SseData(response.body) + SseData("[DONE]");
}

// What the kernel holds for the client because it has not acknowledged it.
int UnreadByClient(int fd) {
  int bytes = 0;
  return ioctl(fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

// The rest of a handler, on the answer thread: its exceptions become answers as in RunHandler.
void RunChannelTasks(const HttpPolicy& policy, const Request& head, ResponseChannel& channel) {
  try {
    channel.RunTasks();
  } catch (...) {
    Response response = policy.exception(std::current_exception(), head);
    const std::string events = ErrorEvents(response);
    channel.Abort(std::move(response), events);
  }
}

}  // namespace

Connection::Connection(StrandSocket socket, std::string remote,
                       std::shared_ptr<ConnectionShared> shared)
    : socket_(std::move(socket)),
      remote_(std::move(remote)),
      shared_(std::move(shared)),
      read_timer_(socket_.get_executor()),
      write_timer_(socket_.get_executor()),
      ping_timer_(socket_.get_executor()),
      leave_timer_(socket_.get_executor()),
      parser_(shared_->options) {
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

void Connection::Start() { BeginReading(); }

void Connection::StartOverloaded() {
  parser_.Stop();
  Refuse({503, "server_overloaded", "too many open connections"});
  if (tls_) BeginReading();  // the answer waits for the handshake
  StartNext();
}

// ---- timers

template <class Callback>
void Connection::Arm(StrandTimer& timer, std::chrono::milliseconds after, Callback callback) {
  timer.expires_after(after);
  timer.async_wait(
      [self = shared_from_this(), &timer, callback](const boost::system::error_code& error) {
        // A wait that was re-armed after it had expired arrives without an error.
        if (error || self->is_closed_ || timer.expiry() > std::chrono::steady_clock::now()) return;
        callback(*self);
      });
}

void Connection::ArmReadTimer() {
  const RequestParser::Phase phase = parser_.phase();
  if (is_lingering_ || is_closed_) return;
  if (tls_ && tls_->state() == TlsSession::State::kHandshake) return;  // it has its own time
  if (IsInputFull()) {
    // It is we who are not reading.
    read_timer_.cancel();
    armed_phase_ = RequestParser::Phase::kRefused;
    return;
  }
  const auto on_timeout = [](Connection& self) { self.OnReadTimeout(); };
  switch (phase) {
    case RequestParser::Phase::kHead:
      // Once per head: dribbling bytes buy no time.
      if (armed_phase_ != phase) Arm(read_timer_, shared_->options.header_timeout, on_timeout);
      break;
    case RequestParser::Phase::kBody:
      if (continue_owed_) {
        read_timer_.cancel();
      } else {
        Arm(read_timer_, shared_->options.body_idle_timeout, on_timeout);
      }
      break;
    case RequestParser::Phase::kIdle:
      if (active_ || !queue_.empty() || is_writing_) {
        read_timer_.cancel();
        armed_phase_ = RequestParser::Phase::kRefused;  // nothing is armed
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
  switch (parser_.phase()) {
    case RequestParser::Phase::kHead:
      Refuse({408, "request_timeout", "the request head took too long"});
      break;
    case RequestParser::Phase::kBody:
      Refuse({408, "request_timeout", "the request body stopped arriving"});
      break;
    case RequestParser::Phase::kIdle:
      if (!active_ && queue_.empty() && !is_writing_) Close();
      return;
    case RequestParser::Phase::kRefused:
      return;
  }
  parser_.Stop();
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

bool Connection::IsInputFull() const {
  return queue_.size() >= shared_->options.max_pipelined_requests ||
         queued_body_bytes_ > shared_->options.max_body_bytes;
}

void Connection::ReadMore() {
  if (is_reading_ || is_closed_) return;
  if (IsInputFull() && !is_lingering_) return WatchUnreadInput();
  is_reading_ = true;
  read_buffer_.resize(kReadBytes);
  socket_.async_read_some(net::buffer(read_buffer_.data(), read_buffer_.size()),
                          [self = shared_from_this()](const boost::system::error_code& error,
                                                      size_t n) { self->OnRead(error, n); });
}

// The end of input that is not being read stands behind what is: the kernel is asked for it.
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
  if (!bytes.empty() && parser_.phase() != RequestParser::Phase::kRefused) {
    parser_.Append(bytes);
    ParseInput();
  }
  if (is_closed_) return;
  if (tls_ && tls_->state() == TlsSession::State::kEnded) return OnPeerGone(true);
  ReadMore();
}

// False when this is the end of the session: the connection closes, or goes on without TLS.
bool Connection::Decrypt(std::string_view bytes) {
  const bool was_in_handshake = tls_->state() == TlsSession::State::kHandshake;
  plain_.clear();
  const TlsSession::State state = tls_->Receive(bytes, plain_);
  if (state == TlsSession::State::kFailed) {
    Close();  // with the alert
    return false;
  }
  if (state == TlsSession::State::kPlainHttp) {
    tls_.reset();
    read_timer_.cancel();
    parser_.Stop();
    Refuse({400, "invalid_request", "this port speaks TLS: use https://"});
    StartNext();
    ReadMore();
    return false;
  }
  if (was_in_handshake && state != TlsSession::State::kHandshake) {
    read_timer_.cancel();
    ArmReadTimer();
  }
  WriteMore();  // the handshake's next message, or what has waited for its end
  return !is_closed_;
}

// End of file counts as leaving: an aborting client sends nothing else.
void Connection::OnPeerGone(bool is_eof) {
  const bool was_waiting = active_.has_value() || !queue_.empty();
  early_refusal_.reset();
  AbandonActive();
  DropQueue();
  parser_.Stop();
  if (is_eof && !was_waiting && is_writing_ && !is_lingering_) {
    // The answer is complete; only its bytes are still on their way.
    close_after_write_ = true;
    return;
  }
  Close();
}

void Connection::ParseInput() {
  while (!IsInputFull()) {
    RequestParser::Result result = parser_.Next();
    if (std::holds_alternative<RequestParser::NeedMore>(result)) break;
    if (const auto* ready = std::get_if<RequestParser::HeadReady>(&result)) {
      OnHeadReady(ready->awaits_continue);
    } else if (Request* request = std::get_if<Request>(&result)) {
      continue_owed_ = false;
      armed_phase_ = RequestParser::Phase::kRefused;  // the next head gets its own time
      queued_body_bytes_ += request->body.size();
      if (early_refusal_) {
        queue_.push_back(EarlyAnswer{std::move(*request), std::move(*early_refusal_), false});
        early_refusal_.reset();
      } else {
        queue_.push_back(std::move(*request));
      }
    } else {
      Refuse(std::get<Refusal>(result));
    }
  }
  StartNext();
  ArmReadTimer();
}

// The body of a request that will be refused takes no memory. A client that waits for leave to
// send it is answered at once; the others first get their bodies read, so that the answer is not
// lost to a reset and the connection stays usable.
void Connection::OnHeadReady(bool awaits_continue) {
  Router::Match match;
  std::optional<Response> refused = CheckHead(parser_.head(), match);
  if (!refused) {
    continue_owed_ = awaits_continue;
  } else if (awaits_continue) {
    Request head = parser_.head();
    parser_.Stop();
    queue_.push_back(EarlyAnswer{std::move(head), std::move(*refused)});
  } else {
    parser_.DropBody();
    early_refusal_ = std::move(*refused);
  }
}

// Nothing behind the request that is being read can be read as a request.
void Connection::Refuse(const Refusal& refusal) {
  EarlyAnswer answer{parser_.head(), {}};
  answer.head.received = std::chrono::steady_clock::now();
  // Who may not come in is not told how much would be too much.
  answer.response = refusal.status == 413 && early_refusal_
                        ? std::move(*early_refusal_)
                        : shared_->policy.refusal(refusal.status, refusal.code, refusal.message);
  early_refusal_.reset();
  queue_.push_back(std::move(answer));
}

// ---- dispatching

void Connection::StartNext() {
  if (active_ || is_closed_ || close_after_write_ || output_bytes_ > kOutputBeforeNextRequest) {
    return;
  }
  if (queue_.empty()) {
    if (continue_owed_) SendContinue();
    if (shared_->draining && parser_.phase() == RequestParser::Phase::kIdle && output_.empty()) {
      return Linger();
    }
    ArmReadTimer();
    return;
  }

  const bool was_full = IsInputFull();
  Incoming incoming = std::move(queue_.front());
  queue_.pop_front();
  // Reading stopped when the queue was full: the bytes at hand come first, then the socket.
  if (was_full) {
    net::post(socket_.get_executor(), [self = shared_from_this()] {
      if (self->is_closed_) return;
      self->ParseInput();
      self->ReadMore();
    });
  }
  if (Request* request = std::get_if<Request>(&incoming)) {
    queued_body_bytes_ -= request->body.size();
    Begin(std::move(*request));
  } else {
    EarlyAnswer& early = std::get<EarlyAnswer>(incoming);
    Activate(early.head);
    AnswerDirectly(std::move(early.response), early.close);
  }
}

void Connection::SendContinue() {
  continue_owed_ = false;
  Enqueue("HTTP/1.1 100 Continue\r\n\r\n", nullptr);
}

std::optional<Response> Connection::CheckHead(const Request& request, Router::Match& match) const {
  if (request.method == "OPTIONS" && request.path == "*") {
    return PreflightAnswer("GET, HEAD, POST, DELETE, OPTIONS");
  }
  match = shared_->router.Find(request.method, request.path);
  if (match.allow.empty()) {
    return shared_->policy.refusal(
        404, "unknown_url",
        "unknown request URL: " + request.method + " " + request.path.substr(0, 200));
  }
  if (request.method == "OPTIONS") return PreflightAnswer(match.allow);
  if (match.route == nullptr) {
    Response response = shared_->policy.refusal(
        405, "method_not_allowed",
        "method " + request.method.substr(0, 32) + " is not allowed here; allowed: " + match.allow);
    response.headers.emplace_back("allow", match.allow);
    return response;
  }
  if (shared_->policy.gate) {
    if (std::optional<Response> refused = shared_->policy.gate(request, match.route->access)) {
      return refused;
    }
  }
  const Access access = match.route->access;
  if (shared_->draining && (access == Access::kApiKey || access == Access::kAdminKey)) {
    return shared_->policy.refusal(503, "shutting_down", "the server is shutting down");
  }
  return std::nullopt;
}

Connection::Active& Connection::Activate(const Request& request) {
  Active active;
  active.head.id = request.id.empty() ? NewRequestId() : request.id;
  active.head.method = request.method;
  active.head.path = request.path;
  if (const std::string* origin = request.FindHeader("origin")) {
    active.head.headers.emplace_back("origin", *origin);
  }
  active.head.received = request.received;
  active.head.http_1_0 = request.http_1_0;
  active.keep_alive = request.keep_alive && !request.http_1_0;
  // The connection may be gone when a producer wakes it; the channel then goes to nobody.
  const auto wake = [weak = weak_from_this()] {
    if (std::shared_ptr<Connection> self = weak.lock()) {
      const auto executor = self->socket_.get_executor();
      net::post(executor, [self = std::move(self)] { self->OnChannelReady(); });
    }
  };
  const auto run_tasks = [weak = std::weak_ptr<ConnectionShared>(shared_),
                          head = std::make_shared<const Request>(active.head)](
                             const std::shared_ptr<ResponseChannel>& channel) {
    if (const std::shared_ptr<ConnectionShared> shared = weak.lock()) {
      net::post(shared->answer_io, [policy = &shared->policy, head, channel] {
        RunChannelTasks(*policy, *head, *channel);
      });
    }
  };
  active.channel =
      std::make_shared<ResponseChannel>(shared_->options.max_output_bytes, wake, run_tasks);
  active_ = std::move(active);
  const std::lock_guard lock(shared_->mutex);
  ++shared_->n_running;
  return *active_;
}

void Connection::Begin(Request request) {
  request.remote = remote_;
  Active& active = Activate(request);
  request.id = active.head.id;
  Router::Match match;
  std::optional<Response> answer = CheckHead(request, match);
  active.route = match.route;
  if (answer) return AnswerDirectly(std::move(*answer), false);
  request.path_params = std::move(match.params);
  RunHandler(*match.route, std::move(request));
}

// The one place where exceptions of handlers become answers.
void Connection::RunHandler(const Route& route, Request request) {
  const ResponseWriter writer(
      active_->channel, [shared = shared_, id = request.id]() -> ResponseWriter::Abandoned {
        spdlog::error("request_abandoned request={}", id);
        Response response = shared->policy.refusal(500, "internal_error",
                                                   "internal error; the request id is " + id);
        std::string events = ErrorEvents(response);
        return {std::move(response), std::move(events)};
      });
  if (shared_->policy.admit) {
    if (std::optional<Response> refused = shared_->policy.admit(request, route, writer)) {
      return writer.Send(std::move(*refused));
    }
  }
  const auto run = [shared = shared_, writer, &route](Request to_handle) {
    Request context;  // what an error report may name once the handler owns the request
    context.id = to_handle.id;
    context.method = to_handle.method;
    context.path = to_handle.path;
    try {
      route.handler(std::move(to_handle), writer);
    } catch (...) {
      writer.Send(shared->policy.exception(std::current_exception(), context));
    }
  };

  if (route.runs_on == RunsOn::kIoThread) return run(std::move(request));
  // std::function wants something that can be copied.
  const auto shared_request = std::make_shared<Request>(std::move(request));
  const bool posted = shared_->pool->TryPost([run, writer, shared_request] {
    if (!writer.disconnected()) run(std::move(*shared_request));
  });
  if (!posted) {
    writer.Send(shared_->policy.refusal(503, "server_overloaded",
                                        "too many requests are waiting; try again later"));
  }
}

// ---- answering

void Connection::OnChannelReady() {
  if (!active_ || is_closed_) return;
  if (active_->channel->disconnected()) return Reset();  // it was given up: see Append
  ResponseChannel::Output out = active_->channel->Take();
  if (out.head) {
    active_->is_stream = out.is_stream;
    SendResponse(std::move(*out.head));
  }
  if (!active_ || !active_->head_sent) return;  // a HEAD request is answered by now
  if (!out.bytes.empty()) SendStreamBytes(std::move(out.bytes));
  if (out.finished) FinishActive();
}

void Connection::AnswerDirectly(Response response, bool close) {
  if (close) active_->keep_alive = false;
  SendResponse(std::move(response));
  FinishActive();
}

void Connection::SendResponse(Response response) {
  Active& active = *active_;
  active.head_sent = true;
  active.status = response.status;
  // Requests that are here already are still answered, be it with 503.
  if (shared_->draining && queue_.empty() && parser_.phase() == RequestParser::Phase::kIdle) {
    active.keep_alive = false;
  }
  AddStandardHeaders(shared_->options, active.head, response);
  const bool is_head_request = active.head.method == "HEAD";
  if (active.is_stream) {
    active.is_chunked = !active.head.http_1_0;
    Enqueue(SerializeHead(response, -1, active.is_chunked, active.keep_alive), nullptr);
    active.last_stream_write = std::chrono::steady_clock::now();
    if (is_head_request) {
      // Same head, no body: the producer learns that nobody listens.
      active.channel->Disconnect();
      active.is_chunked = false;
      FinishActive();
      return;
    }
    ArmPingTimer();
    return;
  }
  const long long body_bytes = static_cast<long long>(response.body.size());
  std::string bytes = SerializeHead(response, body_bytes, true, active.keep_alive);
  if (!is_head_request && response.status != 204) {
    if (response.body.size() < (16 << 10)) {
      bytes += response.body;
    } else {
      Enqueue(std::move(bytes), nullptr);
      bytes = std::move(response.body);
    }
  }
  Enqueue(std::move(bytes), nullptr);
}

void Connection::SendStreamBytes(std::string bytes) {
  Active& active = *active_;
  active.last_stream_write = std::chrono::steady_clock::now();
  if (active.is_chunked) {
    const size_t n = bytes.size();
    // The frame counts as sent with its first byte; what matters is the order of magnitude.
    bytes.insert(0, Hex(n) + "\r\n");
    bytes += "\r\n";
  }
  Enqueue(std::move(bytes), active.channel);
}

void Connection::ArmPingTimer() {
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - active_->last_stream_write);
  const auto interval = shared_->options.ping_interval;
  const auto wait = since >= interval ? interval : interval - since;
  Arm(ping_timer_, wait, [](Connection& self) {
    if (!self.active_ || !self.active_->is_stream) return;
    const auto silent = std::chrono::steady_clock::now() - self.active_->last_stream_write;
    if (silent >= self.shared_->options.ping_interval && self.output_.empty()) {
      self.SendStreamBytes(SseComment("ping"));
    }
    self.ArmPingTimer();
  });
}

void Connection::FinishActive() {
  if (!active_) return;
  Active& active = *active_;
  if (active.is_chunked) Enqueue("0\r\n\r\n", nullptr);
  if (active.is_stream) ping_timer_.cancel();
  if (!active.keep_alive || active.head.http_1_0) close_after_write_ = true;
  ReportEnd(active, active.status, *active.channel);
  active_.reset();
  {
    const std::lock_guard lock(shared_->mutex);
    --shared_->n_running;
    shared_->changed.notify_all();
  }
  if (close_after_write_) {
    parser_.Stop();
    DropQueue();
    if (output_.empty()) Linger();
    return;
  }
  StartNext();
}

// The client is gone: the producer is told, nothing more is sent.
void Connection::AbandonActive() {
  if (!active_) return;
  ping_timer_.cancel();
  const Active left = std::move(*active_);
  active_.reset();
  {
    const std::lock_guard lock(shared_->mutex);
    --shared_->n_running;
    shared_->changed.notify_all();
  }
  // First the producer: what it has to note belongs to the report.
  left.channel->Disconnect();
  ReportEnd(left, 499, *left.channel);
}

void Connection::ReportEnd(const Active& active, int status, ResponseChannel& channel) const {
  if (!shared_->policy.on_end) return;
  RequestSummary summary;
  summary.request_id = active.head.id;
  summary.method = active.head.method;
  if (active.route != nullptr) summary.route = active.route->pattern;
  summary.path = active.head.path;
  summary.status = status;
  summary.elapsed = std::chrono::steady_clock::now() - active.head.received;
  summary.notes = channel.TakeNotes();
  shared_->policy.on_end(summary);
}

void Connection::DropQueue() {
  queue_.clear();
  queued_body_bytes_ = 0;
}

void Connection::Enqueue(std::string bytes, std::shared_ptr<ResponseChannel> channel) {
  if (is_closed_) return;
  output_bytes_ += bytes.size();
  output_.push_back(OutputPart{std::move(bytes), 0, std::move(channel)});
  WriteMore();
}

// Fills cipher_; false when there is nothing to send, or nothing yet.
bool Connection::Encrypt() {
  if (cipher_sent_ < cipher_.size()) return true;
  cipher_sent_ = 0;
  if (tls_->state() != TlsSession::State::kHandshake) {
    for (const OutputPart& part : output_) {
      const std::string_view rest = std::string_view(part.bytes).substr(part.sent);
      const std::string_view piece = rest.substr(0, kEncryptBytes - encrypted_bytes_);
      tls_->Send(piece);
      encrypted_bytes_ += piece.size();
      if (encrypted_bytes_ == kEncryptBytes) break;
    }
  }
  cipher_ = tls_->TakeOutput();
  return !cipher_.empty();
}

void Connection::WriteMore() {
  if (is_writing_ || is_closed_) return;
  std::array<net::const_buffer, 8> buffers;
  if (tls_) {
    if (!Encrypt()) return;
    buffers[0] = net::buffer(cipher_) + cipher_sent_;
  } else {
    if (output_.empty()) return;
    for (size_t i = 0; i < std::min(buffers.size(), output_.size()); ++i) {
      buffers[i] = net::buffer(output_[i].bytes.data() + output_[i].sent,
                               output_[i].bytes.size() - output_[i].sent);
    }
  }
  is_writing_ = true;
  ArmWriteTimer();
  socket_.async_write_some(
      buffers, [self = shared_from_this()](const boost::system::error_code& error, size_t n) {
        self->OnWritten(error, n);
      });
}

// A partial write is progress, and gives the client the whole write timeout again. So is what it
// acknowledges meanwhile: the kernel asks for more only when much of its buffer has become free.
void Connection::ArmWriteTimer() {
  const int unread = UnreadByClient(socket_.native_handle());
  Arm(write_timer_, shared_->options.write_timeout, [unread](Connection& self) {
    if (UnreadByClient(self.socket_.native_handle()) < unread) return self.ArmWriteTimer();
    spdlog::debug("http_slow_reader remote={}", self.remote_);
    self.Reset();
  });
}

void Connection::OnWritten(const boost::system::error_code& error, size_t n) {
  is_writing_ = false;
  if (is_closed_) return;
  if (error) return OnPeerGone(false);
  if (tls_) {
    cipher_sent_ += n;
    n = cipher_sent_ < cipher_.size() ? 0 : std::exchange(encrypted_bytes_, 0);
  }
  output_bytes_ -= n;
  while (n > 0) {
    OutputPart& part = output_.front();
    const size_t of_part = std::min(n, part.bytes.size() - part.sent);
    part.sent += of_part;
    n -= of_part;
    if (part.channel) part.channel->Sent(of_part);
    if (part.sent == part.bytes.size()) output_.pop_front();
  }
  WriteMore();
  if (is_writing_) return;

  write_timer_.cancel();
  if (!output_.empty()) return;  // the handshake comes first
  if (is_lingering_) return ShutdownSend();
  if (close_after_write_) return Linger();
  StartNext();
}

// ---- ending

// Closing at once could reset the connection and with it the answer on its way: what the client
// still sends is read and dropped for a while.
void Connection::Linger() {
  if (is_closed_ || is_lingering_) return;
  is_lingering_ = true;
  Arm(read_timer_, shared_->options.linger_timeout, [](Connection& self) { self.Close(); });
  if (tls_) {
    tls_->SendEnd();
    WriteMore();
  }
  if (!is_writing_) ShutdownSend();
  ReadMore();
}

void Connection::ShutdownSend() {
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

void Connection::Close() {
  if (is_closed_) return;
  AbandonActive();
  is_closed_ = true;
  DropQueue();
  output_.clear();
  boost::system::error_code ignored;
  read_timer_.cancel();
  write_timer_.cancel();
  ping_timer_.cancel();
  leave_timer_.cancel();
  if (tls_ && !is_writing_) {
    // An alert, or the goodbye of an idle connection, if there is room for it.
    tls_->SendEnd();
    const std::string last_words = tls_->TakeOutput();
    send(socket_.native_handle(), last_words.data(), last_words.size(),
         MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  tls_.reset();
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Connection::Reset() {
  if (is_closed_) return;
  tls_.reset();  // no goodbye
  boost::system::error_code ignored;
  socket_.set_option(net::socket_base::linger(true, 0), ignored);
  Close();
}

void Connection::CloseIfIdle() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    if (!self->active_ && self->queue_.empty() && self->output_.empty() &&
        self->parser_.phase() == RequestParser::Phase::kIdle) {
      self->Close();
    }
  });
}

void Connection::AbortRequests() {
  net::post(socket_.get_executor(), [self = shared_from_this()] {
    self->DropQueue();
    self->parser_.Stop();
    if (self->active_) {
      self->active_->keep_alive = false;
      Response response =
          self->shared_->policy.refusal(503, "shutting_down", "the server is shutting down");
      const std::string events = ErrorEvents(response);
      self->active_->channel->Abort(std::move(response), events);
    } else if (self->output_.empty()) {
      self->Close();
    } else {
      self->close_after_write_ = true;
    }
  });
}

void Connection::CloseNow() {
  net::post(socket_.get_executor(), [self = shared_from_this()] { self->Close(); });
}

}  // namespace tandem::server
