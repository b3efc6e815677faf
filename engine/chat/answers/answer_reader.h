#pragma once

#include <memory>

#include "engine/chat/answers/answer_input.h"
#include "engine/chat/answers/answer_writer.h"
#include "engine/chat/answers/tool_format.h"

namespace tandem::engine {

// Finds the calls of one format in the text of an answer. All other text passes unchanged.
class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  // Reads as much of the input as is certain.
  virtual void Read(AnswerInput& input, AnswerWriter& writer) = 0;
  // Reads the rest: nothing follows. `was_cut`: the token limit ended the answer.
  virtual void Finish(AnswerInput& input, AnswerWriter& writer, bool was_cut) = 0;
};

// A null format reads text only.
std::unique_ptr<AnswerReader> MakeAnswerReader(const ToolFormat* format);

// Ends what is open at the end of an answer: a call that was cut stays open, another one is
// dropped, and all unread text is text.
void FinishOpen(AnswerInput& input, AnswerWriter& writer, bool was_cut);

}  // namespace tandem::engine
