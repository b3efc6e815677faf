#include "engine/chat/answers/reasoning_splitter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tandem::engine {
namespace {

using State = ReasoningSplitter::State;

// Returns "reasoning|content"; expects the same for every way to cut the text.
std::string Split(State state, const std::string& text) {
  std::string whole;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    ReasoningSplitter splitter(state);
    std::string reasoning;
    std::string content;
    const auto take = [&](ReasoningSplitter::Pieces pieces) {
      reasoning += pieces.reasoning;
      content += pieces.content;
    };
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min<size_t>(1 + random() % 9, text.size() - at);
      take(splitter.Push(std::string_view(text).substr(at, n)));
      at += n;
    }
    take(splitter.Flush());
    EXPECT_FALSE(splitter.holds());
    const std::string got = reasoning + "|" + content;
    if (seed == 0) whole = got;
    EXPECT_EQ(got, whole) << "seed " << seed;
  }
  return whole;
}

TEST(ReasoningSplitter, TakesThoughtAndAnswerApart) {
  EXPECT_EQ(Split(State::kUndecided, "<think>\nhm</think>\n\nYes"), "\nhm|\n\nYes");
  EXPECT_EQ(Split(State::kUndecided, " \n<think>hm</think>"), "hm|");
  EXPECT_EQ(Split(State::kThinking, "hm</thin</think>Yes"), "hm</thin|Yes");
  EXPECT_EQ(Split(State::kThinking, "cut </thi"), "cut </thi|");
  EXPECT_EQ(Split(State::kThinking, ""), "|");
}

TEST(ReasoningSplitter, LeavesOtherTextAlone) {
  for (const std::string text :
       {"Yes", " Yes <think>no</think>", "<thinking>x", "<thi", " \n", "</think>", ""}) {
    EXPECT_EQ(Split(State::kUndecided, text), "|" + text);
    EXPECT_EQ(Split(State::kAnswering, text), "|" + text);
  }
  EXPECT_EQ(Split(State::kThinking, "a</think>b</think>c<think>"), "a|b</think>c<think>");
}

TEST(ReasoningSplitter, ATemplateMayHaveOpenedOrClosedTheThought) {
  EXPECT_EQ(StateAfterPrompt("<|assistant|>\n<think>\n"), State::kThinking);
  EXPECT_EQ(StateAfterPrompt("<think>\n\n</think>\n\n"), State::kAnswering);
  EXPECT_EQ(StateAfterPrompt("what is <think>? <|assistant|>"), State::kUndecided);
  EXPECT_EQ(StateAfterPrompt(" "), State::kUndecided);
  EXPECT_EQ(StateWithin("<think>so far"), State::kThinking);
  EXPECT_EQ(StateWithin("<think>so</think>Yes"), State::kAnswering);
  EXPECT_EQ(StateWithin("Yes <think>"), State::kAnswering);
}

}  // namespace
}  // namespace tandem::engine
