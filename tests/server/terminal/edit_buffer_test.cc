#include "server/terminal/edit_buffer.h"

#include <gtest/gtest.h>

namespace tandem::server {
namespace {

// The text with '|' at the cursor.
std::string Shown(const EditBuffer& buffer) {
  std::string text = buffer.text();
  return text.insert(buffer.cursor(), "|");
}

EditBuffer BufferAt(const std::string& marked) {
  EditBuffer buffer;
  const size_t cursor = marked.find('|');
  buffer.Set(marked.substr(cursor + 1));
  while (buffer.cursor() > 0) buffer.MoveLeft();
  buffer.Insert(marked.substr(0, cursor));
  return buffer;
}

TEST(EditBuffer, TheCursorMovesOverWholeCharacters) {
  EditBuffer buffer = BufferAt("ae\u0301你\U0001F469\u200D\U0001F680|");
  buffer.MoveLeft();
  EXPECT_EQ(Shown(buffer), "ae\u0301你|\U0001F469\u200D\U0001F680");
  buffer.MoveLeft();
  buffer.MoveLeft();
  EXPECT_EQ(Shown(buffer), "a|e\u0301你\U0001F469\u200D\U0001F680");
  buffer.MoveRight();
  EXPECT_EQ(Shown(buffer), "ae\u0301|你\U0001F469\u200D\U0001F680");
  buffer.DeleteLeft();
  EXPECT_EQ(Shown(buffer), "a|你\U0001F469\u200D\U0001F680");
  buffer.DeleteRight();
  buffer.DeleteRight();
  buffer.DeleteRight();
  EXPECT_EQ(Shown(buffer), "a|");
}

TEST(EditBuffer, WordsEndAtSpaces) {
  EditBuffer buffer = BufferAt("the quick  fox|");
  buffer.MoveWordLeft();
  buffer.MoveWordLeft();
  EXPECT_EQ(Shown(buffer), "the |quick  fox");
  buffer.MoveWordRight();
  EXPECT_EQ(Shown(buffer), "the quick|  fox");
  buffer.KillWordLeft();
  EXPECT_EQ(Shown(buffer), "the |  fox");
  buffer.Yank();
  EXPECT_EQ(Shown(buffer), "the quick|  fox");
  buffer.KillWordRight();
  EXPECT_EQ(Shown(buffer), "the quick|");
}

TEST(EditBuffer, KillsStayWithinTheLineUnlessItIsAtItsEdge) {
  EditBuffer buffer = BufferAt("one\ntw|o\nthree");
  buffer.KillToEnd();
  EXPECT_EQ(Shown(buffer), "one\ntw|\nthree");
  buffer.KillToEnd();
  EXPECT_EQ(Shown(buffer), "one\ntw|three");
  buffer.KillToBegin();
  EXPECT_EQ(Shown(buffer), "one\n|three");
  buffer.KillToBegin();
  EXPECT_EQ(Shown(buffer), "one|three");
}

TEST(EditBuffer, UpAndDownKeepTheColumn) {
  EditBuffer buffer = BufferAt("abcdef\n你好\nxyz|");
  EXPECT_FALSE(buffer.MoveDown());
  EXPECT_TRUE(buffer.MoveUp());
  EXPECT_EQ(Shown(buffer), "abcdef\n你|好\nxyz");
  EXPECT_TRUE(buffer.MoveUp());
  EXPECT_EQ(Shown(buffer), "ab|cdef\n你好\nxyz");
  EXPECT_FALSE(buffer.MoveUp());
  buffer.MoveEnd();
  EXPECT_TRUE(buffer.MoveDown());
  EXPECT_EQ(Shown(buffer), "abcdef\n你好|\nxyz");
  buffer.MoveHome();
  EXPECT_EQ(Shown(buffer), "abcdef\n|你好\nxyz");
}

TEST(EditBuffer, NothingHappensAtTheEdges) {
  EditBuffer buffer;
  buffer.MoveLeft();
  buffer.MoveRight();
  buffer.DeleteLeft();
  buffer.DeleteRight();
  buffer.KillToEnd();
  buffer.KillToBegin();
  buffer.KillWordLeft();
  buffer.KillWordRight();
  buffer.Yank();
  EXPECT_EQ(Shown(buffer), "|");
}

}  // namespace
}  // namespace tandem::server
