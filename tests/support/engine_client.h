#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tandem::tests {

// The whole answer to one request.
struct Answer {
  struct Choice {
    std::string text;
    std::vector<TokenId> token_ids;
    std::vector<engine::TokenLogprob> logprobs;
    std::vector<std::string> deltas;
    std::optional<engine::ChoiceFinished> finished;
  };
  std::map<int, Choice> choices;
  std::optional<engine::PromptScores> prompt_scores;
  std::vector<std::vector<float>> embeddings;     // of Embedding events
  std::vector<engine::TokenLogprob> next_scores;  // of a NextTokenScores event
  bool scores_came_first = true;
  int terminal_events = 0;
  bool event_after_terminal = false;
  engine::RequestFinished end;

  const Choice& only() const { return choices.at(0); }
};

// Collects one request's events; any thread may wait for the end.
class PendingAnswer {
 public:
  void Take(engine::GenerationEvent event);
  Answer Wait();             // until the terminal event
  void WaitForFirstDelta();  // or the terminal event
  bool done() const;

  RequestId id;  // set by Start, for its caller

 private:
  mutable std::mutex mutex_;  // guards answer_
  std::condition_variable changed_;
  Answer answer_;
};

std::shared_ptr<PendingAnswer> Start(engine::Engine& engine, engine::GenerationRequest request,
                                     int64_t max_waiting = 0);
Answer Run(engine::Engine& engine, engine::GenerationRequest request);

// Tokens, text, log-probability bits and finish reason of every choice, and the bits of embeddings,
// in one comparable string.
std::string Bits(const Answer& answer);

}  // namespace tandem::tests
