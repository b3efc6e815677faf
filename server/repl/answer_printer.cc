#include "server/repl/answer_printer.h"

#include <string>

#include "server/terminal/terminal.h"

namespace tandem::server {

void AnswerPrinter::Show(std::string_view bytes) {
  if (bytes.empty()) return;
  write_(bytes);
  ends_line_ = bytes.back() == '\n';
}

void AnswerPrinter::Reasoning(std::string_view piece) {
  if (!target_.is_terminal) return;
  if (part_ != Part::kReasoning) {
    part_ = Part::kReasoning;
    write_(target_.has_colour ? kDim : std::string_view("[thinking] "));
  }
  Show(filter_.Feed(piece));
}

void AnswerPrinter::EndReasoning() {
  if (part_ != Part::kReasoning) return;
  Show(filter_.Finish());
  if (target_.has_colour) write_(kPlain);
  if (!ends_line_) Show("\n");
}

void AnswerPrinter::Text(std::string_view piece) {
  EndReasoning();
  part_ = Part::kText;
  if (target_.is_terminal) {
    Show(filter_.Feed(piece));
  } else {
    Show(piece);
  }
}

void AnswerPrinter::End() {
  EndReasoning();
  if (target_.is_terminal) Show(filter_.Finish());
  if (!ends_line_) Show("\n");
  part_ = Part::kNone;
  ends_line_ = true;
}

}  // namespace tandem::server
