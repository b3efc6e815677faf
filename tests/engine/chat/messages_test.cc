#include "engine/chat/messages.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

Json Normalized(const char* messages, const NormalizeOptions& options = {}) {
  return NormalizeMessages(Json::parse(messages), options);
}

struct Fault {
  std::string param;
  std::string reason;
};

Fault FaultOf(const char* messages, const NormalizeOptions& options = {}) {
  try {
    Normalized(messages, options);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(error.param()), std::string::npos) << error.what();
    return {error.param(), error.reason()};
  }
  return {"accepted", ""};
}

TEST(NormalizeMessages, JoinsTextAndRefusalPartsWithLineBreaks) {
  EXPECT_EQ(Normalized(R"([{"role": "assistant", "content": [
      {"type": "text", "text": "a", "annotations": null},
      {"type": "refusal", "refusal": "b"}]}])")[0]["content"],
            "a\nb");
}

TEST(NormalizeMessages, ARefusalIsTextBehindTheContent) {
  EXPECT_EQ(Normalized(R"([{"role": "assistant", "content": null, "refusal": "no"},
                           {"role": "assistant", "content": "a", "refusal": "no"},
                           {"role": "assistant", "content": "a", "refusal": null}])")
                .dump(),
            R"([{"role":"assistant","content":"no"},{"role":"assistant","content":"a\nno"},)"
            R"({"role":"assistant","content":"a"}])");
}

TEST(NormalizeMessages, AnAssistantWithCallsOrAThoughtNeedsNoContent) {
  for (const Json& message : Normalized(R"([
           {"role": "assistant", "content": null, "reasoning_content": "hm"},
           {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}])")) {
    EXPECT_EQ(message["content"], "");
  }
}

TEST(NormalizeMessages, ParsesArgumentsThatAreJsonObjects) {
  const Json normalized = Normalized(R"([{"role": "assistant", "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
      {"function": {"name": "f", "arguments": "[1]"}},
      {"function": {"name": "f", "arguments": "{\"a\": 1, \"a\": 2}"}},
      {"function": {"name": "f", "arguments": "{broken"}}]}])");

  const Json& calls = normalized[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"].dump(), R"({"b":1,"a":[2]})");
  EXPECT_EQ(calls[1]["function"]["arguments"], "[1]");
  EXPECT_EQ(calls[2]["function"]["arguments"], R"({"a": 1, "a": 2})");
  EXPECT_EQ(calls[3]["function"]["arguments"], "{broken");
}

TEST(NormalizeMessages, LeavesDeepArgumentsAsText) {
  const std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  const Json messages = {{{"role", "assistant"},
                          {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", deep}}}}}}}};

  EXPECT_EQ(NormalizeMessages(messages)[0]["tool_calls"][0]["function"]["arguments"], deep);
}

TEST(NormalizeMessages, AddsNoIdToACallThatHasNone) {
  EXPECT_EQ(Normalized(R"([{"role": "assistant", "content": "", "tool_calls": [
      {"function": {"name": "f", "arguments": "{}"}},
      {"id": "c", "type": "function", "function": {"arguments": "{}", "name": "f"}}]}])")
                [0]["tool_calls"]
                    .dump(),
            R"([{"type":"function","function":{"name":"f","arguments":{}}},)"
            R"({"id":"c","type":"function","function":{"arguments":{},"name":"f"}}])");
}

TEST(NormalizeMessages, KeysThatNobodyKnowsReachTheTemplateAndNullsDoNot) {
  EXPECT_EQ(Normalized(R"([{"role": "assistant", "content": "a", "tool_plan": {"x": [1]},
      "audio": null, "tool_calls": null, "weight": 0, "name": "n", "tool_calls2": []},
      {"role": "user", "content": "b", "tool_calls": []}])")
                .dump(),
            R"([{"role":"assistant","content":"a","tool_plan":{"x":[1]},"name":"n",)"
            R"("tool_calls2":[]},{"role":"user","content":"b"}])");
}

TEST(NormalizeMessages, OtherNamesOfAThoughtGiveReasoningContent) {
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const Json messages = {{{"role", "assistant"}, {"content", "a"}, {name, "hm"}}};
    const Json normalized = NormalizeMessages(messages);
    EXPECT_EQ(normalized[0]["reasoning_content"], "hm") << name;
    EXPECT_EQ(normalized[0][name], "hm") << "a template may read this name";
  }
  // The form of this server's own answers.
  EXPECT_EQ(Normalized(R"([{"role": "assistant", "content": "a", "reasoning_content": "hm",
                            "reasoning": "hm"}])")[0]["reasoning_content"],
            "hm");
  EXPECT_EQ(FaultOf(R"([{"role": "assistant", "content": "a", "reasoning_content": "hm",
                         "reasoning": "ah"}])")
                .param,
            "messages[0].reasoning");
}

TEST(NormalizeMessages, RendersDeveloperAsSystemUnlessTold) {
  const char* messages = R"([{"role": "developer", "content": "x"}])";

  EXPECT_EQ(Normalized(messages)[0]["role"], "system");
  EXPECT_EQ(Normalized(messages, {.developer_as_system = false})[0]["role"], "developer");
}

TEST(NormalizeMessages, CallIdsOfToolsAreNeededOnlyWhereAskedFor) {
  const char* messages = R"([{"role": "tool", "content": "x"}])";

  EXPECT_EQ(Normalized(messages).dump(), R"([{"role":"tool","content":"x"}])");
  EXPECT_EQ(FaultOf(messages, {.needs_tool_call_ids = true}).param, "messages[0].tool_call_id");
}

TEST(NormalizeMessages, NamesThePathOfEveryFault) {
  const struct {
    const char* messages;
    const char* param;
    const char* reason;
  } cases[] = {
      {R"({})", "rows", "invalid_type"},
      {R"(["a"])", "rows[0]", "invalid_type"},
      {R"([{"content": "a"}])", "rows[0].role", "missing_required_parameter"},
      {R"([{"role": null, "content": "a"}])", "rows[0].role", "missing_required_parameter"},
      {R"([{"role": 1, "content": "a"}])", "rows[0].role", "invalid_type"},
      {R"([{"role": "robot", "content": "a"}])", "rows[0].role", "invalid_value"},
      {R"([{"role": "user"}])", "rows[0].content", "missing_required_parameter"},
      {R"([{"role": "assistant", "content": null}])", "rows[0].content",
       "missing_required_parameter"},
      {R"([{"role": "user", "content": 5}])", "rows[0].content", "invalid_type"},
      {R"([{"role": "user", "content": []}])", "rows[0].content", "invalid_value"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "a"}, 1]}])", "rows[0].content[1]",
       "invalid_type"},
      {R"([{"role": "user", "content": [{"text": "a"}]}])", "rows[0].content[0].type",
       "missing_required_parameter"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "rows[0].content[0].text",
       "missing_required_parameter"},
      {R"([{"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}])",
       "rows[0].content[0].type", "invalid_value"},
      {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "rows[0].content[0]", "unsupported_value"},
      {R"([{"role": "user", "content": "a", "name": 1}])", "rows[0].name", "invalid_type"},
      {R"([{"role": "user", "content": "a", "tool_calls": [1]}])", "rows[0].tool_calls",
       "invalid_value"},
      {R"([{"role": "assistant", "content": "a", "function_call": {}}])", "rows[0].function_call",
       "invalid_value"},
      {R"([{"role": "assistant", "content": "a", "thinking": []}])", "rows[0].thinking",
       "invalid_type"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "rows[0].tool_calls", "invalid_type"},
      {R"([{"role": "assistant", "tool_calls": [{}]}])", "rows[0].tool_calls[0].function",
       "missing_required_parameter"},
      {R"([{"role": "assistant", "tool_calls": [{"type": "web", "function": {}}]}])",
       "rows[0].tool_calls[0].type", "invalid_value"},
      {R"([{"role": "assistant", "tool_calls": [{"type": "custom", "function": {}}]}])",
       "rows[0].tool_calls[0].custom", "missing_required_parameter"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}])",
       "rows[0].tool_calls[0].function.name", "missing_required_parameter"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])",
       "rows[0].tool_calls[0].function.arguments", "missing_required_parameter"},
      {R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]}])",
       "rows[0].tool_calls[0].function.arguments", "invalid_type"},
      {R"([{"role": "assistant", "tool_calls": [{"id": 1, "function":
            {"name": "f", "arguments": {}}}]}])",
       "rows[0].tool_calls[0].id", "invalid_type"},
  };
  for (const auto& bad : cases) {
    const Fault fault = FaultOf(bad.messages, {.path = "rows"});
    EXPECT_EQ(fault.param, bad.param) << bad.messages;
    EXPECT_EQ(fault.reason, bad.reason) << bad.messages;
  }
}

// A search for an equal key at every insertion would take hours here.
TEST(NormalizeMessages, MessagesAndArgumentsOfManyKeysTakeLinearTime) {
  constexpr int kKeys = 300000;
  std::string arguments = "{";
  for (int i = 0; i < kKeys; ++i) {
    arguments += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  }
  arguments += '}';
  Json messages =
      Json::array({{{"role", "assistant"},
                    {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", arguments}}}}}}}});
  auto& members = messages[0].get_ref<Json::object_t&>();
  for (int i = 0; i < kKeys; ++i) members.emplace_back("m" + std::to_string(i), 0);

  const Json normalized = NormalizeMessages(messages);

  EXPECT_EQ(normalized[0].size(), static_cast<size_t>(kKeys) + 3);
  EXPECT_EQ(normalized[0]["tool_calls"][0]["function"]["arguments"].size(),
            static_cast<size_t>(kKeys));
}

TEST(Messages, ArgumentsOfAllCallsShareABoundOnTheirValues) {
  const auto normalize = [](const std::string& arguments) {
    const Json call{{"function", {{"name", "f"}, {"arguments", arguments}}}};
    const Json messages{{{"role", "assistant"}, {"tool_calls", {call, call}}}};
    return NormalizeMessages(messages, {.max_argument_values = 12});
  };

  EXPECT_TRUE(
      normalize(R"({"a": [0, 0, 0]})")[0]["tool_calls"][1]["function"]["arguments"].is_object());
  try {
    normalize(R"({"a": [0, 0, 0, 0, 0, 0]})");
    FAIL() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.param(), "messages[0].tool_calls[1].function.arguments");
  }
}

}  // namespace
}  // namespace tandem::engine
