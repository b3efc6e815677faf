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

// The cost and the end of one HTTP request for tokens: for the metrics, the log line and the key's
// limits. Thread-safe: engine events arrive on the engine thread, ends of prompts on the answer
// thread.
class GenerationTally {
 public:
  struct About {
    std::string model;
    uint64_t client = 0;
    int64_t n_prompts = 1;
    int64_t prompt_tokens = 0;
    int64_t charged_tokens = 0;
  };
  // Holds the writer weakly, because the writer's callbacks hold the tally.
  GenerationTally(About about, const std::shared_ptr<const ResponseWriter>& writer,
                  Admission& admission, std::shared_ptr<Metrics::RequestEnds> ends);

  // Call for each event of each prompt, before it is answered.
  void OnEvent(const engine::GenerationEvent& event);
  // A prompt has ended and its answer follows. `reason` is the API's finish reason, or "error".
  void OnPromptEnd(std::string_view reason);
  // The client has left: all open prompts count as aborted.
  void OnDisconnect();

 private:
  void NoteEnd(std::string_view reason);  // REQUIRES: mutex_ held

  const About about_;
  const std::weak_ptr<const ResponseWriter> writer_;
  Admission& admission_;
  const std::shared_ptr<Metrics::RequestEnds> ends_;

  std::mutex mutex_;             // guards the rest
  int64_t n_open_;               // prompts with an uncounted end
  int64_t n_in_engine_;          // prompts without their terminal event
  int64_t streamed_tokens_ = 0;  // in deltas of unfinished choices
  int64_t finished_tokens_ = 0;
  engine::RequestTimings timings_;  // maximum over the prompts
  bool may_retry_ = false;          // failed because the server is busy
};

}  // namespace tandem::server
