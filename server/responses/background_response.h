#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/keys/ownership.h"
#include "server/responses/response_store.h"

namespace tandem::server {

// A background response while it runs. Any thread. It ends once; later events and ends are ignored.
//
// The last event and the final body become visible together, when the store has them. So a reader
// that saw the end finds the same end after a restart.
class BackgroundResponse {
 public:
  // `record` is already in the store, not finished.
  explicit BackgroundResponse(StoredResponse record) : record_(std::move(record)) {}
  // A response that has ended, with its events.
  BackgroundResponse(StoredResponse record, std::vector<std::string> events);
  BackgroundResponse(const BackgroundResponse&) = delete;
  BackgroundResponse& operator=(const BackgroundResponse&) = delete;

  const std::string& id() const { return record_.id; }
  bool IsVisibleTo(const Viewer& viewer) const { return MaySee(viewer, record_.owner); }

  // Event n of the stream, as the JSON of one line.
  void Append(std::string event);
  // The response object of a running response.
  void SetBody(std::string body);
  // Ends the response: returns the record to store, with the last event. False: it has ended.
  bool BeginEnd(std::string last_event, std::string body, StoredResponse* record);
  // As BeginEnd for a response that fails outside of its renderer.
  bool BeginFailure(const std::string& message, StoredResponse* record);
  // Publishes the end. Call it after BeginEnd, when the store has the record or has failed.
  void EndNow();

  // Calls the function once, after the end; at once if it has ended. It must only post.
  void OnEnd(std::function<void()> callback);
  // `cancel` runs once, at the first call of Cancel, or at once if Cancel was called before.
  void SetCancel(std::function<void()> cancel);
  void Cancel();

  // The events from number `from` on, up to about `max_bytes`, and whether no more will follow.
  struct Page {
    std::vector<std::string> events;
    bool is_last = false;
  };
  Page Read(size_t from, size_t max_bytes) const;
  std::string body() const;
  std::string input() const { return record_.input; }
  bool is_over() const;
  // Calls the function after each change until it expires. It must only post.
  void Subscribe(std::weak_ptr<std::function<void()>> on_change);

 private:
  enum class Phase { kRunning, kEnding, kOver };
  // REQUIRES: mutex_ held.
  bool BeginEndLocked(std::string last_event, std::string body, StoredResponse* record);
  void Tell();

  mutable std::mutex mutex_;  // guards the rest, but not the id, owner and input of record_
  Phase phase_ = Phase::kRunning;
  StoredResponse record_;
  std::string final_body_;
  std::vector<std::string> events_;
  bool is_cancelled_ = false;
  std::function<void()> cancel_;
  std::vector<std::weak_ptr<std::function<void()>>> subscribers_;
  std::vector<std::function<void()>> on_end_;
};

// The background responses that run, by id. Any thread.
class BackgroundResponses {
 public:
  void Add(std::shared_ptr<BackgroundResponse> response);
  // null if it does not run, or is not the viewer's.
  std::shared_ptr<BackgroundResponse> Find(const std::string& id, const Viewer& viewer) const;
  void Remove(const std::string& id);
  std::vector<std::shared_ptr<BackgroundResponse>> All() const;

 private:
  mutable std::mutex mutex_;  // guards running_
  std::map<std::string, std::shared_ptr<BackgroundResponse>> running_;
};

}  // namespace tandem::server
