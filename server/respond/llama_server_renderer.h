#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "server/respond/answer_renderer.h"

namespace tandem::server {

// The parameters of an answer of llama-server's /completion besides ReplyShape.
struct LlamaServerReply {
  std::string settings;         // `generation_settings`, a JSON object
  bool returns_tokens = false;  // in the body; a stream has them always
};

// Writes the answer of /completion and /infill: one object, or events with the growing text.
// REQUIRES: ReplyShape::return_token_ids for the tokens, and no answer options.
class LlamaServerRenderer final : public AnswerRenderer {
 public:
  LlamaServerRenderer(ReplyShape shape, LlamaServerReply reply, ResponseWriter writer);

 private:
  void OnBegin() override;
  void OnPart(const engine::AnswerEvent& part) override;
  void OnDeltaEnd() override;
  void OnEnd(const AnswerEnd& end) override;
  void OnFailure(const ErrorReply& reply) override;

  // Opens an object with the text and the tokens since the last one.
  std::string Head(bool with_tokens);
  void AppendEnd(std::string& out, const AnswerEnd& end) const;

  const LlamaServerReply reply_;
  std::string text_;          // since the last event
  size_t n_sent_tokens_ = 0;  // of token_ids()
  std::optional<EventStream> stream_;
};

}  // namespace tandem::server
