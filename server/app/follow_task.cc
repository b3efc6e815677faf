#include "server/app/follow_task.h"

#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

namespace tandem::server {

FollowTask::FollowTask(RequestPool& pool, std::string name, std::function<void()> action)
    : pool_(pool), name_(std::move(name)), action_(std::move(action)) {}

void FollowTask::Post() {
  if (is_due_.exchange(true)) return;
  bool is_taken = false;
  UndoOnFailure([&] { is_taken = pool_.TryPost(0, [this] { Run(); }); }, [&] { is_due_ = false; });
  if (is_taken) return;
  is_due_ = false;
  throw Error(ErrorCode::kUnavailable, "too many tasks wait to follow the other replicas");
}

void FollowTask::Run() {
  is_due_ = false;  // before the action: a change that it does not see posts again
  if (const auto error = Attempt(action_)) {
    spdlog::warn("{}_not_followed reason=\"{}\"", name_, error->what());
  }
}

}  // namespace tandem::server
