#pragma once

#include <memory>

#include "engine/chat/answers/answer_reader.h"
#include "engine/chat/answers/call_body.h"

namespace tandem::engine {

// Reads formats with calls inside the text: behind an opening mark, or at the beginning.
class CallReader : public AnswerReader {
 public:
  explicit CallReader(const ToolFormat& format);
  void Read(AnswerInput& input, AnswerWriter& writer) override;
  void Finish(AnswerInput& input, AnswerWriter& writer, bool was_cut) override;

 private:
  enum class State {
    kBeginning,  // only white space so far; the format has calls here only
    kText,       // looking for the opening mark
    kBlock,      // behind it, or between the calls of a list
    kCall,
    kAfterCall,       // the closing mark or a separator may follow
    kAfterSeparator,  // another call may follow
    kRest,            // no call can follow
  };

  // Each returns whether it made progress.
  bool Step(AnswerInput& input, AnswerWriter& writer);
  bool ReadBeginning(AnswerInput& input, AnswerWriter& writer);
  bool ReadText(AnswerInput& input, AnswerWriter& writer);
  bool ReadBlock(AnswerInput& input, AnswerWriter& writer);
  bool ReadCall(AnswerInput& input, AnswerWriter& writer);
  bool ReadAfterCall(AnswerInput& input, AnswerWriter& writer);
  bool ReadAfterSeparator(AnswerInput& input, AnswerWriter& writer);
  bool BeginCall();
  // Makes the taken text an ordinary part of the answer.
  bool MakeText(AnswerInput& input, AnswerWriter& writer);
  State text_state() const { return format_.only_at_beginning ? State::kRest : State::kText; }

  const ToolFormat& format_;
  State state_;
  std::unique_ptr<CallBody> body_;
  bool is_in_list_ = false;
  int n_in_block_ = 0;
};

}  // namespace tandem::engine
