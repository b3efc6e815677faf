#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "server/admission/admission.h"
#include "server/http/response_writer.h"
#include "server/metrics/metrics.h"

namespace tandem::server {

// What one HTTP request for tokens has cost and how it ended: for the metrics, for the log line,
// and for the limits of its key. Thread-safe: its engine events come on the engine thread, the ends
// of its prompts on the connection's strand.
class GenerationTally {
 public:
  struct About {
    std::string model;
    uint64_t client = 0;
    int64_t n_prompts = 1;
    int64_t prompt_tokens = 0;
    int64_t charged_tokens = 0;
  };
  // The writer is held weakly, for what it calls back holds the tally.
  GenerationTally(About about, const std::shared_ptr<const ResponseWriter>& writer,
                  Admission& admission, std::shared_ptr<Metrics::RequestEnds> ends);

  // Each event of each prompt, before it is answered.
  void OnEvent(const engine::GenerationEvent& event);
  // A prompt has ended and is about to be answered so. `reason` as in the API, or "error".
  void OnPromptEnd(std::string_view reason);
  // The client has left: what has not ended by now was aborted.
  void OnDisconnect();

 private:
  void NoteEnd(std::string_view reason);  // REQUIRES: mutex_ held

  const About about_;
  const std::weak_ptr<const ResponseWriter> writer_;
  Admission& admission_;
  const std::shared_ptr<Metrics::RequestEnds> ends_;

  std::mutex mutex_;             // guards the rest
  int64_t n_open_;               // prompts whose end has not been counted
  int64_t n_in_engine_;          // prompts whose terminal event has not come
  int64_t streamed_tokens_ = 0;  // of choices that have not finished, in deltas
  int64_t finished_tokens_ = 0;
  engine::RequestTimings timings_;  // the longest of the prompts'
  bool may_retry_ = false;          // it failed because the server is busy
};

}  // namespace tandem::server
