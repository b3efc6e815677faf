#include "server/terminal/line_editor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace tandem::server {
namespace {

using Outcome = LineEditor::Outcome;

constexpr int kColumns = 20;
constexpr int kLines = 5;

std::vector<std::string> NoWords(std::string_view) { return {}; }

// The little of a terminal that the editor needs: text, CR, LF and four sequences.
class Screen {
 public:
  void Write(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (bytes[i] == '\r') {
        column_ = 0;
      } else if (bytes[i] == '\n') {
        ++row_;
      } else if (bytes[i] == '\x1b') {
        const size_t end = bytes.find_first_of("ACJH", i);
        Sequence(bytes.substr(i + 2, end - i - 2), bytes[end]);
        i = end;
      } else {
        Put(bytes[i]);
      }
    }
  }
  // The rows, with '|' at the cursor.
  std::string Text() {
    std::string text;
    for (size_t i = 0; i < rows_.size(); ++i) {
      std::string row = rows_[i];
      if (i == row_) {
        row.resize(std::max(row.size(), column_), ' ');
        row.insert(column_, "|");
      }
      text += (i == 0 ? "" : "\n") + row;
    }
    return text;
  }

 private:
  void Sequence(std::string_view number, char kind) {
    const size_t n = number.empty() ? 1 : std::stoul(std::string(number));
    if (kind == 'A') row_ -= std::min(n, row_);
    if (kind == 'C') column_ += n;
    if (kind == 'J' && number == "2") rows_ = {""};
    if (kind == 'J' && number.empty()) {
      rows_.resize(std::max(rows_.size(), row_ + 1));
      rows_.resize(row_ + 1);
      rows_[row_].resize(std::min(rows_[row_].size(), column_));
    }
    if (kind == 'H') row_ = column_ = 0;
  }
  void Put(char c) {
    rows_.resize(std::max(rows_.size(), row_ + 1));
    rows_[row_].resize(std::max(rows_[row_].size(), column_ + 1), ' ');
    rows_[row_][column_++] = c;
  }

  std::vector<std::string> rows_ = {""};
  size_t row_ = 0;
  size_t column_ = 0;
};

struct EditedLine {
  explicit EditedLine(std::vector<std::string> earlier = {}, Completer completer = NoWords) {
    for (const std::string& entry : earlier) history.Add(entry);
    editor.emplace(history, std::move(completer));
    editor->Begin(">>> ", "... ");
    screen.Write(editor->Draw(kColumns, kLines));
  }
  Outcome Type(std::string_view bytes) {
    Outcome outcome = Outcome::kEditing;
    for (const char byte : bytes) outcome = editor->Feed(byte);
    screen.Write(editor->Draw(kColumns, kLines));
    return outcome;
  }

  LineHistory history;
  std::optional<LineEditor> editor;
  Screen screen;
};

TEST(LineEditor, ShowsTheTextAndTheCursor) {
  EditedLine line;
  line.Type("hello");
  EXPECT_EQ(line.screen.Text(), ">>> hello|");
  line.Type("\x1b[D\x1b[DX");
  EXPECT_EQ(line.screen.Text(), ">>> helX|lo");
  line.Type("\x01");
  EXPECT_EQ(line.screen.Text(), ">>> |helXlo");
  EXPECT_EQ(line.Type("\r"), Outcome::kEntered);
  EXPECT_EQ(line.editor->text(), "helXlo");
}

TEST(LineEditor, WrapsLongLinesBeforeTheLastColumn) {
  EditedLine line;
  line.Type("0123456789abcdefghij");
  EXPECT_EQ(line.screen.Text(), ">>> 0123456789abcde\nfghij|");
  line.Type("\x01");
  EXPECT_EQ(line.screen.Text(), ">>> |0123456789abcde\nfghij");
  line.Type("\x0b");
  EXPECT_EQ(line.screen.Text(), ">>> |");
}

TEST(LineEditor, AWideCharacterIsNeverSplitOverTwoRows) {
  EditedLine line;
  line.Type("0123456789abcd你");
  const std::string drawn = line.editor->Draw(kColumns, kLines);
  EXPECT_NE(drawn.find("abcd\r\n你"), std::string::npos) << drawn;
  EXPECT_TRUE(drawn.ends_with("\r\x1b[2C")) << drawn;
}

TEST(LineEditor, APasteOfSeveralLinesIsEditedBeforeItIsSent) {
  EditedLine line;
  EXPECT_EQ(line.Type("\x1b[200~one\rtwo\x1b[201~"), Outcome::kEditing);
  EXPECT_EQ(line.screen.Text(), ">>> one\n... two|");
  line.Type("\x1b[A!");
  EXPECT_EQ(line.screen.Text(), ">>> one!|\n... two");
  EXPECT_EQ(line.Type("\r"), Outcome::kEntered);
  EXPECT_EQ(line.editor->text(), "one!\ntwo");
}

TEST(LineEditor, ATextHigherThanTheScreenShowsTheRowsAtTheCursor) {
  EditedLine line;
  line.Type("\x1b[200~1\r2\r3\r4\r5\r6\r7\x1b[201~");
  EXPECT_EQ(line.screen.Text(), "... 3\n... 4\n... 5\n... 6\n... 7|");
  line.Type("\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A\x1b[A");
  EXPECT_EQ(line.screen.Text(), ">>> 1|\n... 2\n... 3\n... 4\n... 5");
}

TEST(LineEditor, PastedEscapesAndDirectionMarksAreShownNotObeyed) {
  EditedLine line;
  line.Type("\x1b[200~a\u202E\u009B2J\x1b[201~");
  EXPECT_EQ(line.screen.Text(), ">>> a<U+202E>\n<U+009B>2J|");
}

TEST(LineEditor, UpAndDownGoThroughTheHistoryAndKeepTheDraft) {
  EditedLine line({"first", "second"});
  line.Type("dra");
  line.Type("\x1b[A");
  EXPECT_EQ(line.editor->text(), "second");
  line.Type("\x1b[A\x1b[A");
  EXPECT_EQ(line.editor->text(), "first");
  line.Type("\x1b[B\x1b[B");
  EXPECT_EQ(line.editor->text(), "dra");
  line.Type("\x1b[B");
  EXPECT_EQ(line.editor->text(), "dra");
}

TEST(LineEditor, ControlDDeletesInATextAndEndsAnEmptyOne) {
  EditedLine line;
  EXPECT_EQ(line.Type("ab\x01\x04"), Outcome::kEditing);
  EXPECT_EQ(line.editor->text(), "b");
  EXPECT_EQ(line.Type("\x04\x04"), Outcome::kEnded);
  EXPECT_EQ(line.Type("x\x03"), Outcome::kInterrupted);
  EXPECT_EQ(line.Type("\x1a"), Outcome::kSuspended);
}

TEST(LineEditor, TabCompletesCommonBeginnings) {
  const auto words = [](std::string_view text) {
    std::vector<std::string> found;
    for (const std::string word : {"/save", "/set", "/help"}) {
      if (word.starts_with(text)) found.push_back(word);
    }
    return found;
  };
  EditedLine line({}, words);
  line.Type("/h\t");
  EXPECT_EQ(line.editor->text(), "/help ");
  line.Type("\x15/\t");
  EXPECT_EQ(line.editor->text(), "/");
  line.Type("s\t");
  EXPECT_EQ(line.editor->text(), "/s");
  line.Type(
      "\x15"
      "a\tb");
  EXPECT_EQ(line.editor->text(), "a\tb");
  EXPECT_EQ(line.screen.Text(), ">>> a    b|");
}

TEST(LineEditor, LeavesTheWholeTextAboveTheCursor) {
  EditedLine line;
  line.Type("0123456789abcdefghij\x01");
  line.screen.Write(line.editor->Leave(kColumns));
  line.screen.Write("answer");
  EXPECT_EQ(line.screen.Text(), ">>> 0123456789abcde\nfghij\nanswer|");
}

}  // namespace
}  // namespace tandem::server
