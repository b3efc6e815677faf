#include "server/responses/background_response.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace tandem::server {

BackgroundResponse::BackgroundResponse(StoredResponse record, std::vector<std::string> events)
    : phase_(Phase::kOver), record_(std::move(record)), events_(std::move(events)) {}

void BackgroundResponse::Append(std::string event) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kRunning) return;
    events_.push_back(std::move(event));
  }
  Tell();
}

void BackgroundResponse::SetBody(std::string body) {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kRunning) record_.body = std::move(body);
}

bool BackgroundResponse::BeginEndLocked(std::string last_event, std::string body,
                                        StoredResponse* record) {
  if (phase_ != Phase::kRunning) return false;
  phase_ = Phase::kEnding;
  final_body_ = std::move(body);
  events_.push_back(std::move(last_event));
  *record = record_;
  record->body = final_body_;
  record->is_finished = true;
  for (const std::string& event : events_) record->events += event + "\n";
  return true;
}

bool BackgroundResponse::BeginEnd(std::string last_event, std::string body,
                                  StoredResponse* record) {
  const std::lock_guard lock(mutex_);
  return BeginEndLocked(std::move(last_event), std::move(body), record);
}

bool BackgroundResponse::BeginFailure(const std::string& message, StoredResponse* record) {
  const std::lock_guard lock(mutex_);
  if (phase_ != Phase::kRunning) return false;
  std::string body = FailedBody(record_.body, message);
  std::string event = R"({"type":"response.failed","sequence_number":)" +
                      std::to_string(events_.size()) + R"(,"response":)" + body + "}";
  return BeginEndLocked(std::move(event), std::move(body), record);
}

void BackgroundResponse::EndNow() {
  std::function<void()> released;
  std::vector<std::function<void()>> on_end;
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kEnding) return;
    phase_ = Phase::kOver;
    record_.body = std::move(final_body_);
    record_.is_finished = true;
    released = std::exchange(cancel_, nullptr);
    on_end.swap(on_end_);
  }
  Tell();
  for (const auto& callback : on_end) callback();
}

void BackgroundResponse::OnEnd(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (phase_ != Phase::kOver) {
      on_end_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

void BackgroundResponse::SetCancel(std::function<void()> cancel) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_cancelled_) {
      if (phase_ == Phase::kRunning) cancel_ = std::move(cancel);
      return;
    }
  }
  cancel();
}

void BackgroundResponse::Cancel() {
  std::function<void()> cancel;
  {
    const std::lock_guard lock(mutex_);
    is_cancelled_ = true;
    cancel = std::exchange(cancel_, nullptr);
  }
  if (cancel) cancel();
}

BackgroundResponse::Page BackgroundResponse::Read(size_t from, size_t max_bytes) const {
  Page page;
  const std::lock_guard lock(mutex_);
  // The last event waits for the store.
  const size_t n_visible = events_.size() - (phase_ == Phase::kEnding ? 1 : 0);
  size_t n_bytes = 0;
  while (from < n_visible && n_bytes < max_bytes) {
    n_bytes += events_[from].size();
    page.events.push_back(events_[from++]);
  }
  page.is_last = phase_ == Phase::kOver && from >= n_visible;
  return page;
}

std::string BackgroundResponse::body() const {
  const std::lock_guard lock(mutex_);
  return record_.body;
}

bool BackgroundResponse::is_over() const {
  const std::lock_guard lock(mutex_);
  return phase_ == Phase::kOver;
}

void BackgroundResponse::Subscribe(std::weak_ptr<std::function<void()>> on_change) {
  const std::lock_guard lock(mutex_);
  std::erase_if(subscribers_, [](const auto& one) { return one.expired(); });
  subscribers_.push_back(std::move(on_change));
}

void BackgroundResponse::Tell() {
  std::vector<std::weak_ptr<std::function<void()>>> subscribers;
  {
    const std::lock_guard lock(mutex_);
    subscribers = subscribers_;
  }
  for (const auto& one : subscribers) {
    if (const auto alive = one.lock()) (*alive)();
  }
}

void BackgroundResponses::Add(std::shared_ptr<BackgroundResponse> response) {
  const std::lock_guard lock(mutex_);
  running_[response->id()] = std::move(response);
}

std::shared_ptr<BackgroundResponse> BackgroundResponses::Find(const std::string& id,
                                                              const Viewer& viewer) const {
  const std::lock_guard lock(mutex_);
  const auto found = running_.find(id);
  if (found == running_.end() || !found->second->IsVisibleTo(viewer)) return nullptr;
  return found->second;
}

void BackgroundResponses::Remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  running_.erase(id);
}

std::vector<std::shared_ptr<BackgroundResponse>> BackgroundResponses::All() const {
  std::vector<std::shared_ptr<BackgroundResponse>> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [id, response] : running_) all.push_back(response);
  return all;
}

}  // namespace tandem::server
