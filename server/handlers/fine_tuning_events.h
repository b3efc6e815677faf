#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "server/jobs/job.h"

namespace tandem::server {

// What has happened in a fine-tuning job, as the API tells it: messages from the job's
// events.jsonl, a metrics event for each step (thinned where there are more than a thousand) and
// each evaluation from its metrics.jsonl. One thread.
class FineTuningEvents {
 public:
  // `steps` is how many the job will take.
  FineTuningEvents(const Job& job, int64_t steps);

  // Reads what has come since the last call, in pieces of a bounded size, and adds it in the order
  // of time. True if there is more to read at once.
  bool ReadMore(std::vector<nlohmann::ordered_json>* events);
  // The end of the job, once it has ended.
  static std::vector<nlohmann::ordered_json> EndEvents(const Job& job);

 private:
  nlohmann::ordered_json Event(const char* kind, int64_t number, int64_t created_at) const;
  bool ReadMessages(std::vector<nlohmann::ordered_json>* events);
  bool ReadMetrics(std::vector<nlohmann::ordered_json>* events);

  const Job job_;
  const int64_t steps_;
  int64_t messages_offset_ = 0;
  int64_t metrics_offset_ = 0;
  bool has_begun_ = false;
};

// What the rows of metrics.jsonl of a job that has ended come to.
struct FineTuningFigures {
  int64_t trained_tokens = 0;
  int64_t last_step = 0;                     // from 1
  double train_loss = 0;                     // of that step
  std::vector<nlohmann::ordered_json> rows;  // of every step and evaluation, as events' data
};
FineTuningFigures ReadFineTuningFigures(const Job& job, int64_t steps);

}  // namespace tandem::server
