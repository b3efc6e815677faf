#include "tests/support/engine_client.h"

#include <bit>
#include <utility>

namespace tandem::tests {

using engine::ChoiceFinished;
using engine::GenerationEvent;
using engine::PromptScores;
using engine::RequestFinished;
using engine::TextDelta;
using engine::TokenLogprob;

void PendingAnswer::Take(GenerationEvent event) {
  const std::lock_guard lock(mutex_);
  answer_.event_after_terminal = answer_.event_after_terminal || answer_.terminal_events > 0;
  if (auto* scores = std::get_if<PromptScores>(&event)) {
    answer_.scores_came_first = answer_.choices.empty() && !answer_.prompt_scores;
    answer_.prompt_scores = std::move(*scores);
  } else if (auto* embedding = std::get_if<engine::Embedding>(&event)) {
    answer_.embeddings.push_back(std::move(embedding->values));
  } else if (auto* next = std::get_if<engine::NextTokenScores>(&event)) {
    answer_.next_scores = std::move(next->tokens);
  } else if (auto* delta = std::get_if<TextDelta>(&event)) {
    Answer::Choice& choice = answer_.choices[delta->choice];
    choice.text += delta->text;
    choice.deltas.push_back(std::move(delta->text));
    choice.token_ids.insert(choice.token_ids.end(), delta->token_ids.begin(),
                            delta->token_ids.end());
    for (TokenLogprob& logprob : delta->logprobs) choice.logprobs.push_back(std::move(logprob));
  } else if (auto* finished = std::get_if<ChoiceFinished>(&event)) {
    answer_.choices[finished->choice].finished = std::move(*finished);
  } else {
    answer_.end = std::get<RequestFinished>(std::move(event));
    ++answer_.terminal_events;
  }
  changed_.notify_all();
}

Answer PendingAnswer::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return answer_.terminal_events > 0; });
  return answer_;
}

void PendingAnswer::WaitForFirstDelta() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !answer_.choices.empty() || answer_.terminal_events > 0; });
}

bool PendingAnswer::done() const {
  const std::lock_guard lock(mutex_);
  return answer_.terminal_events > 0;
}

std::shared_ptr<PendingAnswer> Start(engine::Engine& engine, engine::GenerationRequest request,
                                     int64_t max_waiting) {
  auto pending = std::make_shared<PendingAnswer>();
  engine.Check(request);
  std::vector<engine::GenerationRequest> requests;
  requests.push_back(std::move(request));
  std::vector<engine::EventSink> sinks;
  sinks.emplace_back(
      [pending](RequestId, GenerationEvent event) { pending->Take(std::move(event)); });
  pending->id = engine.SubmitAll(std::move(requests), std::move(sinks), max_waiting).front();
  return pending;
}

Answer Run(engine::Engine& engine, engine::GenerationRequest request) {
  return Start(engine, std::move(request))->Wait();
}

std::string Bits(const Answer& answer) {
  std::string out;
  const auto add = [&](const TokenLogprob& logprob) {
    out += std::to_string(logprob.token) + ":" +
           std::to_string(std::bit_cast<uint32_t>(logprob.logprob)) + "#" +
           std::to_string(logprob.rank);
    for (const auto& [token, value] : logprob.top) {
      out += "," + std::to_string(token) + ":" + std::to_string(std::bit_cast<uint32_t>(value));
    }
    out += ";";
  };
  if (answer.prompt_scores) {
    out += "prompt ";
    for (const TokenLogprob& logprob : answer.prompt_scores->tokens) add(logprob);
  }
  for (const TokenLogprob& logprob : answer.next_scores) add(logprob);
  for (const std::vector<float>& embedding : answer.embeddings) {
    out += "embedding ";
    for (const float value : embedding) out += std::to_string(std::bit_cast<uint32_t>(value)) + ",";
  }
  for (const auto& [index, choice] : answer.choices) {
    out += "\nchoice " + std::to_string(index) + " ";
    for (const TokenId token : choice.token_ids) out += std::to_string(token) + " ";
    for (const TokenLogprob& logprob : choice.logprobs) add(logprob);
    out += choice.text;
    if (choice.finished) {
      out += "|" + std::to_string(static_cast<int>(choice.finished->reason)) + "|" +
             choice.finished->stop_string + "|" +
             std::to_string(choice.finished->usage.completion_tokens);
    }
  }
  return out;
}

}  // namespace tandem::tests
