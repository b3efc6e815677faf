#include "server/http/response_channel.h"

#include <algorithm>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/out_of_memory.h"

namespace tandem::server {

ResponseChannel::ResponseChannel(size_t max_unsent_bytes, std::function<void()> wake,
                                 TaskRunner run_tasks)
    : max_unsent_bytes_(max_unsent_bytes),
      wake_(std::move(wake)),
      run_tasks_(std::move(run_tasks)) {}

void ResponseChannel::Wake() {
  {
    const std::lock_guard lock(mutex_);
    if (runs_tasks_) {
      owes_wake_ = true;
      return;
    }
  }
  wake_();
}

bool ResponseChannel::Respond(Response response) {
  std::function<void()> released;  // destroyed outside the lock: it may own the producer
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kWaiting || disconnected_) return false;
    phase_ = Phase::kFinished;
    head_ = std::move(response);
    released = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
  }
  Wake();
  return true;
}

bool ResponseChannel::BeginStream(Response head) { return Begin(std::move(head), std::nullopt); }

bool ResponseChannel::BeginBody(Response head, int64_t n_bytes) {
  TANDEM_CHECK(n_bytes > 0);
  return Begin(std::move(head), n_bytes);
}

bool ResponseChannel::Begin(Response head, std::optional<int64_t> length) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kWaiting || disconnected_) return false;
    phase_ = Phase::kStreaming;
    length_ = length;
    bytes_to_come_ = length.value_or(0);
    head.body.clear();
    head_ = std::move(head);
    head_is_stream_ = true;
  }
  Wake();
  return true;
}

void ResponseChannel::Append(std::string_view text) {
  if (text.empty()) return;
  bool needs_wake = false;
  bool give_up = false;
  bool was_last = false;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming || disconnected_) return;
    needs_wake = pending_.empty();  // otherwise a signal is already pending
    pending_.append(text);
    unsent_bytes_ += text.size();
    if (unsent_bytes_ > max_unsent_bytes_) paused_ = true;
    if (length_) {
      bytes_to_come_ -= static_cast<int64_t>(text.size());
      TANDEM_CHECK(bytes_to_come_ >= 0);
      was_last = bytes_to_come_ == 0;
    }
    give_up = unsent_bytes_ > 4 * max_unsent_bytes_ && !on_backpressure_;
  }
  if (was_last) return Finish();
  TellProducer();
  if (give_up) Disconnect();
  if (needs_wake || give_up) Wake();
}

void ResponseChannel::Finish() {
  std::function<void()> released;
  std::function<void(bool)> released_backpressure;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kStreaming) return;
    phase_ = Phase::kFinished;
    released = std::move(on_disconnect_);
    released_backpressure = std::move(on_backpressure_);
    on_disconnect_ = nullptr;
    on_backpressure_ = nullptr;
  }
  Wake();
}

void ResponseChannel::GiveUp() {
  // The callback can lack memory; the producer's further output is dropped in any case.
  HasMemoryFor([&] { Disconnect(); });
  Wake();
}

bool ResponseChannel::has_length() const {
  const std::lock_guard lock(mutex_);
  return length_.has_value();
}

bool ResponseChannel::has_begun() const {
  const std::lock_guard lock(mutex_);
  return phase_ != Phase::kWaiting;
}

bool ResponseChannel::is_streaming() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kStreaming;
}

bool ResponseChannel::disconnected() const {
  const std::lock_guard lock(mutex_);
  return disconnected_;
}

bool ResponseChannel::is_over() const {
  const std::lock_guard lock(mutex_);
  return disconnected_ || phase_ == Phase::kFinished;
}

void ResponseChannel::OnDisconnect(std::function<void()> callback) {
  std::function<void()> replaced;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kFinished) return;
    if (!disconnected_) {
      replaced = std::exchange(on_disconnect_, std::move(callback));
      return;
    }
  }
  callback();
}

void ResponseChannel::OnBackpressure(std::function<void(bool)> callback) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kFinished) on_backpressure_ = std::move(callback);
}

void ResponseChannel::OnSilence(std::function<void()> callback) {
  std::function<void()> replaced;  // destroyed outside the lock
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kFinished) replaced = std::exchange(on_silence_, std::move(callback));
}

bool ResponseChannel::RequestPing() {
  std::function<void()> callback;
  {
    const std::lock_guard lock(mutex_);
    callback = on_silence_;
  }
  if (!callback) return false;
  Post(std::move(callback));
  return true;
}

// Without one of its tasks an answer would be wrong or never end, so out of memory gives it up.
void ResponseChannel::Post(std::function<void()> task) {
  const bool is_posted = HasMemoryFor([&] {
    {
      const std::lock_guard lock(mutex_);
      if (disconnected_) return;
      tasks_.push_back(std::move(task));
      if (tasks_.size() > 1) return;  // a call of RunTasks is already pending
    }
    run_tasks_(shared_from_this());
  });
  if (!is_posted) GiveUp();
}

void ResponseChannel::Note(std::string_view name, LogValue value) {
  const std::lock_guard lock(mutex_);
  for (auto& [noted, old] : notes_) {
    if (noted == name) {
      old = std::move(value);
      return;
    }
  }
  notes_.emplace_back(name, std::move(value));
}

LogFields ResponseChannel::TakeNotes() {
  const std::lock_guard lock(mutex_);
  return std::exchange(notes_, {});
}

void ResponseChannel::RunTasks(std::vector<std::function<void()>>& ran) {
  {
    const std::lock_guard lock(mutex_);
    ran.swap(tasks_);
    runs_tasks_ = true;
  }
  const std::exception_ptr fault = FaultOf([&] {
    for (const auto& task : ran) task();
  });
  EndTasks();
  if (fault) std::rethrow_exception(fault);
}

void ResponseChannel::EndTasks() {
  bool owes_wake = false;
  {
    const std::lock_guard lock(mutex_);
    runs_tasks_ = false;
    owes_wake = std::exchange(owes_wake_, false);
  }
  if (owes_wake) wake_();
}

ResponseChannel::Output ResponseChannel::Take() {
  Output out;
  const std::lock_guard lock(mutex_);
  if (head_) {
    out.head = std::move(head_);
    out.is_stream = head_is_stream_;
    out.length = length_;
    head_.reset();
  }
  out.bytes = std::exchange(pending_, {});
  out.finished = phase_ == Phase::kFinished;
  return out;
}

void ResponseChannel::Sent(size_t body_bytes) {
  {
    const std::lock_guard lock(mutex_);
    unsent_bytes_ -= std::min(unsent_bytes_, body_bytes);
    if (unsent_bytes_ <= max_unsent_bytes_ / 2) paused_ = false;
  }
  TellProducer();
}

void ResponseChannel::TellProducer() {
  for (;;) {
    std::function<void(bool)> tell;
    bool is_paused = false;
    {
      const std::lock_guard lock(mutex_);
      if (is_telling_ || told_paused_ == paused_) return;
      is_telling_ = true;
      told_paused_ = is_paused = paused_;
      tell = on_backpressure_;
    }
    if (tell) tell(is_paused);
    const std::lock_guard lock(mutex_);
    is_telling_ = false;
  }
}

void ResponseChannel::Disconnect() {
  std::function<void()> callback;
  std::function<void(bool)> released;
  std::vector<std::function<void()>> dropped;  // may own the producer, like the callbacks
  {
    const std::lock_guard lock(mutex_);
    if (disconnected_) return;
    disconnected_ = true;
    dropped.swap(tasks_);
    pending_.clear();
    callback = std::move(on_disconnect_);
    released = std::move(on_backpressure_);
    on_disconnect_ = nullptr;
    on_backpressure_ = nullptr;
  }
  if (callback) callback();
}

void ResponseChannel::Abort(Response response, std::string_view error_events) {
  if (is_streaming() && has_length()) return GiveUp();
  std::function<void()> callback;
  std::function<void(bool)> released;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kFinished || disconnected_) return;
    if (phase_ == Phase::kWaiting) {
      head_ = std::move(response);
    } else {
      pending_.append(error_events);
    }
    phase_ = Phase::kFinished;
    callback = std::move(on_disconnect_);
    released = std::move(on_backpressure_);
    on_disconnect_ = nullptr;
    on_backpressure_ = nullptr;
  }
  if (callback) callback();
  Wake();
}

}  // namespace tandem::server
