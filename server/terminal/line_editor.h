#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "server/terminal/edit_buffer.h"
#include "server/terminal/key_decoder.h"
#include "server/terminal/line_history.h"

namespace tandem::server {

// Words that may replace `text`, all beginning with it; empty: none.
using Completer = std::function<std::vector<std::string>(std::string_view text)>;

// Edits one text, which may have several lines, on a terminal in raw mode. Takes bytes and returns
// what to write, so it needs no terminal itself. Foreign and invisible characters of a paste are
// shown as in visible_text.h. One thread.
class LineEditor {
 public:
  // The history and the completer must outlive the editor.
  LineEditor(const LineHistory& history, Completer completer)
      : history_(history), completer_(std::move(completer)) {}

  enum class Outcome {
    kEditing,
    kEntered,
    kInterrupted,  // Ctrl-C
    kEnded,        // Ctrl-D in an empty text
    kSuspended,    // Ctrl-Z; the text stays
  };

  // Starts with an empty text. The prompts precede the first line and the others, and have as many
  // columns as bytes.
  void Begin(std::string prompt, std::string continuation);
  Outcome Feed(char byte);
  const std::string& text() const { return buffer_.text(); }

  // The bytes that change the last drawing into the present state, on a terminal of this size.
  std::string Draw(int columns, int lines);
  // The same, with the cursor below the text at the end: another output follows.
  std::string Leave(int columns);

 private:
  Outcome Act(const Key& key);
  void Complete();
  void GoInHistory(int direction);
  struct Picture;
  Picture Paint(size_t columns) const;

  const LineHistory& history_;
  const Completer completer_;
  KeyDecoder decoder_;
  EditBuffer buffer_;
  std::string prompt_;
  std::string continuation_;
  size_t place_ = 0;        // in the history; entries().size(): the new text
  std::string draft_;       // the new text while the history is shown
  size_t cursor_line_ = 0;  // line of the cursor in the last drawing
  bool clears_screen_ = false;
};

}  // namespace tandem::server
