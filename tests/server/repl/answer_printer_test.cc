#include "server/repl/answer_printer.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::server {
namespace {

struct PrintedAnswer {
  explicit PrintedAnswer(AnswerTarget target)
      : printer(target, [this](std::string_view bytes) { text += bytes; }) {}
  std::string text;
  AnswerPrinter printer;
};

TEST(AnswerPrinter, ATerminalGetsTheReasoningDimAndControlsVisible) {
  PrintedAnswer answer({.is_terminal = true, .has_colour = true});
  answer.printer.Reasoning("think\x1b[31m");
  answer.printer.Reasoning("ing");
  answer.printer.Text("\x1b]0;evil\x07 text\u202E");
  answer.printer.End();
  EXPECT_EQ(answer.text, "\x1b[2mthink\u241B[31ming\x1b[0m\n\u241B]0;evil\u2407 text<U+202E>\n");
}

TEST(AnswerPrinter, WithoutColourTheReasoningIsMarked) {
  PrintedAnswer answer({.is_terminal = true, .has_colour = false});
  answer.printer.Reasoning("why");
  answer.printer.Text("so\n");
  answer.printer.End();
  EXPECT_EQ(answer.text, "[thinking] why\nso\n");
}

TEST(AnswerPrinter, APipeGetsTheBytesOfTheAnswerAlone) {
  PrintedAnswer answer({});
  answer.printer.Reasoning("hidden");
  answer.printer.Text("\x1b[1mraw\r\n\xff");
  answer.printer.End();
  EXPECT_EQ(answer.text, "\x1b[1mraw\r\n\xff\n");
}

TEST(AnswerPrinter, ASequenceSplitOverPiecesIsFilteredToo) {
  PrintedAnswer answer({.is_terminal = true});
  for (const char byte : std::string("a\xc2\x9b"
                                     "2J\xe2\x80\xae"
                                     "b\x1b[H")) {
    answer.printer.Text({&byte, 1});
  }
  answer.printer.End();
  EXPECT_EQ(answer.text, "a<U+009B>2J<U+202E>b\u241B[H\n");
}

TEST(AnswerPrinter, AnAnswerThatStopsInsideACharacterEndsTheStyles) {
  PrintedAnswer answer({.is_terminal = true, .has_colour = true});
  answer.printer.Reasoning("x\xe2\x80");
  answer.printer.End();
  EXPECT_EQ(answer.text, "\x1b[2mx\uFFFD\x1b[0m\n");
}

}  // namespace
}  // namespace tandem::server
