#pragma once

#include <memory>
#include <optional>

#include "engine/chat/answers/answer_reader.h"
#include "engine/chat/answers/call_body.h"

namespace tandem::engine {

// Reads harmony. An answer is a list of messages. Each has a channel and perhaps a recipient:
//
//   <|channel|>analysis<|message|>thought<|end|><|start|>assistant<|channel|>final<|message|>text
//   <|start|>assistant<|channel|>commentary to=functions.f<|message|>{"k": 1}<|call|>
//
// The channel `analysis` is reasoning, a message to a declared function is a call, and every other
// message is text. The prompt may end within the first header.
class HarmonyReader : public AnswerReader {
 public:
  void Read(AnswerInput& input, AnswerWriter& writer) override;
  void Finish(AnswerInput& input, AnswerWriter& writer, bool was_cut) override;

 private:
  enum class State { kBeginning, kHeader, kBody, kBetween };
  enum class Kind { kText, kReasoning, kCall };

  // Each returns whether it made progress.
  bool ReadBeginning(AnswerInput& input, AnswerWriter& writer);
  bool ReadHeader(AnswerInput& input, AnswerWriter& writer);
  bool ReadBody(AnswerInput& input, AnswerWriter& writer);
  void BeginBody(std::string_view header, const AnswerWriter& writer);
  bool ReadCall(AnswerInput& input, AnswerWriter& writer);

  State state_ = State::kBeginning;
  Kind kind_ = Kind::kText;
  std::optional<ArgumentsBody> call_;
};

}  // namespace tandem::engine
