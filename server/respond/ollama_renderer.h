#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/respond/answer_renderer.h"

namespace tandem::server {

// The parameters of an answer of Ollama's API besides ReplyShape.
struct OllamaReply {
  enum class Route { kChat, kGenerate };
  Route route = Route::kChat;
  std::string model;  // as the client has named it
  // The answer of /api/generate ends with the tokens of prompt and answer. REQUIRES:
  // ReplyShape::return_token_ids.
  bool has_context = false;
};

// Durations and counts of the last object. The time in the queue counts as `load_duration`.
void AppendOllamaCounts(std::string& out, const engine::RequestTimings& timings,
                        int64_t prompt_tokens, int64_t completion_tokens);

// Writes the answer of /api/chat and /api/generate: lines of JSON, or one object. A call is one
// part of a line when its arguments are complete; a call that the token limit has cut is left out.
class OllamaRenderer final : public AnswerRenderer {
 public:
  OllamaRenderer(ReplyShape shape, OllamaReply reply, ResponseWriter writer);

  // An object without text: the stream may hold nothing but such objects.
  bool has_pings() const override { return true; }
  void SendPing() override;

 private:
  struct Call {
    int index = 0;
    std::string id;
    std::string name;
    std::string arguments;
  };
  // The parts since the last line, or of the whole answer.
  struct Parts {
    std::string text;
    std::string thinking;
    std::string calls;  // JSON objects with commas between
  };

  void OnBegin() override;
  void OnPart(const engine::AnswerEvent& part) override;
  void OnDeltaEnd() override;
  void OnEnd(const AnswerEnd& end) override;
  void OnFailure(const ErrorReply& reply) override;

  void Handle(const engine::ReasoningPart& part) { parts_.thinking += part.text; }
  void Handle(const engine::TextPart& part) { parts_.text += part.text; }
  void Handle(const engine::CallBegin& call);
  void Handle(const engine::CallArguments& arguments);
  void Handle(const engine::CallEnd& call);
  void Handle(const engine::CallDropped& dropped);
  void Handle(const engine::AnswerFinish&) {}

  // Opens an object with the model, the time and the parts.
  std::string Head(const Parts& parts) const;
  // Appends the log-probabilities of the tokens since the last call.
  void AppendLogprobs(std::string& out);
  void SendLine(const Parts& parts);

  const OllamaReply reply_;
  Parts parts_;
  std::optional<Call> call_;  // being written
  std::optional<EventStream> stream_;
};

}  // namespace tandem::server
