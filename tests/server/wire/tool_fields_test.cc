#include "server/wire/tool_fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/constrain/grammar.h"

namespace tandem::server {
namespace {

ToolFields ReadTools(const std::string& fields) {
  const nlohmann::ordered_json body = ParseJsonObject("{" + fields + "}");
  FieldReader reader(body);
  return ReadToolFields(reader);
}

std::string Function(const std::string& name) {
  return R"({"type": "function", "function": {"name": ")" + name + R"("}})";
}

TEST(ToolFields, ToolsAreKeptWholeAndAllCallableByDefault) {
  const ToolFields fields = ReadTools(R"("tools": [)" + Function("a") + ", " + Function("b-_9") +
                                      R"(], "tool_choice": "auto")");

  ASSERT_NE(fields.tools, nullptr);
  EXPECT_EQ(fields.tools->size(), 2u);
  EXPECT_EQ(fields.callable, fields.tools);
  EXPECT_TRUE(fields.is_parallel);
}

TEST(ToolFields, TheChoiceNoneHidesTheTools) {
  const ToolFields fields =
      ReadTools(R"("tools": [)" + Function("a") + R"(], "tool_choice": "none")");

  EXPECT_EQ(fields.tools, nullptr);
  EXPECT_EQ(fields.callable, nullptr);
}

TEST(ToolFields, AllowedToolsNarrowTheCallsAndNotTheList) {
  const ToolFields fields =
      ReadTools(R"("tools": [)" + Function("a") + ", " + Function("b") +
                R"(], "parallel_tool_calls": false, "tool_choice": {"type": "allowed_tools",
         "allowed_tools": {"mode": "auto", "tools": [)" +
                Function("b") + "]}}");

  EXPECT_EQ(fields.tools->size(), 2u);
  ASSERT_EQ(fields.callable->size(), 1u);
  EXPECT_EQ((*fields.callable)[0]["function"]["name"], "b");
  EXPECT_FALSE(fields.is_parallel);
}

TEST(ToolFields, AForcedChoiceNarrowsTheCalls) {
  if (engine::LlguidanceVersion().empty()) GTEST_SKIP() << "built without Rust";
  const std::string tools = R"("tools": [)" + Function("a") + ", " + Function("b") +
                            R"(, {"type": "custom", "custom": {"name": "c"}}], "tool_choice": )";
  const ToolFields required = ReadTools(tools + R"("required")");
  EXPECT_TRUE(required.is_forced);
  EXPECT_TRUE(required.is_parallel);
  EXPECT_EQ(required.callable->size(), 3u);

  const ToolFields named = ReadTools(tools + R"({"type": "custom", "custom": {"name": "c"}})");
  EXPECT_TRUE(named.is_forced);
  EXPECT_FALSE(named.is_parallel);
  ASSERT_EQ(named.callable->size(), 1u);
  EXPECT_EQ((*named.callable)[0]["custom"]["name"], "c");

  const ToolFields allowed = ReadTools(tools + R"({"type": "allowed_tools", "allowed_tools":
      {"mode": "required", "tools": [)" +
                                       Function("b") + "]}}");
  EXPECT_TRUE(allowed.is_forced);
  EXPECT_EQ(allowed.callable->size(), 1u);
}

TEST(ToolFields, NameTheFieldAtFault) {
  struct Case {
    std::string fields, param, reason;
  };
  const std::string tools = R"("tools": [)" + Function("a") + "], ";
  std::string too_many = Function("f0");
  for (int i = 1; i <= 512; ++i) too_many += "," + Function("f" + std::to_string(i));
  const Case cases[] = {
      {R"("tools": [1])", "tools[0]", "invalid_type"},
      {R"("tools": [{}])", "tools[0].type", "missing_required_parameter"},
      {R"("tools": [{"type": "web_search"}])", "tools[0].type", "unsupported_value"},
      {R"("tools": [{"type": "custom", "function": {"name": "a"}}])", "tools[0].custom",
       "missing_required_parameter"},
      {R"("tools": [{"type": "custom", "custom": {"name": "a"}}, )" + Function("a") + "]",
       "tools[1].function.name", "invalid_value"},
      {R"("tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "json"}}}])",
       "tools[0].custom.format.type", "invalid_value"},
      {R"("tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar"}}}])",
       "tools[0].custom.format.grammar", "missing_required_parameter"},
      {R"("tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar",
          "grammar": {"syntax": "gbnf", "definition": "a"}}}}])",
       "tools[0].custom.format.grammar.syntax", "invalid_value"},
      {R"("tools": [{"type": "custom", "custom": {"name": "a", "format": {"type": "grammar",
          "grammar": {"syntax": "lark", "definition": ""}}}}])",
       "tools[0].custom.format.grammar.definition", "invalid_value"},
      {R"("tools": [{"type": "function", "function": {}}])", "tools[0].function.name",
       "missing_required_parameter"},
      {R"("tools": [)" + Function("a b") + "]", "tools[0].function.name", "invalid_value"},
      {R"("tools": [)" + Function("") + "]", "tools[0].function.name", "invalid_value"},
      {R"("tools": [)" + Function(std::string(65, 'a')) + "]", "tools[0].function.name",
       "invalid_value"},
      {R"("tools": [)" + Function("a") + "," + Function("a") + "]", "tools[1].function.name",
       "invalid_value"},
      {R"("tools": [)" + too_many + "]", "tools", "invalid_value"},
      {R"("tools": [{"type": "function", "function": {"name": "a", "parameters": []}}])",
       "tools[0].function.parameters", "invalid_type"},
      {R"("tool_choice": "required")", "tool_choice", "invalid_value"},
      {tools + R"("tool_choice": "maybe")", "tool_choice", "invalid_value"},
      {tools + R"("tool_choice": 1)", "tool_choice", "invalid_type"},
      {tools + R"("tool_choice": {"type": "custom", "custom": {"name": "a"}})",
       "tool_choice.custom.name", "invalid_value"},
      {tools + R"("tool_choice": )" + Function("b"), "tool_choice.function.name", "invalid_value"},
      {tools + R"("tool_choice": {"type": "allowed_tools"})", "tool_choice.allowed_tools",
       "missing_required_parameter"},
      {tools + R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required",
          "tools": []}})",
       "tool_choice.allowed_tools.tools", "invalid_value"},
      {tools + R"("parallel_tool_calls": 1)", "parallel_tool_calls", "invalid_type"},
  };
  for (const Case& one : cases) {
    try {
      ReadTools(one.fields);
      ADD_FAILURE() << one.fields.substr(0, 200);
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), one.param) << error.what();
      EXPECT_EQ(error.reason(), one.reason) << error.what();
    }
  }
}

}  // namespace
}  // namespace tandem::server
