#include "engine/chat/answers/answer_parser.h"

#include <utility>

namespace tandem::engine {

AnswerParser::AnswerParser(const AnswerOptions& options)
    : input_(options.token_marks),
      writer_(options.tools,
              options.format != nullptr && !options.format->is_parallel ? 1 : options.max_calls,
              options.new_id),
      reader_(MakeAnswerReader(options.format)) {
  if (options.reasoning) splitter_.emplace(*options.reasoning);
}

AnswerEvents AnswerParser::Push(std::string_view text, std::span<const size_t> token_ends) {
  AnswerEvents events;
  writer_.SetOut(&events);
  if (!splitter_) {
    input_.Append(text, token_ends);
  } else {
    const ReasoningSplitter::Pieces pieces = splitter_->Push(text);
    writer_.Reasoning(pieces.reasoning);
    // The content is the end of what the splitter has read, so offsets count from the end.
    std::vector<size_t> ends;
    for (const size_t end : token_ends) {
      const size_t n_behind = text.size() - end;
      if (n_behind < pieces.content.size()) ends.push_back(pieces.content.size() - n_behind);
    }
    input_.Append(pieces.content, ends);
  }
  reader_->Read(input_, writer_);
  return events;
}

AnswerEvents AnswerParser::Finish(bool was_cut) {
  AnswerEvents events;
  writer_.SetOut(&events);
  if (splitter_) {
    const ReasoningSplitter::Pieces pieces = splitter_->Flush();
    writer_.Reasoning(pieces.reasoning);
    input_.Append(pieces.content, {});
  }
  reader_->Finish(input_, writer_, was_cut);
  writer_.Finish(was_cut);
  return events;
}

bool AnswerParser::holds() const {
  if (splitter_ && splitter_->holds()) return true;
  // The text of an open call has been sent as arguments.
  return !writer_.is_in_call() && (input_.holds() || writer_.holds());
}

bool AnswerParser::is_thinking() const {
  return splitter_ && splitter_->state() == ReasoningSplitter::State::kThinking;
}

}  // namespace tandem::engine
