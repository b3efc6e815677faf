#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "server/launch/cluster.h"

namespace tandem::server {

// What a scheduler last said of all runs that this server watches: one question for all of them.
// Used by one thread.
class ClusterView {
 public:
  // `interval`: from an answer to the next question. A slow scheduler is asked less often, so that
  // its answers take at most a fifth of the thread's time.
  ClusterView(std::shared_ptr<Cluster> cluster, std::chrono::milliseconds interval)
      : cluster_(std::move(cluster)), interval_(interval) {}

  Cluster& cluster() { return *cluster_; }

  // Adds a job to the next questions, until as many calls of Forget.
  void Watch(const std::string& job) { ++watched_[job]; }
  void Forget(const std::string& job);

  // Asks again if it is time. Returns the number of the last question.
  int64_t Refresh();
  int64_t n_questions() const { return n_questions_; }
  // The runs of the job in the last answer; nullopt: the scheduler did not answer, or the question
  // was older than Watch.
  std::optional<std::vector<ClusterRun>> RunsOf(const std::string& job) const;

  // A run whose end was read. The scheduler may list it for a while.
  void MarkEnded(const std::string& id) { ended_.insert(id); }
  bool HasEnded(const std::string& id) const { return ended_.contains(id); }
  // The run of the job that waits or runs; null: none. Removes runs that have ended and are still
  // there, because their removal may have been lost.
  const ClusterRun* LiveRun(const std::vector<ClusterRun>& runs, const std::string& job);

 private:
  const std::shared_ptr<Cluster> cluster_;
  const std::chrono::milliseconds interval_;
  std::map<std::string, int> watched_;
  std::set<std::string> ended_;

  int64_t n_questions_ = 0;
  std::chrono::steady_clock::time_point next_question_{};
  std::set<std::string> asked_;  // the jobs of the last question; empty: it was not answered
  std::vector<ClusterRun> runs_;
};

}  // namespace tandem::server
