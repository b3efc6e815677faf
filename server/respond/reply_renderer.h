#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/http/response_writer.h"
#include "server/respond/choice_reader.h"
#include "server/respond/event_renderer.h"
#include "server/respond/reply_json.h"
#include "server/respond/reply_shape.h"
#include "server/wire/logprobs.h"

namespace tandem::server {

// The state of an answer in progress: events in, chunks or one body out. One thread at a time;
// GenerationReply ensures this.
class ReplyRenderer final : public EventRenderer {
 public:
  ReplyRenderer(ReplyShape shape, ResponseWriter writer);
  // Not copyable: json_ borrows shape_.
  ReplyRenderer(const ReplyRenderer&) = delete;
  ReplyRenderer& operator=(const ReplyRenderer&) = delete;

  // See GenerationReply::Begin.
  void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) override;
  void On(size_t prompt_idx, engine::GenerationEvent event) override;

 private:
  struct PromptState {
    std::vector<engine::TokenLogprob> scores;
    bool has_sent_extras = false;
  };
  struct ChoiceState {
    ChoiceState(const std::optional<engine::AnswerOptions>& answer, const TokenNames& names,
                int top_logprobs)
        : reader(answer), completion_logprobs(names, top_logprobs) {}

    bool has_begun = false;
    std::string text;
    std::string reasoning;
    std::vector<ToolCall> calls;  // of the body
    bool ends_with_calls = false;
    ChoiceReader reader;
    std::vector<TokenId> token_ids;  // for the body, or for the next chunk
    std::string chat_logprobs;       // entries, with commas
    CompletionLogprobs completion_logprobs;
    double sum_logprob = 0;
    int64_t n_tokens = 0;
    std::optional<engine::ChoiceFinished> finished;
  };

  // events
  void Handle(size_t prompt_idx, engine::PromptScores& scores);
  // Only the requests of a VectorRenderer get these two.
  void Handle(size_t, engine::Embedding&) {}
  void Handle(size_t, engine::NextTokenScores&) {}
  void Handle(size_t prompt_idx, engine::TextDelta& delta);
  void Handle(size_t prompt_idx, engine::ChoiceFinished& finished);
  void Handle(size_t prompt_idx, engine::RequestFinished& finished);
  void BeginStream();
  void BeginChoice(size_t prompt_idx, int choice_idx, ChoiceState& choice);
  void Show(size_t prompt_idx, int choice_idx, ChoiceState& choice,
            const engine::AnswerEvents& events);
  static void Keep(ChoiceState& choice, const engine::AnswerEvents& events);
  void CountTokens(ChoiceState& choice, int64_t n_tokens);
  void Complete();
  void ReportEnd(size_t prompt_idx, const engine::RequestFinished& finished) const;

  // the chunk or body in out_
  void BeginChunk(size_t prompt_idx, int choice);
  void FinishTextChunk(ChoiceState& choice, bool takes_tokens);
  void SendChunk(bool may_carry_extras = false);
  void AppendBodyChoice(size_t prompt_idx, int rank, int candidate);
  bool has_waiting_logprobs(const ChoiceState& choice) const;
  void TakeLogprobs(ChoiceState& choice);
  void TakeLogprobsObject(ChoiceState& choice);

  static bool IsFailure(const engine::GenerationEvent& event);
  std::vector<int> BestCandidates(size_t prompt_idx) const;
  size_t StateIndex(size_t prompt_idx, int choice) const;
  bool IsEndToken(TokenId id) const;
  bool is_chat() const { return shape_.kind == ReplyShape::Kind::kChat; }
  bool has_logprobs() const { return shape_.top_logprobs >= 0; }

  const ReplyShape shape_;
  const ResponseWriter writer_;
  const ReplyJson json_;
  std::string out_;  // the chunk or body being written
  ReplyUsage usage_;
  size_t n_open_prompts_;
  std::vector<PromptState> prompts_;
  std::vector<ChoiceState> choices_;  // prompt-major, n_candidates each
  std::function<void()> cancel_;
  std::function<void(bool)> set_paused_;
  std::optional<EventStream> stream_;
  bool is_done_ = false;
};

}  // namespace tandem::server
