#include "server/http/response_writer.h"

#include <mutex>
#include <utility>

#include "engine/base/out_of_memory.h"
#include "server/http/sse.h"

namespace tandem::server {

// Shared by all copies of a writer and its stream; its destruction means that all copies are gone.
struct EventStream::Guard {
  Guard(std::shared_ptr<ResponseChannel> the_channel,
        std::function<ResponseWriter::Abandoned()> the_make_abandoned)
      : channel(std::move(the_channel)), make_abandoned(std::move(the_make_abandoned)) {}
  ~Guard() {
    if (!HasMemoryFor([&] { EndAnswer(); })) channel->GiveUp();
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  void EndAnswer() {
    if (channel->disconnected()) return;
    if (!channel->has_begun()) {
      channel->Respond(make_abandoned().response);
    } else if (channel->is_streaming() && channel->has_length()) {
      channel->GiveUp();
    } else if (channel->is_streaming()) {
      channel->Append(make_abandoned().error_events);
      channel->Finish();
    }
  }

  Headers TakeHeaders() {
    const std::lock_guard lock(mutex);
    return std::exchange(headers, {});
  }

  const std::shared_ptr<ResponseChannel> channel;
  const std::function<ResponseWriter::Abandoned()> make_abandoned;
  std::mutex mutex;  // guards headers
  Headers headers;
};

void EventStream::Send(std::string_view data) const { guard_->channel->Append(SseData(data)); }

void EventStream::SendNamed(std::string_view event, std::string_view data) const {
  guard_->channel->Append(SseNamed(event, data));
}

void EventStream::SendLine(std::string_view json) const { guard_->channel->Append(JsonLine(json)); }

void EventStream::Close() const { guard_->channel->Finish(); }

bool EventStream::disconnected() const { return guard_->channel->disconnected(); }

void EventStream::OnBackpressure(std::function<void(bool)> callback) const {
  guard_->channel->OnBackpressure(std::move(callback));
}

void BodyStream::Send(std::string_view bytes) const { stream_.guard_->channel->Append(bytes); }

void BodyStream::GiveUp() const { stream_.guard_->channel->GiveUp(); }

bool BodyStream::disconnected() const { return stream_.disconnected(); }

void BodyStream::OnBackpressure(std::function<void(bool)> callback) const {
  stream_.OnBackpressure(std::move(callback));
}

ResponseWriter::ResponseWriter(std::shared_ptr<ResponseChannel> channel,
                               std::function<Abandoned()> make_abandoned)
    : guard_(std::make_shared<EventStream::Guard>(std::move(channel), std::move(make_abandoned))) {}

void ResponseWriter::AddHeader(std::string name, std::string value) const {
  const std::lock_guard lock(guard_->mutex);
  SetHeader(guard_->headers, name, std::move(value));
}

void ResponseWriter::Note(std::string_view name, LogValue value) const {
  guard_->channel->Note(name, std::move(value));
}

void ResponseWriter::Send(Response response) const {
  for (auto& header : guard_->TakeHeaders()) response.headers.push_back(std::move(header));
  guard_->channel->Respond(std::move(response));
}

void ResponseWriter::Json(int status, std::string body) const {
  Send(Response{status, std::move(body), "application/json", {}});
}

void ResponseWriter::Text(int status, std::string body) const {
  Send(Response{status, std::move(body), "text/plain; charset=utf-8", {}});
}

EventStream ResponseWriter::StartEventStream() const {
  return StartStream("text/event-stream; charset=utf-8");
}

EventStream ResponseWriter::StartLineStream() const { return StartStream("application/x-ndjson"); }

EventStream ResponseWriter::StartStream(std::string content_type) const {
  Response head;
  head.content_type = std::move(content_type);
  head.headers = guard_->TakeHeaders();
  head.headers.emplace_back("cache-control", "no-cache");
  head.headers.emplace_back("x-accel-buffering", "no");
  guard_->channel->BeginStream(std::move(head));
  return EventStream(guard_);
}

BodyStream ResponseWriter::StartBody(Response head, int64_t n_bytes) const {
  for (auto& header : guard_->TakeHeaders()) head.headers.push_back(std::move(header));
  guard_->channel->BeginBody(std::move(head), n_bytes);
  return BodyStream(EventStream(guard_));
}

void ResponseWriter::OnSilence(std::function<void()> send_ping) const {
  guard_->channel->OnSilence(std::move(send_ping));
}

void ResponseWriter::Post(std::function<void()> task) const {
  guard_->channel->Post(std::move(task));
}

bool ResponseWriter::disconnected() const { return guard_->channel->disconnected(); }

bool ResponseWriter::is_over() const { return guard_->channel->is_over(); }

void ResponseWriter::GiveUp() const { guard_->channel->GiveUp(); }

void ResponseWriter::OnDisconnect(std::function<void()> callback) const {
  guard_->channel->OnDisconnect(std::move(callback));
}

}  // namespace tandem::server
