#pragma once

#include <optional>
#include <string>

#include "server/terminal/line_editor.h"

namespace tandem::server {

// Reads what a user types. Edits on a terminal; reads plain lines, without prompts, where the input
// or the output is none or TERM is `dumb`. One thread.
class LineReader {
 public:
  // The history must outlive the reader. Prompts go to `output`.
  LineReader(int input, int output, const LineHistory& history, Completer completer);

  struct Line {
    std::string text;
    bool is_interrupted = false;  // Ctrl-C; `text` is what it discards
  };
  // Returns nullopt at the end of the input. Throws kIo.
  std::optional<Line> Read(const std::string& prompt, const std::string& continuation);

  bool can_edit() const { return can_edit_; }

 private:
  std::optional<Line> Edit(const std::string& prompt, const std::string& continuation);
  std::optional<Line> ReadPlain();
  // Returns false at the end of the input.
  bool Fill();
  void Write(const std::string& bytes) const;

  const int input_;
  const int output_;
  const bool can_edit_;
  LineEditor editor_;
  std::string unread_;
};

}  // namespace tandem::server
