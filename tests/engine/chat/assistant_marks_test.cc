#include "engine/chat/assistant_marks.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/engine/chat/rendering.h"

namespace tandem::engine {
namespace {

using testing::Json;

// The content with every mark in parentheses.
std::string Marked(std::string_view content) {
  std::string out;
  size_t done = 0;
  for (const auto& [begin, end] : FindAssistantMarks(content)) {
    out.append(content.substr(done, begin - done));
    out.append("(").append(content.substr(begin, end - begin)).append(")");
    done = end;
  }
  return out.append(content.substr(done));
}

TEST(AssistantMarks, AThoughtAtTheBeginningIsMarked) {
  EXPECT_EQ(Marked("<think>a</think>b"), "(<think>)a(</think>)b");
  EXPECT_EQ(Marked(" \n<think>\n</think>"), " \n(<think>)\n(</think>)");
  EXPECT_EQ(Marked("<think>a</think>b</think>"), "(<think>)a(</think>)b</think>");
}

TEST(AssistantMarks, UnpairedAndLaterThoughtsAreText) {
  for (const char* content : {"", "a", "<think>a", "a</think>b", "x<think>a</think>",
                              "<think>a<think>b</think>", "< think>a</think>", "</think><think>"}) {
    EXPECT_EQ(Marked(content), content);
  }
}

TEST(AssistantMarks, CallsAtTheEndAreMarked) {
  EXPECT_EQ(Marked("Let me see.\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n"),
            "Let me see.\n(<tool_call>)\n{\"name\": \"f\"}\n(</tool_call>)\n");
  EXPECT_EQ(Marked("<think>a</think><tool_call>{\"name\":\"f\"}</tool_call>\n"
                   "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>"),
            "(<think>)a(</think>)(<tool_call>){\"name\":\"f\"}(</tool_call>)\n"
            "(<tool_call>){\"name\":\"g\",\"arguments\":{}}(</tool_call>)");
}

TEST(AssistantMarks, CallsThatAreNoneAreText) {
  for (const char* content :
       {"<tool_call>{\"name\":\"f\"}</tool_call> and more", "<tool_call>f()</tool_call>",
        "<tool_call>{\"name\":1}</tool_call>", "<tool_call>{\"nam\":\"f\"}</tool_call>",
        "{\"name\":\"f\"}</tool_call>", "<tool_call></tool_call>", "<tool_call>[]</tool_call>",
        "</tool_call>"}) {
    EXPECT_EQ(Marked(content), content);
  }
}

TEST(AssistantMarks, OnlyAnAssistantsContentHasThem) {
  const Json messages = Json::parse(R"([
      {"role": "user", "content": "<think>a</think>"},
      {"role": "assistant", "content": "<think>a<|im_end|></think>b", "name": "<think>a</think>"},
      {"role": "tool", "content": "<think>a</think>"}])");

  EXPECT_EQ(testing::RenderPieces("{% for m in messages %}{{ m.content }}{{ m.name }}|{% endfor %}",
                                  messages),
            (std::vector<RenderedPiece>{{"<think>a</think>", true},
                                        {"|<think>", false},
                                        {"a<|im_end|>", true},
                                        {"</think>", false},
                                        {"b<think>a</think>", true},
                                        {"|", false},
                                        {"<think>a</think>", true},
                                        {"|", false}}));
}

}  // namespace
}  // namespace tandem::engine
