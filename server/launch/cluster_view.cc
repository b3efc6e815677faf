#include "server/launch/cluster_view.h"

#include <algorithm>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"

namespace tandem::server {
namespace {

constexpr int kPauseOfAnswers = 4;  // times the time that the last answer took

}  // namespace

void ClusterView::Forget(const std::string& job) {
  const auto found = watched_.find(job);
  if (found != watched_.end() && --found->second == 0) watched_.erase(found);
}

int64_t ClusterView::Refresh() {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  if (watched_.empty() || begin < next_question_) return n_questions_;
  ++n_questions_;
  asked_.clear();
  runs_.clear();
  std::vector<std::string> jobs;
  for (const auto& [job, n] : watched_) jobs.push_back(job);
  const std::optional<Error> fault = ErrorOf([&] {
    runs_ = cluster_->List(jobs);
    asked_.insert(jobs.begin(), jobs.end());
  });
  if (fault) spdlog::debug("cluster question failed error=\"{}\"", fault->what());
  const Clock::time_point end = Clock::now();
  next_question_ = end + std::max<Clock::duration>(interval_, kPauseOfAnswers * (end - begin));
  return n_questions_;
}

std::optional<std::vector<ClusterRun>> ClusterView::RunsOf(const std::string& job) const {
  if (!asked_.contains(job)) return std::nullopt;
  std::vector<ClusterRun> out;
  for (const ClusterRun& run : runs_) {
    if (run.job == job) out.push_back(run);
  }
  return out;
}

const ClusterRun* ClusterView::LiveRun(const std::vector<ClusterRun>& runs,
                                       const std::string& job) {
  const ClusterRun* live = nullptr;
  for (const ClusterRun& run : runs) {
    if (run.job != job || run.state == ClusterRun::State::kEnding) continue;
    if (HasEnded(run.id)) {
      cluster_->Remove(run.id);
    } else if (live == nullptr) {
      live = &run;
    }
  }
  return live;
}

}  // namespace tandem::server
