#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "server/http/response_writer.h"
#include "server/respond/choice_reader.h"
#include "server/respond/event_renderer.h"
#include "server/respond/reply_json.h"
#include "server/respond/reply_shape.h"
#include "server/wire/error_body.h"

namespace tandem::server {

// How an answer has ended.
struct AnswerEnd {
  engine::ChoiceFinished::Reason reason = engine::ChoiceFinished::Reason::kStop;
  std::string stop_string;  // the stop string that matched, if any
  bool has_calls = false;   // a call has ended, or the token limit has cut one
  engine::RequestTimings timings = {};
};

// The base of APIs whose answers have one prompt and one choice, such as Messages. It calls the
// functions of its subclass in this order: OnBegin once, OnPart for each part, OnDeltaEnd after the
// parts of a delta, OnEnd once. OnFailure may replace the rest, also before OnBegin. AnswerFinish
// is not a part here. Runs on the answer thread.
class AnswerRenderer : public EventRenderer {
 public:
  AnswerRenderer(ReplyShape shape, ResponseWriter writer);
  // Not copyable: json_ borrows shape_.
  AnswerRenderer(const AnswerRenderer&) = delete;
  AnswerRenderer& operator=(const AnswerRenderer&) = delete;

  void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) final;
  void On(size_t prompt_idx, engine::GenerationEvent event) final;

 protected:
  // The request runs and can no longer be refused: the head of a stream may be sent.
  virtual void OnBegin() = 0;
  virtual void OnPart(const engine::AnswerEvent& part) = 0;
  virtual void OnDeltaEnd() {}
  virtual void OnEnd(const AnswerEnd& end) = 0;
  virtual void OnFailure(const ErrorReply& reply) = 0;

  const ReplyShape& shape() const { return shape_; }
  const ResponseWriter& writer() const { return writer_; }
  // The counts so far; complete in OnEnd.
  const ReplyUsage& usage() const { return usage_; }
  // Starts the stream of the answer: a slow client pauses the generation.
  EventStream StartStream();
  // The same for lines of JSON. REQUIRES: has_pings().
  EventStream StartLineStream();
  // The log-probabilities of the tokens since the last call: JSON objects with commas between.
  std::string TakeLogprobs();
  // The tokens of the answer so far, with `return_token_ids`.
  const std::vector<TokenId>& token_ids() const { return token_ids_; }

 private:
  void Handle(engine::PromptScores&) {}
  void Handle(engine::Embedding&) {}
  void Handle(engine::NextTokenScores&) {}
  void Handle(engine::TextDelta& delta);
  void Handle(engine::ChoiceFinished& finished);
  void Handle(engine::RequestFinished& finished);
  void EnsureBegun();
  void Show(const engine::AnswerEvents& parts);
  void AddLogprobs(const engine::TextDelta& delta);

  const ReplyShape shape_;
  const ResponseWriter writer_;
  const ReplyJson json_;
  ChoiceReader reader_;
  ReplyUsage usage_;
  AnswerEnd end_;
  std::string logprobs_;
  std::vector<TokenId> token_ids_;
  std::function<void(bool)> set_paused_;
  bool has_begun_ = false;
  bool is_done_ = false;
};

}  // namespace tandem::server
