#include "server/http/exchange.h"

#include <array>
#include <cstdio>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "server/http/dispatch.h"
#include "server/http/standard_headers.h"

namespace tandem::server {
namespace {

// Smaller bodies are copied behind their head, so that head and body are one buffer.
constexpr size_t kCopiedBodyBytes = 16 << 10;

std::string Hex(size_t value) {
  std::array<char, 17> text{};
  snprintf(text.data(), text.size(), "%zx", value);
  return text.data();
}

Request HeadOf(const Request& request) {
  Request head;
  head.id = request.id.empty() ? NewRequestId() : request.id;
  head.method = request.method;
  head.path = request.path;
  if (const std::string* origin = request.FindHeader("origin")) {
    head.headers.emplace_back("origin", *origin);
  }
  head.remote = request.remote;
  head.received = request.received;
  head.http_1_0 = request.http_1_0;
  return head;
}

}  // namespace

Exchange::Exchange(std::shared_ptr<ConnectionShared> shared, const Request& request,
                   std::function<void()> wake)
    : shared_(std::move(shared)),
      head_(HeadOf(request)),
      channel_(OpenChannel(shared_, head_, std::move(wake))),
      style_(shared_->router.StyleOf(head_.path)),
      keep_alive_(request.keep_alive && !request.http_1_0) {
  const std::lock_guard lock(shared_->mutex);
  ++shared_->n_running;
}

Exchange::~Exchange() {
  if (is_running_) Abandon();
}

void Exchange::LeaveRunning() {
  is_running_ = false;
  const std::lock_guard lock(shared_->mutex);
  --shared_->n_running;
  shared_->changed.notify_all();
}

void Exchange::AddHeaders(Response& response) const {
  AddStandardHeaders(shared_->options, head_, response);
  if (style_ == nullptr || style_->request_id_header.empty()) return;
  SetHeader(response.headers, style_->request_id_header, head_.id);
}

void Exchange::SendWhole(Response response, OutputQueue& out) {
  if (style_ != nullptr && response.status >= 400) style_->rewrite_error(response, head_.id);
  status_ = response.status;
  error_code_ = response.error_code;
  AddHeaders(response);
  const auto body_bytes = static_cast<long long>(response.body.size());
  std::string bytes = SerializeHead(response, body_bytes, true, keep_alive_);
  if (!is_head_request() && response.status != 204 && response.status != 304) {
    if (response.body.size() < kCopiedBodyBytes) {
      bytes += response.body;
    } else {
      out.Push(std::move(bytes));
      bytes = std::move(response.body);
    }
  }
  out.Push(std::move(bytes));
}

void Exchange::BeginStream(Response response, std::optional<int64_t> length, OutputQueue& out) {
  status_ = response.status;
  is_stream_ = true;
  is_chunked_ = !length && !head_.http_1_0;
  last_stream_write_ = std::chrono::steady_clock::now();
  AddHeaders(response);
  out.Push(SerializeHead(response, length.value_or(-1), is_chunked_, keep_alive_));
  if (is_head_request()) {
    channel_->Disconnect();
    is_chunked_ = false;
  }
}

void Exchange::SendStreamBytes(std::string bytes, OutputQueue& out) {
  last_stream_write_ = std::chrono::steady_clock::now();
  if (is_chunked_) {
    const size_t n = bytes.size();
    // The channel counts a frame as sent with its first bytes; the error is small.
    bytes.insert(0, Hex(n) + "\r\n");
    bytes += "\r\n";
  }
  out.Push(std::move(bytes), channel_);
}

void Exchange::Finish(OutputQueue& out) {
  if (is_chunked_) out.Push("0\r\n\r\n");
  HasMemoryFor([&] { Report(status_); });
  LeaveRunning();
}

void Exchange::Abandon() {
  LeaveRunning();
  // Disconnect first: the producer's notes belong in the report.
  HasMemoryFor([&] { channel_->Disconnect(); });
  HasMemoryFor([&] { Report(499); });
}

void Exchange::Report(int status) {
  if (!shared_->policy.on_end) return;
  RequestSummary summary;
  summary.request_id = head_.id;
  summary.method = head_.method;
  if (route_ != nullptr) summary.route = route_->pattern;
  summary.path = head_.path;
  summary.remote = head_.remote;
  summary.status = status;
  summary.error_code = error_code_;
  summary.elapsed = std::chrono::steady_clock::now() - head_.received;
  summary.notes = channel_->TakeNotes();
  shared_->policy.on_end(summary);
}

}  // namespace tandem::server
