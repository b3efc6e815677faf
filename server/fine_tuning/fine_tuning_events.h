#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "server/jobs/job.h"

namespace tandem::server {

// What has happened in a fine-tuning job, as the API tells it: messages from the job's
// events.jsonl, a metrics event for each step and each evaluation from its metrics.jsonl. Of more
// than a thousand steps about a thousand are told, the first and the last one done among them;
// messages and evaluations all are. A step that a restart has done twice is one event. One thread.
class FineTuningEvents {
 public:
  // `steps` is how many the job will take.
  FineTuningEvents(const Job& job, int64_t steps);

  // Reads what has come since the last call, in pieces of a bounded size, and adds it in the order
  // of time. True if there is more to read at once.
  bool ReadMore(std::vector<nlohmann::ordered_json>* events);
  // What comes behind all that was read, once the job has ended.
  std::vector<nlohmann::ordered_json> End(const Job& job);

 private:
  nlohmann::ordered_json Event(const char* kind, int64_t number, int64_t created_at) const;
  nlohmann::ordered_json MetricsEvent(const nlohmann::ordered_json& row,
                                      nlohmann::ordered_json data, int64_t offset) const;
  bool IsTold(int64_t step) const;
  bool ReadMessages(std::vector<nlohmann::ordered_json>* events);
  bool ReadMetrics(std::vector<nlohmann::ordered_json>* events);

  const Job job_;
  const int64_t steps_;
  int64_t messages_offset_ = 0;
  int64_t metrics_offset_ = 0;
  bool has_begun_ = false;
  int64_t last_step_ = 0;                       // whose figures were read
  int64_t last_evaluation_ = 0;                 // the same, by the steps before it
  std::vector<nlohmann::ordered_json> untold_;  // of the last step alone, where that was left out
};

// What the rows of metrics.jsonl of a job that has ended come to.
struct FineTuningFigures {
  int64_t trained_tokens = 0;
  int64_t last_step = 0;                     // from 1
  std::vector<nlohmann::ordered_json> rows;  // of every step and evaluation, as events' data
};
FineTuningFigures ReadFineTuningFigures(const Job& job, int64_t steps);

}  // namespace tandem::server
