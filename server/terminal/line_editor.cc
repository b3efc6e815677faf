#include "server/terminal/line_editor.h"

#include <algorithm>
#include <utility>

#include "engine/base/utf8.h"
#include "server/terminal/display_width.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Kind = Key::Kind;

constexpr std::string_view kClearBelow = "\x1b[J";
constexpr std::string_view kClearAll = "\x1b[H\x1b[2J";
constexpr std::string_view kTabShown = "    ";

std::string CursorUp(size_t n) { return n == 0 ? "" : "\x1b[" + std::to_string(n) + "A"; }
std::string CursorRight(size_t n) { return n == 0 ? "" : "\x1b[" + std::to_string(n) + "C"; }

std::string ShownCharacter(std::string_view character) {
  return character == "\t" ? std::string(kTabShown) : VisibleLine(character);
}

// The longest common beginning of the words.
std::string CommonBeginning(const std::vector<std::string>& words) {
  std::string common = words.front();
  for (const std::string& word : words) {
    const auto [end, ignored] =
        std::mismatch(common.begin(), common.end(), word.begin(), word.end());
    common.erase(end, common.end());
  }
  return common;
}

}  // namespace

// The text as rows of the terminal.
struct LineEditor::Picture {
  std::vector<std::string> rows;
  size_t cursor_row = 0;
  size_t cursor_column = 0;
};

void LineEditor::Begin(std::string prompt, std::string continuation) {
  prompt_ = std::move(prompt);
  continuation_ = std::move(continuation);
  buffer_.Set("");
  place_ = history_.entries().size();
  draft_.clear();
  cursor_line_ = 0;
  clears_screen_ = false;
}

LineEditor::Outcome LineEditor::Feed(char byte) {
  const std::optional<Key> key = decoder_.Feed(byte);
  return key ? Act(*key) : Outcome::kEditing;
}

LineEditor::Outcome LineEditor::Act(const Key& key) {
  switch (key.kind) {
    case Kind::kText:
    case Kind::kPaste:
      buffer_.Insert(key.text);
      break;
    case Kind::kEnter:
      return Outcome::kEntered;
    case Kind::kNewLine:
      buffer_.Insert("\n");
      break;
    case Kind::kTab:
      Complete();
      break;
    case Kind::kLeft:
      buffer_.MoveLeft();
      break;
    case Kind::kRight:
      buffer_.MoveRight();
      break;
    case Kind::kUp:
      if (!buffer_.MoveUp()) GoInHistory(-1);
      break;
    case Kind::kDown:
      if (!buffer_.MoveDown()) GoInHistory(+1);
      break;
    case Kind::kHome:
      buffer_.MoveHome();
      break;
    case Kind::kEnd:
      buffer_.MoveEnd();
      break;
    case Kind::kWordLeft:
      buffer_.MoveWordLeft();
      break;
    case Kind::kWordRight:
      buffer_.MoveWordRight();
      break;
    case Kind::kBackspace:
      buffer_.DeleteLeft();
      break;
    case Kind::kDelete:
      buffer_.DeleteRight();
      break;
    case Kind::kKillToEnd:
      buffer_.KillToEnd();
      break;
    case Kind::kKillToBegin:
      buffer_.KillToBegin();
      break;
    case Kind::kKillWordLeft:
      buffer_.KillWordLeft();
      break;
    case Kind::kKillWordRight:
      buffer_.KillWordRight();
      break;
    case Kind::kYank:
      buffer_.Yank();
      break;
    case Kind::kInterrupt:
      return Outcome::kInterrupted;
    case Kind::kEndOfInput:
      if (buffer_.text().empty()) return Outcome::kEnded;
      buffer_.DeleteRight();
      break;
    case Kind::kClearScreen:
      clears_screen_ = true;
      break;
    case Kind::kSuspend:
      return Outcome::kSuspended;
  }
  return Outcome::kEditing;
}

void LineEditor::Complete() {
  const std::vector<std::string> words =
      completer_ ? completer_(buffer_.text()) : std::vector<std::string>();
  if (!words.empty()) {
    const std::string common = CommonBeginning(words);
    if (common.size() >= buffer_.text().size()) {
      buffer_.Set(words.size() == 1 ? words.front() + " " : common);
    }
  } else if (!buffer_.text().starts_with('/')) {
    buffer_.Insert("\t");
  }
}

void LineEditor::GoInHistory(int direction) {
  const std::vector<std::string>& entries = history_.entries();
  if (direction < 0 ? place_ == 0 : place_ >= entries.size()) return;
  if (place_ == entries.size()) draft_ = buffer_.text();
  place_ = direction < 0 ? place_ - 1 : place_ + 1;
  buffer_.Set(place_ == entries.size() ? draft_ : entries[place_]);
}

LineEditor::Picture LineEditor::Paint(size_t columns) const {
  Picture picture;
  picture.rows.push_back(prompt_);
  size_t column = prompt_.size();
  const std::string& text = buffer_.text();
  size_t i = 0;
  for (;;) {
    if (i == buffer_.cursor()) {
      picture.cursor_row = picture.rows.size() - 1;
      picture.cursor_column = column;
    }
    if (i >= text.size()) break;
    const size_t size = NextUtf8(std::string_view(text).substr(i)).size;
    const std::string_view character = std::string_view(text).substr(i, size);
    i += size;
    if (character == "\n") {
      picture.rows.push_back(continuation_);
      column = continuation_.size();
      continue;
    }
    const std::string shown = ShownCharacter(character);
    const auto width = static_cast<size_t>(DisplayWidth(shown));
    if (column + width > columns && column > 0) {
      // The cursor stands before this character, so it moves with it.
      const bool is_at_cursor = i - size == buffer_.cursor();
      picture.rows.emplace_back();
      column = 0;
      if (is_at_cursor) {
        picture.cursor_row = picture.rows.size() - 1;
        picture.cursor_column = 0;
      }
    }
    picture.rows.back() += shown;
    column += width;
  }
  return picture;
}

std::string LineEditor::Draw(int columns, int lines) {
  // Nothing is written to the last column: terminals differ about where the cursor is then.
  const Picture picture = Paint(static_cast<size_t>(std::max(columns - 1, 8)));
  const auto height = static_cast<size_t>(std::max(lines, 2));
  // A text of more rows than the screen shows those down to the cursor.
  const size_t n_shown = std::min(picture.rows.size(), height);
  const size_t begin = picture.cursor_row < n_shown ? 0 : picture.cursor_row - n_shown + 1;
  std::string out;
  if (std::exchange(clears_screen_, false)) {
    out += kClearAll;
  } else {
    out += "\r" + CursorUp(cursor_line_);
    out += kClearBelow;
  }
  for (size_t i = 0; i < n_shown; ++i) {
    if (i > 0) out += "\r\n";
    out += picture.rows[begin + i];
  }
  cursor_line_ = picture.cursor_row - begin;
  out += "\r" + CursorUp(n_shown - 1 - cursor_line_) + CursorRight(picture.cursor_column);
  return out;
}

std::string LineEditor::Leave(int columns) {
  // Terminals scroll: all rows are written once, the upper ones leave the screen.
  const Picture picture = Paint(static_cast<size_t>(std::max(columns - 1, 8)));
  std::string out = "\r" + CursorUp(cursor_line_);
  out += kClearBelow;
  for (const std::string& row : picture.rows) out += row + "\r\n";
  cursor_line_ = 0;
  return out;
}

}  // namespace tandem::server
