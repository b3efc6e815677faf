#include "server/http/connection.h"

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
constexpr size_t kMaxLingerBytes = 1 << 20;

std::string Hex(size_t value) {
  std::array<char, 17> text{};
  snprintf(text.data(), text.size(), "%zx", value);
  return text.data();
}

std::string ErrorEvents(const Response& response) {
  return SseData(response.body) + SseData("[DONE]");
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
      parser_(shared_->options) {}

Connection::~Connection() {
  const std::lock_guard lock(shared_->mutex);
  shared_->connections.erase(this);
  shared_->changed.notify_all();
}

void Connection::Start() {
  ArmReadTimer();
  ReadMore();
}

void Connection::StartOverloaded() {
  parser_.Stop();
  queue_.push_back(Refusal{503, "server_overloaded", "too many open connections"});
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
      queue_.push_back(Refusal{408, "request_timeout", "the request head took too long"});
      break;
    case RequestParser::Phase::kBody:
      queue_.push_back(Refusal{408, "request_timeout", "the request body stopped arriving"});
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

bool Connection::IsInputFull() const {
  return queue_.size() >= shared_->options.max_pipelined_requests ||
         queued_body_bytes_ > shared_->options.max_body_bytes;
}

void Connection::ReadMore() {
  if (is_reading_ || is_closed_ || (IsInputFull() && !is_lingering_)) return;
  is_reading_ = true;
  read_buffer_.resize(kReadBytes);
  socket_.async_read_some(net::buffer(read_buffer_.data(), read_buffer_.size()),
                          [self = shared_from_this()](const boost::system::error_code& error,
                                                      size_t n) { self->OnRead(error, n); });
}

void Connection::OnRead(const boost::system::error_code& error, size_t n) {
  is_reading_ = false;
  if (is_closed_) return;
  if (error) return OnPeerGone(error == net::error::eof);

  if (is_lingering_) {
    lingered_bytes_ += n;
    if (lingered_bytes_ > kMaxLingerBytes) return Close();
  } else if (parser_.phase() != RequestParser::Phase::kRefused) {
    parser_.Append(std::string_view(read_buffer_).substr(0, n));
    ParseInput();
  }
  ReadMore();
}

// End of file counts as leaving: an aborting client sends nothing else.
void Connection::OnPeerGone(bool is_eof) {
  const bool was_waiting = active_.has_value() || !queue_.empty();
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
    if (std::holds_alternative<RequestParser::AwaitsContinue>(result)) {
      Request head = parser_.head();
      Router::Match match;
      if (std::optional<Response> refused = CheckHead(head, match)) {
        parser_.Stop();
        queue_.push_back(EarlyAnswer{std::move(head), std::move(*refused)});
      } else {
        continue_owed_ = true;
      }
    } else if (Request* request = std::get_if<Request>(&result)) {
      continue_owed_ = false;
      armed_phase_ = RequestParser::Phase::kRefused;  // the next head gets its own time
      queued_body_bytes_ += request->body.size();
      queue_.push_back(std::move(*request));
    } else {
      queue_.push_back(std::move(std::get<Refusal>(result)));
    }
  }
  StartNext();
  ArmReadTimer();
}

// ---- dispatching

void Connection::StartNext() {
  if (active_ || is_closed_ || close_after_write_ || output_bytes_ > kOutputBeforeNextRequest) {
    return;
  }
  if (queue_.empty()) {
    if (continue_owed_) SendContinue();
    if (shared_->draining && parser_.phase() == RequestParser::Phase::kIdle && output_.empty()) {
      Close();
      return;
    }
    ArmReadTimer();
    return;
  }

  const bool was_full = IsInputFull();
  Incoming incoming = std::move(queue_.front());
  queue_.pop_front();
  if (Request* request = std::get_if<Request>(&incoming)) {
    queued_body_bytes_ -= request->body.size();
    // Reading stopped when the queue was full: the bytes at hand come first, then the socket.
    if (was_full) {
      net::post(socket_.get_executor(), [self = shared_from_this()] {
        if (self->is_closed_) return;
        self->ParseInput();
        self->ReadMore();
      });
    }
    Begin(std::move(*request));
  } else if (EarlyAnswer* early = std::get_if<EarlyAnswer>(&incoming)) {
    Activate(early->head);
    AnswerDirectly(std::move(early->response), true);
  } else {
    const Refusal& refusal = std::get<Refusal>(incoming);
    Request unknown;
    unknown.received = std::chrono::steady_clock::now();
    Activate(unknown);
    AnswerDirectly(shared_->policy.refusal(refusal.status, refusal.code, refusal.message), true);
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
  if (shared_->draining && match.route->access != Access::kOpen) {
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
  active.channel = std::make_shared<ResponseChannel>(
      shared_->options.max_output_bytes, [weak = weak_from_this()] {
        if (std::shared_ptr<Connection> self = weak.lock()) {
          const auto executor = self->socket_.get_executor();
          net::post(executor, [self = std::move(self)] { self->OnChannelReady(); });
        }
      });
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
  if (std::optional<Response> answer = CheckHead(request, match)) {
    return AnswerDirectly(std::move(*answer), false);
  }
  request.path_params = std::move(match.params);
  active.route = match.route;
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
  RunChannelTasks();
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

// The rest of a handler, run here: its exceptions become answers as in RunHandler.
void Connection::RunChannelTasks() {
  const std::shared_ptr<ResponseChannel> channel = active_->channel;
  try {
    channel->RunTasks();
  } catch (...) {
    Response response = shared_->policy.exception(std::current_exception(), active_->head);
    const std::string events = ErrorEvents(response);
    channel->Abort(std::move(response), events);
  }
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
  if (shared_->draining) active.keep_alive = false;
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
    if (!is_writing_) Linger();
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

void Connection::WriteMore() {
  if (is_writing_ || is_closed_ || output_.empty()) return;
  is_writing_ = true;
  std::array<net::const_buffer, 8> buffers;
  for (size_t i = 0; i < std::min(buffers.size(), output_.size()); ++i) {
    buffers[i] = net::buffer(output_[i].bytes.data() + output_[i].sent,
                             output_[i].bytes.size() - output_[i].sent);
  }
  // A partial write is progress: it gives the client the whole write timeout again.
  Arm(write_timer_, shared_->options.write_timeout, [](Connection& self) {
    spdlog::debug("http_slow_reader remote={}", self.remote_);
    self.Reset();
  });
  socket_.async_write_some(
      buffers, [self = shared_from_this()](const boost::system::error_code& error, size_t n) {
        self->OnWritten(error, n);
      });
}

void Connection::OnWritten(const boost::system::error_code& error, size_t n) {
  is_writing_ = false;
  if (is_closed_) return;
  if (error) return OnPeerGone(false);
  output_bytes_ -= n;
  while (n > 0) {
    OutputPart& part = output_.front();
    const size_t of_part = std::min(n, part.bytes.size() - part.sent);
    part.sent += of_part;
    n -= of_part;
    if (part.channel) part.channel->Sent(of_part);
    if (part.sent == part.bytes.size()) output_.pop_front();
  }
  if (!output_.empty()) return WriteMore();

  write_timer_.cancel();
  if (close_after_write_) return Linger();
  StartNext();
}

// ---- ending

// Closing at once could reset the connection and with it the answer on its way: what the client
// still sends is read and dropped for a while.
void Connection::Linger() {
  if (is_closed_ || is_lingering_) return;
  is_lingering_ = true;
  boost::system::error_code ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  Arm(read_timer_, shared_->options.linger_timeout, [](Connection& self) { self.Close(); });
  ReadMore();
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
  socket_.shutdown(tcp::socket::shutdown_both, ignored);
  socket_.close(ignored);
}

void Connection::Reset() {
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
