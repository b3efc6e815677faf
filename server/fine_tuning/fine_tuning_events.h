#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "server/jobs/job.h"

namespace tandem::server {

// Reads the events of a fine-tuning job for the API. Messages come from its events.jsonl, and a
// metrics event per step and per evaluation from its metrics.jsonl. A job of more than 1,000 steps
// yields about 1,000 step events, including the first and the last; other events are all reported.
// A step that a resumed run repeats yields one event. For one thread.
class FineTuningEvents {
 public:
  // `steps`: total steps of the job.
  FineTuningEvents(const Job& job, int64_t steps);

  // Appends a bounded piece of the events written since the last call, sorted by time. Returns true
  // if more are ready. `is_over`: the job had ended before this call, so an unterminated last line
  // is complete.
  bool ReadMore(bool is_over, std::vector<nlohmann::ordered_json>* events);
  // Returns the final events of a job that has ended; empty before its end. Call after ReadMore has
  // returned false.
  std::vector<nlohmann::ordered_json> End(const Job& job);

 private:
  nlohmann::ordered_json Event(const char* kind, int64_t number, int64_t created_at) const;
  nlohmann::ordered_json MetricsEvent(const nlohmann::ordered_json& row,
                                      nlohmann::ordered_json data, int64_t offset) const;
  bool IsTold(int64_t step) const;
  bool ReadMessages(bool is_over, std::vector<nlohmann::ordered_json>* events);
  bool ReadMetrics(bool is_over, std::vector<nlohmann::ordered_json>* events);

  const Job job_;
  const int64_t steps_;
  int64_t messages_offset_ = 0;
  int64_t metrics_offset_ = 0;
  bool has_begun_ = false;
  int64_t last_step_ = 0;                       // last step read, from 1
  int64_t last_evaluation_ = 0;                 // step of the last evaluation read
  std::vector<nlohmann::ordered_json> untold_;  // event of the last step, if it was left out
};

// Totals and rows of a job's metrics.jsonl.
struct FineTuningFigures {
  int64_t trained_tokens = 0;
  int64_t last_step = 0;                     // from 1
  std::vector<nlohmann::ordered_json> rows;  // one per step and evaluation, as events' data
};
FineTuningFigures ReadFineTuningFigures(const Job& job, int64_t steps);

}  // namespace tandem::server
