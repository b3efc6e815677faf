#include "server/wire/messages_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/base/attempt.h"
#include "server/wire/chat_request.h"
#include "server/wire/error_body.h"

namespace tandem::server {
namespace {

using MessagesJson = nlohmann::ordered_json;

constexpr ModelLimits kMessagesLimits = {128, 1000};
const std::string kHello = R"("messages": [{"role": "user", "content": "Hi"}])";

MessagesRequest ParseMessages(const std::string& fields,
                              MessagesRoute route = MessagesRoute::kCountTokens) {
  return ParseMessagesRequest(ParseJsonObject("{" + fields + "}"), route, kMessagesLimits);
}

// The chat body of these members besides `messages`.
MessagesJson ChatOf(const std::string& fields) {
  return *ParseMessages(kHello + ", " + fields).chat;
}

// The chat messages of these.
MessagesJson HistoryOf(const std::string& messages, const std::string& more = {}) {
  return ParseMessages("\"messages\": [" + messages + "]" + more).chat->at("messages");
}

TEST(MessagesRequest, SystemAndTextBlocksBecomeMessages) {
  EXPECT_EQ(HistoryOf(R"({"role": "user", "content": [{"type": "text", "text": "a",
                          "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]})",
                      R"(, "system": "Be brief.")"),
            MessagesJson::parse(R"([
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "content": [{"type": "text", "text": "a"},
                                             {"type": "text", "text": "b"}]}])"));
}

TEST(MessagesRequest, BillingBlocksOfTheSystemAreDropped) {
  const std::string hello = R"({"role": "user", "content": "Hi"})";
  const MessagesJson some = HistoryOf(hello, R"(, "system": [
      {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0"},
      {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}}])");
  EXPECT_EQ(some[0]["content"], MessagesJson::parse(R"([{"type": "text",
                                                          "text": "You are an agent."}])"));
  const MessagesJson none = HistoryOf(
      hello, R"(, "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}])");
  EXPECT_EQ(none[0]["role"], "user");
}

TEST(MessagesRequest, MessagesOfTheSystemStayWhereTheyAre) {
  const MessagesJson history = HistoryOf(R"({"role": "system", "content": "b"},
      {"role": "user", "content": "Hi"}, {"role": "system", "content": [{"type": "text",
      "text": "c"}]})",
                                         R"(, "system": "a")");
  ASSERT_EQ(history.size(), 3u);
  EXPECT_EQ(history[0]["content"].size(), 2u);
  EXPECT_EQ(history[2]["role"], "system");
}

TEST(MessagesRequest, LateMessagesOfTheSystemJoinTheFirstWhereTheTemplateRefusesThem) {
  const auto history_of = [](const std::string& fields) {
    const auto body = ParseJsonObject("{" + fields + "}");
    return ParseMessagesRequest(body, MessagesRoute::kCountTokens, kMessagesLimits,
                                [] { return false; })
        .chat->at("messages");
  };
  const std::string late = R"("messages": [{"role": "user", "content": "Hi"},
      {"role": "system", "content": "b"}, {"role": "user", "content": "Ho"}])";
  const MessagesJson with_system = history_of(R"("system": "a", )" + late);
  ASSERT_EQ(with_system.size(), 2u);
  EXPECT_EQ(with_system[0]["content"].size(), 2u);
  EXPECT_EQ(with_system[1]["content"].size(), 2u);
  const MessagesJson without = history_of(late);
  ASSERT_EQ(without.size(), 2u);
  EXPECT_EQ(without[0]["role"], "system");
}

TEST(MessagesRequest, AThreadIsRefusedInTheWayThatTheLibraryKnows) {
  const auto error = ErrorOf([&] { ParseMessages(kHello + R"(, "thread": {"type": "create"})"); });
  ASSERT_TRUE(error);
  const ErrorReply reply = InAnthropicShape(MakeErrorReply(*error, "req_1"), "req_1");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(MessagesJson::parse(reply.body)["error"]["details"],
            MessagesJson::parse(R"({"error_code": "thread_unsupported_request",
                                    "unsupported": ["thread"]})"));
  EXPECT_FALSE(ErrorOf([&] { ParseMessages(kHello + R"(, "thread": null)"); }));
}

TEST(MessagesRequest, ToolUseAndResultsBecomeCallsAndToolMessages) {
  EXPECT_EQ(HistoryOf(R"(
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": [
          {"type": "thinking", "thinking": "hm", "signature": "s"},
          {"type": "redacted_thinking", "data": "xyz"},
          {"type": "text", "text": "Let me see."},
          {"type": "tool_use", "id": "t1", "name": "look", "input": {"city": "Bern"}},
          {"type": "tool_use", "id": "t2", "name": "ask", "input": {}}]},
      {"role": "user", "content": [
          {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"},
          {"type": "tool_result", "tool_use_id": "t2", "is_error": true,
           "content": [{"type": "text", "text": "no net"}]},
          {"type": "tool_result", "tool_use_id": "t3"},
          {"type": "text", "text": "Well?"}]})"),
            MessagesJson::parse(R"([
      {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
      {"role": "assistant", "reasoning_content": "hm",
       "content": [{"type": "text", "text": "Let me see."}],
       "tool_calls": [
           {"id": "t1", "type": "function",
            "function": {"name": "look", "arguments": {"city": "Bern"}}},
           {"id": "t2", "type": "function", "function": {"name": "ask", "arguments": {}}}]},
      {"role": "tool", "tool_call_id": "t1", "name": "look",
       "content": [{"type": "text", "text": "sunny"}]},
      {"role": "tool", "tool_call_id": "t2", "name": "ask",
       "content": [{"type": "text", "text": "Error: no net"}]},
      {"role": "tool", "tool_call_id": "t3", "content": [{"type": "text", "text": ""}]},
      {"role": "user", "content": [{"type": "text", "text": "Well?"}]}])"));
}

TEST(MessagesRequest, NeighboursOfOneRoleAreOneMessage) {
  const MessagesJson history = HistoryOf(R"({"role": "user", "content": "a"},
      {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"},
      {"role": "assistant", "content": [{"type": "text", "text": "d"}]})");
  EXPECT_EQ(history.size(), 2u);
  EXPECT_EQ(history[1]["content"].size(), 2u);
}

TEST(MessagesRequest, ALastMessageOfTheAssistantIsContinued) {
  const auto continued = [](const std::string& answer) {
    const auto request = ParseMessages(R"("messages": [{"role": "user", "content": "Hi"},
        {"role": "assistant", "content": )" +
                                       answer + "}]");
    return request.chat->contains("continue_final_message");
  };
  EXPECT_TRUE(continued(R"("Once")"));
  EXPECT_TRUE(
      continued(R"([{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "O"}])"));
  EXPECT_FALSE(continued(R"("")"));
  EXPECT_FALSE(continued("[]"));
  EXPECT_FALSE(ParseMessages(kHello).chat->contains("continue_final_message"));
}

TEST(MessagesRequest, FieldsHaveTheirNamesOfChat) {
  EXPECT_EQ(ChatOf(R"("max_tokens": 100000, "temperature": 0.5, "top_p": 0.9, "top_k": 5,
                      "stop_sequences": ["a", "b"], "stream": true)"),
            MessagesJson::parse(R"({
      "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
      "max_tokens": 128, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["a", "b"],
      "stream": true})"));
}

TEST(MessagesRequest, ThinkingSetsTheVariableOfTheTemplate) {
  const auto thinks = [](const std::string& thinking) {
    return ChatOf("\"thinking\": " + thinking)["chat_template_kwargs"]["enable_thinking"];
  };
  EXPECT_EQ(thinks(R"({"type": "enabled", "budget_tokens": 1024})"), true);
  EXPECT_EQ(thinks(R"({"type": "adaptive"})"), true);
  EXPECT_EQ(thinks(R"({"type": "disabled"})"), false);
  EXPECT_FALSE(ChatOf(R"("thinking": null)").contains("chat_template_kwargs"));
}

TEST(MessagesRequest, TheBudgetOfThinkingIsKept) {
  const std::string budget = R"("thinking": {"type": "enabled", "budget_tokens": 7})";
  EXPECT_EQ(ParseMessages(kHello + ", " + budget).thinking_budget, 7);
  EXPECT_EQ(ParseMessages(kHello).thinking_budget, std::nullopt);
}

TEST(MessagesRequest, AFormatBecomesAResponseFormat) {
  const MessagesJson expected = MessagesJson::parse(R"({"type": "json_schema",
      "json_schema": {"name": "answer", "schema": {"type": "object"}}})");
  const std::string format = R"({"type": "json_schema", "schema": {"type": "object"}})";
  EXPECT_EQ(ChatOf("\"output_format\": " + format)["response_format"], expected);
  const MessagesJson chat =
      ChatOf(R"("output_config": {"effort": "high", "format": )" + format + "}");
  EXPECT_EQ(chat["response_format"], expected);
  EXPECT_EQ(chat["reasoning_effort"], "high");
}

TEST(MessagesRequest, ToolsBecomeFunctionsAndServerToolsAreLeftOut) {
  const MessagesRequest request = ParseMessages(kHello + R"(, "tools": [
      {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
      {"name": "look", "description": "d", "input_schema": {"type": "object"}, "strict": true,
       "cache_control": {"type": "ephemeral"}},
      {"type": "custom", "name": "ask", "input_schema": {}},
      {"type": "bash_20250124", "name": "bash"}])");

  EXPECT_EQ(request.chat->at("tools"), MessagesJson::parse(R"([
      {"type": "function", "function": {"name": "look", "description": "d",
                                        "parameters": {"type": "object"}, "strict": true}},
      {"type": "function", "function": {"name": "ask", "parameters": {}}}])"));
  EXPECT_EQ(request.ignored_tools,
            (std::vector<std::string>{"web_search_20250305", "bash_20250124"}));
  EXPECT_FALSE(ParseMessages(kHello + R"(, "tools": [{"type": "computer_20250124"}],
                                           "tool_choice": {"type": "auto"})")
                   .chat->contains("tools"));
}

TEST(MessagesRequest, TheChoiceOfToolsIsThatOfChat) {
  const auto choice = [](const std::string& given) {
    return ChatOf(R"("tools": [{"name": "f", "input_schema": {}}], "tool_choice": )" + given);
  };
  EXPECT_EQ(choice(R"({"type": "auto"})")["tool_choice"], "auto");
  EXPECT_EQ(choice(R"({"type": "none"})")["tool_choice"], "none");
  EXPECT_EQ(choice(R"({"type": "any"})")["tool_choice"], "required");
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})")["tool_choice"],
            MessagesJson::parse(R"({"type": "function", "function": {"name": "f"}})"));
  EXPECT_EQ(choice(R"({"type": "auto", "disable_parallel_tool_use": true})")["parallel_tool_calls"],
            false);
}

TEST(MessagesRequest, KnownFieldsWithoutEffectAreNotNamed) {
  const MessagesRequest request = ParseMessages(kHello + R"(, "model": "m", "metadata":
      {"user_id": "u"}, "service_tier": "auto", "context_management": {"edits": []},
      "cache_control": {"type": "ephemeral"}, "container": "c")");
  EXPECT_EQ(request.ignored, std::vector<std::string>{"container"});
}

struct BadMessagesBody {
  std::string fields;
  const char* param;
  const char* reason;
};

TEST(MessagesRequest, EveryFaultNamesItsField) {
  const auto message = [](const std::string& role, const std::string& content) {
    return R"("messages": [{"role": ")" + role + R"(", "content": )" + content + "}]";
  };
  const auto tools = [](const std::string& list) {
    return kHello + R"(, "tools": [)" + list + "]";
  };
  const std::string tool = R"({"name": "f", "input_schema": {}})";
  const BadMessagesBody bodies[] = {
      {R"("max_tokens": 1)", "messages", "missing_required_parameter"},
      {R"("messages": "a")", "messages", "invalid_type"},
      {R"("messages": [])", "messages", "invalid_value"},
      {R"("messages": [1])", "messages[0]", "invalid_type"},
      {R"("messages": [{"content": "a"}])", "messages[0].role", "missing_required_parameter"},
      {R"("messages": [{"role": "user"}])", "messages[0].content", "missing_required_parameter"},
      {message("tool", R"("a")"), "messages[0].role", "invalid_value"},
      {message("user", "1"), "messages[0].content", "invalid_type"},
      {message("user", "[]"), "messages[0].content", "invalid_value"},
      {message("user", "[1]"), "messages[0].content[0]", "invalid_type"},
      {message("user", "[{}]"), "messages[0].content[0].type", "missing_required_parameter"},
      {message("user", R"([{"type": "text"}])"), "messages[0].content[0].text",
       "missing_required_parameter"},
      {message("user", R"([{"type": "text", "text": 1}])"), "messages[0].content[0].text",
       "invalid_type"},
      {message("user", R"([{"type": "image"}])"), "messages[0].content[0]", "unsupported_value"},
      {message("user", R"([{"type": "document"}])"), "messages[0].content[0]", "unsupported_value"},
      {message("user", R"([{"type": "tool_use"}])"), "messages[0].content[0].type",
       "invalid_value"},
      {message("user", R"([{"type": "tool_result"}])"), "messages[0].content[0].tool_use_id",
       "missing_required_parameter"},
      {message("user", R"([{"type": "tool_result", "tool_use_id": "t", "is_error": 1}])"),
       "messages[0].content[0].is_error", "invalid_type"},
      {message("user", R"([{"type": "tool_result", "tool_use_id": "t", "content":
                            [{"type": "image"}]}])"),
       "messages[0].content[0].content[0]", "unsupported_value"},
      {message("assistant", R"([{"type": "tool_result"}])"), "messages[0].content[0].type",
       "invalid_value"},
      {message("assistant", R"([{"type": "thinking"}])"), "messages[0].content[0].thinking",
       "missing_required_parameter"},
      {message("assistant", R"([{"type": "tool_use", "id": "t", "name": "f"}])"),
       "messages[0].content[0].input", "missing_required_parameter"},
      {message("assistant", R"([{"type": "tool_use", "id": "t", "name": "f", "input": "{}"}])"),
       "messages[0].content[0].input", "invalid_type"},
      {message("assistant", R"([{"type": "tool_use", "id": "t", "name": "", "input": {}}])"),
       "messages[0].content[0].name", "invalid_value"},
      {message("assistant", R"([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])"),
       "messages[0].content", "invalid_value"},
      {kHello + R"(, "system": 1)", "system", "invalid_type"},
      {kHello + R"(, "system": [{"type": "image"}])", "system[0]", "unsupported_value"},
      {kHello + R"(, "max_tokens": 0)", "max_tokens", "invalid_value"},
      {kHello + R"(, "max_tokens": "1")", "max_tokens", "invalid_type"},
      {kHello + R"(, "temperature": 1.1)", "temperature", "invalid_value"},
      {kHello + R"(, "top_p": 2)", "top_p", "invalid_value"},
      {kHello + R"(, "top_k": 1.5)", "top_k", "invalid_type"},
      {kHello + R"(, "stream": "yes")", "stream", "invalid_type"},
      {kHello + R"(, "stop_sequences": "a")", "stop_sequences", "invalid_type"},
      {kHello + R"(, "stop_sequences": [1])", "stop_sequences[0]", "invalid_type"},
      {kHello + R"(, "stop_sequences": ["a", ""])", "stop_sequences[1]", "invalid_value"},
      {kHello + R"(, "stop_sequences": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a",
                   "a","a","a"])",
       "stop_sequences", "invalid_value"},
      {tools("1"), "tools[0]", "invalid_type"},
      {tools("{}"), "tools[0].name", "missing_required_parameter"},
      {tools(R"({"name": "a b", "input_schema": {}})"), "tools[0].name", "invalid_value"},
      {tools(R"({"name": "f"})"), "tools[0].input_schema", "missing_required_parameter"},
      {tools(R"({"name": "f", "input_schema": 1})"), "tools[0].input_schema", "invalid_type"},
      {tools(tool + "," + tool), "tools[1].name", "invalid_value"},
      {tools(tool) + R"(, "tool_choice": "auto")", "tool_choice", "invalid_type"},
      {tools(tool) + R"(, "tool_choice": {"type": "required"})", "tool_choice.type",
       "invalid_value"},
      {tools(tool) + R"(, "tool_choice": {"type": "tool"})", "tool_choice.name",
       "missing_required_parameter"},
      {tools(tool) + R"(, "tool_choice": {"type": "tool", "name": "g"})", "tool_choice.name",
       "invalid_value"},
      {tools(R"({"type": "bash_1"})") + R"(, "tool_choice": {"type": "any"})", "tool_choice",
       "invalid_value"},
      {kHello + R"(, "thinking": {"type": "on"})", "thinking.type", "invalid_value"},
      {kHello + R"(, "thinking": {"type": "enabled", "budget_tokens": 0})",
       "thinking.budget_tokens", "invalid_value"},
      {kHello + R"(, "output_format": {"type": "json_object"})", "output_format.type",
       "invalid_value"},
      {kHello + R"(, "output_config": {"format": {"type": "json_schema"}})",
       "output_config.format.schema", "missing_required_parameter"},
      {kHello + R"(, "output_config": {"effort": "some"})", "output_config.effort",
       "invalid_value"},
  };
  for (const BadMessagesBody& bad : bodies) {
    const auto error = ErrorOf([&] { ParseMessages(bad.fields); });
    ASSERT_TRUE(error) << bad.fields;
    EXPECT_EQ(error->param(), bad.param) << bad.fields;
    EXPECT_EQ(error->reason(), bad.reason) << bad.fields;
    // The body of an error has no field for the name.
    EXPECT_NE(std::string(error->what()).find(bad.param), std::string::npos) << error->what();
  }
}

TEST(MessagesRequest, OnlyMessagesNeedALimit) {
  const auto error = ErrorOf([&] { ParseMessages(kHello, MessagesRoute::kMessages); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param(), "max_tokens");
  EXPECT_FALSE(ParseMessages(kHello).chat->contains("max_tokens"));
}

TEST(MessagesRequest, ChatAcceptsWhatIsTranslated) {
  const MessagesRequest request = ParseMessages(R"("messages": [
      {"role": "user", "content": "a"},
      {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"},
          {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1, null]}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1"}]}],
      "tools": [{"name": "f", "input_schema": {"type": "object"}}], "max_tokens": 5,
      "stop_sequences": ["x"], "thinking": {"type": "enabled", "budget_tokens": 5}, "top_k": 0)");
  const ChatRequest chat = ParseChatRequest(*request.chat, kMessagesLimits);
  EXPECT_EQ(chat.prompt.messages->size(), 3u);
  EXPECT_EQ(chat.max_tokens, 5);
  EXPECT_TRUE(chat.ignored.empty());
}

TEST(MessagesRequest, LaterErrorsNameTheFieldsOfTheRequest) {
  MessagesRequest request;
  request.tool_indexes = {0, 3};
  request.format_path = "output_config.format";
  const Error schema =
      InMessagesTerms(BadValue("response_format.json_schema.schema",
                               "response_format.json_schema.schema.not is not supported"),
                      request);
  EXPECT_EQ(schema.param(), "output_config.format.schema");
  EXPECT_STREQ(schema.what(), "output_config.format.schema.not is not supported");
  EXPECT_EQ(schema.reason(), "invalid_value");
  request.format_path = "output_format";
  EXPECT_EQ(InMessagesTerms(BadValue("response_format", "x"), request).param(), "output_format");
  const Error tool = InMessagesTerms(BadValue("tools[1].function.parameters", "x"), request);
  EXPECT_EQ(tool.param(), "tools[3].input_schema");
  EXPECT_EQ(InMessagesTerms(BadValue("tools[99999]", "x"), request).param(), "tools[99999]");
}

TEST(ErrorBody, AnthropicShapeHasItsOwnTypesAndStatuses) {
  struct Case {
    int status;
    const char* code;
    int expected_status;
    const char* type;
  };
  const Case cases[] = {{400, "invalid_value", 400, "invalid_request_error"},
                        {401, "invalid_api_key", 401, "authentication_error"},
                        {403, "insufficient_permissions", 403, "permission_error"},
                        {404, "model_not_found", 404, "not_found_error"},
                        {405, "method_not_allowed", 405, "invalid_request_error"},
                        {413, "request_too_large", 413, "request_too_large"},
                        {429, "rate_limit_exceeded", 429, "rate_limit_error"},
                        {500, "internal_error", 500, "api_error"},
                        {503, "server_overloaded", 529, "overloaded_error"},
                        {503, "out_of_memory", 529, "overloaded_error"},
                        {503, "shutting_down", 503, "api_error"}};
  for (const Case& one : cases) {
    const ErrorReply reply =
        InAnthropicShape(MakeErrorReply(one.status, one.code, "why", "field"), "req_1");
    EXPECT_EQ(reply.status, one.expected_status) << one.code;
    EXPECT_EQ(reply.code, one.code);
    EXPECT_EQ(MessagesJson::parse(reply.body),
              (MessagesJson{{"type", "error"},
                            {"error", {{"type", one.type}, {"message", "why"}}},
                            {"request_id", "req_1"}}));
  }
}

TEST(ErrorBody, AnthropicShapeIsBoundedAndValid) {
  const std::string hostile(100000, '\xff');
  const ErrorReply reply = InAnthropicShape(MakeErrorReply(400, "invalid_value", hostile), "req_1");
  EXPECT_LT(reply.body.size(), 8192u);
  EXPECT_TRUE(MessagesJson::parse(reply.body)["error"]["message"].is_string());
}

}  // namespace
}  // namespace tandem::server
