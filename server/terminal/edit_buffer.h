#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::server {

// Text that is being edited, and a cursor in it. The cursor moves by grapheme clusters: a letter
// with its accents, or an emoji of several characters, is one step. Lines end with LF. One thread.
class EditBuffer {
 public:
  const std::string& text() const { return text_; }
  size_t cursor() const { return cursor_; }  // in bytes, between two clusters

  // Replaces the text; the cursor is at its end.
  void Set(std::string text);
  // REQUIRES: text is valid UTF-8.
  void Insert(std::string_view text);

  void MoveLeft() { cursor_ = Before(cursor_); }
  void MoveRight() { cursor_ = After(cursor_); }
  void MoveWordLeft() { cursor_ = WordBefore(cursor_); }
  void MoveWordRight() { cursor_ = WordAfter(cursor_); }
  // Within the line.
  void MoveHome() { cursor_ = LineBegin(cursor_); }
  void MoveEnd() { cursor_ = LineEnd(cursor_); }
  // To the same column of the next line, as far as possible. Return false on the first or last
  // line.
  bool MoveUp();
  bool MoveDown();

  void DeleteLeft() { Erase(Before(cursor_), cursor_); }
  void DeleteRight() { Erase(cursor_, After(cursor_)); }

  // Erased text is kept for Yank. At the end or beginning of a line these take the line break.
  void KillToEnd();
  void KillToBegin();
  void KillWordLeft() { Kill(WordBefore(cursor_), cursor_); }
  void KillWordRight() { Kill(cursor_, WordAfter(cursor_)); }
  void Yank() { Insert(killed_); }

 private:
  size_t LineBegin(size_t at) const;
  size_t LineEnd(size_t at) const;
  size_t Before(size_t at) const;
  size_t After(size_t at) const;
  size_t WordBefore(size_t at) const;
  size_t WordAfter(size_t at) const;
  // The place in the line from `begin` on at most this many columns to the right.
  size_t AtColumn(size_t begin, int64_t column) const;
  void Erase(size_t begin, size_t end);
  void Kill(size_t begin, size_t end);

  std::string text_;
  std::string killed_;
  size_t cursor_ = 0;
};

}  // namespace tandem::server
