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
  if (options.tools != nullptr && !options.tools->raw_inputs().empty()) {
    raw_input_.emplace(options.tools->raw_inputs());
  }
}

// Reads the text between the thought and the end, which may be the input of a custom tool.
void AnswerParser::Content(const RawInputSplitter::Pieces& pieces) {
  input_.Append(pieces.text, pieces.token_ends);
  reader_->Read(input_, writer_);
  if (!pieces.name.empty()) {
    reader_->Finish(input_, writer_, false);
    writer_.Begin(pieces.name);
  }
  writer_.Input(pieces.input);
}

AnswerEvents AnswerParser::Push(std::string_view text, std::span<const size_t> token_ends) {
  AnswerEvents events;
  writer_.SetOut(&events);
  std::string content;
  std::vector<size_t> ends;
  if (splitter_) {
    ReasoningSplitter::Pieces pieces = splitter_->Push(text);
    writer_.Reasoning(pieces.reasoning);
    content = std::move(pieces.content);
    // The content is the end of the text that the splitter has read, so offsets count from the end.
    for (const size_t end : token_ends) {
      const size_t n_behind = text.size() - end;
      if (n_behind < content.size()) ends.push_back(content.size() - n_behind);
    }
    text = content;
    token_ends = ends;
  }
  if (raw_input_) {
    Content(raw_input_->Push(text, token_ends));
  } else {
    input_.Append(text, token_ends);
    reader_->Read(input_, writer_);
  }
  return events;
}

AnswerEvents AnswerParser::Finish(bool was_cut) {
  AnswerEvents events;
  writer_.SetOut(&events);
  std::string content;
  if (splitter_) {
    ReasoningSplitter::Pieces pieces = splitter_->Flush();
    writer_.Reasoning(pieces.reasoning);
    content = std::move(pieces.content);
  }
  if (raw_input_) {
    Content(raw_input_->Push(content, {}));
    Content(raw_input_->Flush());
  } else {
    input_.Append(content, {});
  }
  const bool is_in_input = raw_input_ && raw_input_->is_in_input();
  if (!is_in_input) reader_->Finish(input_, writer_, was_cut);
  if (is_in_input && !was_cut) writer_.End();
  writer_.Finish(was_cut);
  return events;
}

bool AnswerParser::holds() const {
  if (splitter_ && splitter_->holds()) return true;
  if (raw_input_ && raw_input_->holds()) return true;
  // The text of an open call has been sent as arguments.
  return !writer_.is_in_call() && (input_.holds() || writer_.holds());
}

bool AnswerParser::is_thinking() const {
  return splitter_ && splitter_->state() == ReasoningSplitter::State::kThinking;
}

}  // namespace tandem::engine
