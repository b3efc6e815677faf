#include "bench/load/load_run.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>

#include "bench/client/http_response_parser.h"
#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/sse_parser.h"

namespace tandem::bench {
namespace {

using Clock = std::chrono::steady_clock;
using Outcome = RequestRecord::Outcome;

constexpr size_t kReadBytes = 256 << 10;
constexpr size_t kDetailBytes = 200;
constexpr double kTimeoutCheckS = 0.25;
// After this many refusals in a row the server counts as gone.
constexpr int64_t kMaxRefusals = 100;

// One connection and its current request. The methods of Load work on these.
struct Stream {
  Socket socket;
  bool is_registered = false;  // with epoll
  bool wants_writable = false;
  bool is_busy = false;
  bool is_reused = false;  // the connection served an earlier request
  std::string out;
  size_t out_sent = 0;
  HttpResponseParser response;
  SseParser events;
  std::string body;
  bool has_ended_well = false;  // [DONE] or a finish_reason
  LoadRequest request;
  RequestRecord record;
};

// Allows as many connections as the system permits.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

class Load {
 public:
  Load(const HttpTarget& target, const PromptMaker& prompts, const LoadRunOptions& options)
      : target_(target),
        prompts_(prompts),
        options_(options),
        address_(Address::Resolve(target)),
        poll_(epoll_create1(EPOLL_CLOEXEC)),
        buffer_(kReadBytes) {
    if (!poll_) throw Error(ErrorCode::kIo, "epoll_create1: " + std::string(strerror(errno)));
    RaiseDescriptorLimit();
  }

  LoadRun Run() {
    begin_ = Clock::now();
    for (int64_t i = 0; i < options_.streams && MayStart(0); ++i) {
      Begin(streams_.emplace_back(), Now());
    }
    while (true) {
      StartDue();
      Restart();
      if (n_busy_ == 0 && !IsArrivalLeft()) break;
      Wait();
      CheckTimeouts();
    }
    if (!run_.records.empty()) {
      double first_due = run_.records.front().due_s, last_end = 0;
      for (const RequestRecord& record : run_.records) {
        first_due = std::min(first_due, record.due_s);
        last_end = std::max(last_end, record.end_s);
      }
      run_.wall_s = last_end - first_due;
    }
    return std::move(run_);
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  bool MayStart(double now) const {
    return (options_.requests == 0 || n_started_ < options_.requests) &&
           (options_.duration_s == 0 || now < options_.duration_s);
  }
  bool IsArrivalLeft() const { return static_cast<size_t>(n_started_) < options_.arrivals.size(); }

  void StartDue() {
    while (IsArrivalLeft()) {
      const double due = options_.arrivals[static_cast<size_t>(n_started_)];
      if (due > Now()) return;
      if (idle_.empty()) {
        Begin(streams_.emplace_back(), due);
      } else {
        Stream& stream = *idle_.back();
        idle_.pop_back();
        Begin(stream, due);
      }
    }
  }

  void Begin(Stream& stream, double due) {
    stream.request = prompts_.Make(options_.first_request_idx + n_started_++);
    stream.out = target_.Request("POST", options_.path, stream.request.body, options_.keep_alive);
    stream.request.body.clear();
    stream.is_busy = true;
    stream.is_reused = static_cast<bool>(stream.socket);
    stream.record = RequestRecord{};
    stream.record.asked_tokens = stream.request.output_tokens;
    stream.record.sent_s = Now();
    // In a closed loop a request is due when it is sent.
    stream.record.due_s = options_.streams > 0 ? stream.record.sent_s : due;
    run_.lateness_s = std::max(run_.lateness_s, stream.record.sent_s - stream.record.due_s);
    ++n_busy_;
    Send(stream);
  }

  void Send(Stream& stream) {
    stream.out_sent = 0;
    stream.response = HttpResponseParser();
    stream.events = SseParser();
    stream.body.clear();
    stream.has_ended_well = false;
    if (!stream.socket) {
      stream.socket = address_.StartConnecting();
      stream.is_registered = false;
      ++run_.connections;
      if (!stream.socket) return Fail(stream, "connect", std::strerror(errno));
      Watch(stream, true);
      return;
    }
    Write(stream);
  }

  void Watch(Stream& stream, bool writable) {
    if (stream.is_registered && stream.wants_writable == writable) return;
    epoll_event event{};
    event.events = writable ? EPOLLIN | EPOLLOUT : EPOLLIN;
    event.data.ptr = &stream;
    TANDEM_CHECK(epoll_ctl(poll_.fd(), stream.is_registered ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
                           stream.socket.fd(), &event) == 0);
    stream.is_registered = true;
    stream.wants_writable = writable;
  }

  void Write(Stream& stream) {
    while (stream.out_sent < stream.out.size()) {
      const ssize_t sent = send(stream.socket.fd(), stream.out.data() + stream.out_sent,
                                stream.out.size() - stream.out_sent, MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return Watch(stream, true);
        // The server may have answered without reading the rest; reading will show it.
        if (errno == EPIPE || errno == ECONNRESET) break;
        return Fail(stream, "connect", std::strerror(errno));
      }
      stream.out_sent += static_cast<size_t>(sent);
    }
    Watch(stream, false);
  }

  void Wait() {
    double wait_s = kTimeoutCheckS;
    if (IsArrivalLeft()) {
      const double due = options_.arrivals[static_cast<size_t>(n_started_)];
      wait_s = std::clamp(due - Now(), 0.0, wait_s);
    }
    timespec timeout{};
    timeout.tv_nsec = static_cast<long>(wait_s * 1e9);
    epoll_event events[128];
    const int n = epoll_pwait2(poll_.fd(), events, 128, &timeout, nullptr);
    if (n < 0 && errno != EINTR) {
      throw Error(ErrorCode::kIo, "epoll_pwait2: " + std::string(strerror(errno)));
    }
    // A stream has one socket, so it appears at most once here. Requests begin only in the stream's
    // own event or outside this loop, so no event belongs to an earlier socket.
    for (int i = 0; i < n; ++i) {
      Stream& stream = *static_cast<Stream*>(events[i].data.ptr);
      if ((events[i].events & EPOLLOUT) != 0 && !OnWritable(stream)) continue;
      if ((events[i].events & ~static_cast<uint32_t>(EPOLLOUT)) != 0) OnReadable(stream);
    }
  }

  // Returns false when the request is over.
  bool OnWritable(Stream& stream) {
    int fault = 0;
    socklen_t size = sizeof fault;
    getsockopt(stream.socket.fd(), SOL_SOCKET, SO_ERROR, &fault, &size);
    if (fault != 0 && stream.out_sent == 0) {
      Fail(stream, "connect", std::strerror(fault));
      return false;
    }
    n_refused_ = 0;
    Write(stream);
    return stream.is_busy;
  }

  void OnReadable(Stream& stream) {
    const ssize_t got = recv(stream.socket.fd(), buffer_.data(), buffer_.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const double now = Now();
    if (!stream.is_busy) {  // the server closed an idle connection
      stream.socket.Close();
      return;
    }
    if (got <= 0) return OnEnd(stream, got < 0 ? errno : 0, now);
    const auto malformed = ErrorOf([&] {
      stream.response.Feed({buffer_.data(), static_cast<size_t>(got)}, stream.body);
      if (stream.response.has_head() && stream.response.is_event_stream() &&
          stream.response.status() == 200) {
        OnEvents(stream, now);
      }
    });
    if (malformed) return Fail(stream, "malformed answer", malformed->what());
    if (stream.is_busy && stream.response.done()) OnAnswer(stream, now);
  }

  void OnEnd(Stream& stream, int fault, double now) {
    if (fault == 0 && stream.response.EndOfConnection()) {
      stream.socket.Close();
      return OnAnswer(stream, now);
    }
    // A server may close a kept connection at any time. A request that crosses with the close is
    // sent once again on a new one.
    if (stream.is_reused && !stream.response.has_begun()) {
      stream.is_reused = false;
      stream.socket.Close();
      return Send(stream);
    }
    Fail(stream, "closed early", fault == 0 ? "" : std::strerror(fault));
  }

  void OnEvents(Stream& stream, double now) {
    scratch_.clear();
    scratch_.swap(stream.body);
    stream.events.Feed(scratch_, [&](const SseParser::Event& event) {
      if (!stream.is_busy) return;  // failed or left in an earlier event of these bytes
      if (event.data == "[DONE]") {
        stream.has_ended_well = true;
        return;
      }
      OnPiece(stream, completions_.Parse(event.data), now);
    });
  }

  void OnPiece(Stream& stream, const CompletionPiece& piece, double now) {
    RequestRecord& record = stream.record;
    if (piece.error) return Fail(stream, "error event", *piece.error);
    if (piece.usage) {
      record.usage = *piece.usage;
      record.has_usage = true;
    }
    stream.has_ended_well |= piece.has_finished;
    if (!piece.has_text) return;
    if (record.pieces++ == 0) {
      record.first_s = now;
    } else {
      run_.gaps_ms.push_back(static_cast<float>((now - record.last_s) * 1e3));
    }
    record.last_s = now;
    if (record.pieces == stream.request.leaves_after_pieces) {
      stream.socket.Close();
      Finish(stream, Outcome::kAborted, now);
    }
  }

  // Handles a complete response.
  void OnAnswer(Stream& stream, double now) {
    RequestRecord& record = stream.record;
    const int status = stream.response.status();
    if (stream.socket && !stream.response.keep_alive()) stream.socket.Close();
    if (status != 200) {
      std::string detail = stream.body.substr(0, kDetailBytes);
      // Reports the text when it is not JSON.
      ErrorOf([&] { detail = completions_.Parse(stream.body).error.value_or(detail); });
      return Fail(stream, "status " + std::to_string(status), detail, KeepConnection::kYes);
    }
    if (!stream.response.is_event_stream()) {
      CompletionPiece piece;
      const auto malformed = ErrorOf([&] { piece = completions_.Parse(stream.body); });
      if (malformed) return Fail(stream, "malformed answer", malformed->what());
      if (piece.error) return Fail(stream, "error in a 200", *piece.error);
      stream.has_ended_well = piece.has_finished;
      if (piece.usage) {
        record.usage = *piece.usage;
        record.has_usage = true;
      }
    }
    if (!stream.has_ended_well) {
      return Fail(stream, "no finish", "the response has no finish_reason and no [DONE]");
    }
    Finish(stream, Outcome::kOk, now);
  }

  enum class KeepConnection { kNo, kYes };

  void Fail(Stream& stream, std::string fault, std::string detail,
            KeepConnection keep = KeepConnection::kNo) {
    if (keep == KeepConnection::kNo) stream.socket.Close();
    if (fault == "connect" && ++n_refused_ >= kMaxRefusals) {
      throw Error(ErrorCode::kUnavailable, target_.url() + ": " + detail);
    }
    stream.record.fault = std::move(fault);
    stream.record.detail = std::move(detail);
    Finish(stream, Outcome::kFailed, Now());
  }

  void Finish(Stream& stream, Outcome outcome, double now) {
    stream.record.outcome = outcome;
    stream.record.end_s = now;
    run_.records.push_back(std::move(stream.record));
    stream.is_busy = false;
    if (!stream.socket) stream.is_registered = false;
    --n_busy_;
    if (options_.streams == 0) {
      idle_.push_back(&stream);
    } else if (MayStart(now)) {
      restart_.push_back(&stream);
    }
  }

  // Separate from Finish, so that immediate refusals do not deepen the stack.
  void Restart() {
    while (!restart_.empty()) {
      Stream& stream = *restart_.back();
      restart_.pop_back();
      if (MayStart(Now())) Begin(stream, 0);
    }
  }

  void CheckTimeouts() {
    const double now = Now();
    if (now < next_timeout_check_) return;
    next_timeout_check_ = now + kTimeoutCheckS;
    for (Stream& stream : streams_) {
      if (stream.is_busy && now - stream.record.sent_s > options_.request_timeout_s) {
        Fail(stream, "timeout", "");
      }
    }
  }

  const HttpTarget& target_;
  const PromptMaker& prompts_;
  const LoadRunOptions& options_;
  const Address address_;
  Socket poll_;
  std::vector<char> buffer_;
  std::string scratch_;  // body bytes between the two parsers
  CompletionParser completions_;
  Clock::time_point begin_;
  std::deque<Stream> streams_;    // epoll holds pointers to them
  std::vector<Stream*> idle_;     // in an open loop
  std::vector<Stream*> restart_;  // in a closed loop
  int64_t n_started_ = 0;
  int64_t n_busy_ = 0;
  int64_t n_refused_ = 0;  // in a row
  double next_timeout_check_ = 0;
  LoadRun run_;
};

}  // namespace

LoadRun RunLoad(const HttpTarget& target, const PromptMaker& prompts,
                const LoadRunOptions& options) {
  TANDEM_CHECK(options.streams == 0 || options.requests > 0 || options.duration_s > 0);
  return Load(target, prompts, options).Run();
}

}  // namespace tandem::bench
