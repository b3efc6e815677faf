#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/chat/answers/custom_input.h"
#include "engine/chat/answers/parameter_form.h"
#include "tests/engine/chat/answers/reading.h"

namespace tandem::engine {
namespace {

AnswerOptions ReadsCustomCalls(std::string_view format) {
  AnswerOptions options = testing::ReadsCalls(format);
  options.tools = std::make_shared<const DeclaredTools>(nlohmann::ordered_json::parse(R"([
      {"type": "custom", "custom": {"name": "note"}},
      {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar",
       "grammar": {"syntax": "lark", "definition": "start: \"a\""}}}}])"));
  return options;
}

std::string InputOf(const std::string& arguments, size_t piece) {
  CustomInput input;
  std::string out;
  for (size_t at = 0; at < arguments.size(); at += piece) {
    out += input.Push(std::string_view(arguments).substr(at, piece));
  }
  return out;
}

TEST(CustomInput, IsTheTextOfTheMemberInputAtEveryCut) {
  struct Case {
    std::string arguments, input;
  };
  const Case cases[] = {
      {R"({"input": "a\nb \"c\" \\ \u00e9 \ud83d\ude00"})",
       "a\nb \"c\" \\ \xC3\xA9 \xF0\x9F\x98\x80"},
      {R"({"other": {"input": "no"}, "input": "yes", "input": "late"})", "yes"},
      {R"({"input": "\ud83d!\ud83d\n\ud83d"})", "\xEF\xBF\xBD!\xEF\xBF\xBD\n\xEF\xBF\xBD"},
      {R"({"input": {"a": [1, 2], "b": "x"}})", R"({"a": [1, 2], "b": "x"})"},
      {R"({"input": 12, "b": 1})", "12"},
      {R"({"input": 12})", "12"},
      {"{}", ""},
  };
  for (const Case& one : cases) {
    for (size_t piece = 1; piece <= one.arguments.size(); ++piece) {
      EXPECT_EQ(InputOf(one.arguments, piece), one.input) << one.arguments << piece;
    }
  }
}

TEST(AnswerParser, ACallOfACustomToolHasItsInputInPlaceOfArguments) {
  const std::string answer =
      R"(Well.<tool_call>{"name": "note", "arguments": {"input": "a\n\"b\""}}</tool_call>)";
  AnswerParser parser(ReadsCustomCalls("hermes"));
  AnswerEvents events = parser.Push(answer);

  ASSERT_GE(events.size(), 2u);
  EXPECT_TRUE(std::get<CallBegin>(events[1]).is_custom);
  EXPECT_EQ(testing::Spell(events), "t\"Well.\" begin(note) a\"a\n\"b\"\" end");
}

TEST(AnswerParser, AnUnquotedInputGoesToTheEndOfTheAnswerAtEveryCut) {
  const std::string answer =
      "Well. <tool_input name=\"patch2\">\n<tool_input name=\"patch\">\n{\"a\": <tool_call>";
  for (size_t cut = 0; cut <= answer.size(); ++cut) {
    EXPECT_EQ(testing::Spell(testing::ReadCut(ReadsCustomCalls("hermes"), answer, {cut})),
              "t\"Well. <tool_input name=\"patch2\">\" begin(patch) a\"{\"a\": <tool_call>\" end "
              "finish(calls)");
  }
}

TEST(AnswerParser, ACutUnquotedInputStaysOpen) {
  const std::string answer = "<tool_input name=\"patch\">\nab";
  EXPECT_EQ(testing::Spell(testing::ReadCut(ReadsCustomCalls("json"), answer, {5}, true)),
            "begin(patch) a\"ab\" finish(calls)");
}

TEST(ParameterForm, OnlySchemasOfAnyTextOrSimpleChoicesAreText) {
  const auto form = [](const char* schema) {
    return FormOf(nlohmann::ordered_json::parse(schema));
  };
  EXPECT_TRUE(form(R"({"type": "string", "description": "d"})").is_text);
  EXPECT_TRUE(form("{}").is_text);
  EXPECT_EQ(form(R"({"enum": ["a", "b"]})").choices.size(), 2u);
  for (const char* schema :
       {R"({"type": "integer"})", R"({"type": ["string", "null"]})", R"({"enum": ["a", 1]})",
        R"({"type": "string", "pattern": "a"})", R"({"$ref": "#/$defs/a"})", R"({"enum": ["<a"]})",
        R"({"type": "string", "minLength": 1})", R"({"const": "a\nb"})"}) {
    EXPECT_FALSE(form(schema).is_text) << schema;
  }
}

}  // namespace
}  // namespace tandem::engine
