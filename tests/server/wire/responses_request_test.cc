#include "server/wire/responses/responses_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/attempt.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr ModelLimits kResponsesLimits{.max_model_len = 256, .vocab_size = 100};

ResponsesLookup StoredLookup() {
  ResponsesLookup lookup;
  lookup.items_of = [](const std::string& id) -> std::optional<Json> {
    if (id != "resp_1") return std::nullopt;
    return Json::parse(R"([{"id":"msg_1i0","type":"message","role":"user",
        "content":[{"type":"input_text","text":"Hi"}]},
        {"id":"fc_1o0","type":"function_call","status":"completed","call_id":"call_1","name":"f",
         "arguments":"{}"}])");
  };
  lookup.find_item = [](const std::string& id) -> std::optional<Json> {
    if (id != "msg_1o0") return std::nullopt;
    return Json::parse(R"({"id":"msg_1o0","type":"message","role":"assistant",
        "content":[{"type":"output_text","text":"Said"}]})");
  };
  return lookup;
}

ResponsesRequest ParseResponse(Json body) {
  body["model"] = "m";
  if (!body.contains("input")) body["input"] = "Hi";
  return ParseResponsesRequest(body, kResponsesLimits, StoredLookup());
}

Json MessagesOf(const std::string& input, Json more = Json::object()) {
  more["input"] = Json::parse(input);
  return (*ParseResponse(std::move(more)).chat)["messages"];
}

// "PARAM CODE" of the error.
std::string FaultOfResponse(Json body) {
  const auto error = ErrorOf([&] { ParseResponse(std::move(body)); });
  return error ? error->param() + " " + error->reason() : "none";
}
std::string FaultOfInput(const std::string& input) {
  return FaultOfResponse({{"input", Json::parse(input)}});
}

TEST(ResponsesRequest, TextIsOneUserMessage) {
  EXPECT_EQ(MessagesOf(R"("Hi")"),
            Json::parse(R"([{"role":"user","content":[{"type":"text","text":"Hi"}]}])"));
}

TEST(ResponsesRequest, InstructionsAndSystemMessagesAtTheFrontAreOneMessage) {
  const Json messages = MessagesOf(
      R"([{"role":"developer","content":"B"},{"role":"system","content":"C"},
          {"role":"user","content":"Hi"},{"role":"developer","content":"D"}])",
      {{"instructions", "A"}});

  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0], Json::parse(R"({"role":"system","content":"A\n\nB\n\nC"})"));
  EXPECT_EQ(messages[2]["role"], "developer");
}

TEST(ResponsesRequest, TheItemsOfATurnAreOneAssistantMessage) {
  const Json messages = MessagesOf(
      R"([{"role":"user","content":"Hi"},
          {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
          {"type":"message","role":"assistant","content":[{"type":"output_text","text":"Yes"}]},
          {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
          {"type":"custom_tool_call","call_id":"c2","name":"g","input":"x"},
          {"type":"function_call_output","call_id":"c1","output":"1"},
          {"type":"custom_tool_call_output","call_id":"c2",
           "output":[{"type":"input_text","text":"2"}]}])");

  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1], Json::parse(R"({"role":"assistant","reasoning_content":"hm",
      "content":"Yes","tool_calls":[
        {"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"c2","type":"custom","custom":{"name":"g","input":"x"}}]})"));
  EXPECT_EQ(messages[2], Json::parse(R"({"role":"tool","tool_call_id":"c1","content":"1"})"));
  EXPECT_EQ(messages[3], Json::parse(R"({"role":"tool","tool_call_id":"c2","content":"2"})"));
}

TEST(ResponsesRequest, TwoTextsOfTheAssistantStayTwoMessages) {
  EXPECT_EQ(MessagesOf(R"([{"role":"assistant","content":"a"},{"role":"assistant","content":"b"},
                           {"role":"user","content":"c"}])")
                .size(),
            3u);
}

TEST(ResponsesRequest, StoredItemsComeBeforeTheInputAndKeepTheirIds) {
  Json body = {{"previous_response_id", "resp_1"}, {"instructions", "A"}};
  body["input"] =
      Json::parse(R"([{"type":"function_call_output","call_id":"call_1","output":"1"}])");

  ResponsesRequest request = ParseResponse(body);
  AssignItemIds(request.input.items, "2");

  const Json& messages = (*request.chat)["messages"];
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[2]["tool_calls"][0]["id"], "call_1");
  EXPECT_EQ(messages[3]["role"], "tool");
  ASSERT_EQ(request.input.items.size(), 3u);
  EXPECT_EQ(request.input.items[0]["id"], "msg_1i0");
  EXPECT_EQ(request.input.items[2]["id"], "fco_2i2");
}

TEST(ResponsesRequest, AnUnknownPreviousResponseIsRefused) {
  EXPECT_EQ(FaultOfResponse({{"previous_response_id", "resp_9"}}),
            "previous_response_id previous_response_not_found");
}

TEST(ResponsesRequest, TokenIdsAreTheWholePromptAndAreNotStored) {
  const auto parse = [](Json body) {
    body["model"] = "m";
    body["prompt_token_ids"] = {1, 2};
    return ParseResponsesRequest(body, kResponsesLimits, StoredLookup());
  };
  const auto fault = [&](Json body) {
    const auto error = ErrorOf([&] { parse(std::move(body)); });
    return error ? error->param() : "none";
  };

  EXPECT_EQ((*parse({{"store", false}}).chat)["prompt_token_ids"], Json({1, 2}));
  EXPECT_EQ(fault(Json::object()), "prompt_token_ids");
  EXPECT_EQ(fault({{"store", false}, {"input", "Hi"}}), "prompt_token_ids");
  EXPECT_EQ(fault({{"store", false}, {"instructions", "A"}}), "prompt_token_ids");
}

TEST(ResponsesRequest, AReferenceIsItsItem) {
  const Json messages = MessagesOf(R"([{"type":"item_reference","id":"msg_1o0"}])");

  EXPECT_EQ(messages[0]["role"], "assistant");
  EXPECT_EQ(FaultOfInput(R"([{"type":"item_reference","id":"msg_9o0"}])"),
            "input[0].id item_not_found");
}

TEST(ResponsesRequest, ItemsOfHostedToolsAreSkippedAndNamed) {
  Json body;
  body["input"] = Json::parse(R"([{"type":"web_search_call","id":"ws_1"},
      {"type":"web_search_call","id":"ws_2"},{"role":"user","content":"Hi"}])");

  const ResponsesRequest request = ParseResponse(body);

  EXPECT_EQ((*request.chat)["messages"].size(), 1u);
  EXPECT_EQ(request.input.ignored, (std::vector<std::string>{"input.web_search_call"}));
  EXPECT_EQ(FaultOfInput(R"([{"type":"web_search_call"}])"), "input invalid_value");
}

TEST(ResponsesRequest, ACallThatTheLimitCutIsNoCallOfTheChat) {
  const Json messages = MessagesOf(
      R"([{"role":"user","content":"a"},{"type":"function_call","status":"incomplete",
          "call_id":"c","name":"f","arguments":"{\"a"},{"role":"user","content":"b"}])");

  EXPECT_EQ(messages.size(), 2u);
}

TEST(ResponsesRequest, FaultsOfInputNameTheirField) {
  EXPECT_EQ(FaultOfInput("[]"), "input invalid_value");
  EXPECT_EQ(FaultOfInput("7"), "input invalid_type");
  EXPECT_EQ(FaultOfInput(R"([{"type":"magic"}])"), "input[0].type invalid_value");
  EXPECT_EQ(FaultOfInput(R"([{"role":"clown","content":"x"}])"), "input[0].role invalid_value");
  EXPECT_EQ(FaultOfInput(R"([{"role":"user"}])"), "input[0].content missing_required_parameter");
  EXPECT_EQ(FaultOfInput(R"([{"role":"user","content":[{"type":"input_image"}]}])"),
            "input[0].content[0] unsupported_value");
  EXPECT_EQ(FaultOfInput(R"([{"role":"user","content":[{"type":"input_text"}]}])"),
            "input[0].content[0].text missing_required_parameter");
  EXPECT_EQ(FaultOfInput(R"([{"type":"function_call","call_id":"c","name":"f"}])"),
            "input[0].arguments missing_required_parameter");
  EXPECT_EQ(FaultOfInput(R"([{"type":"function_call_output","call_id":"c"}])"),
            "input[0].output missing_required_parameter");
}

TEST(ResponsesRequest, FaultsOfOtherFieldsNameThem) {
  EXPECT_EQ(FaultOfResponse({{"conversation", "c"}}), "conversation unsupported_parameter");
  EXPECT_EQ(FaultOfResponse({{"max_output_tokens", 0}}), "max_output_tokens invalid_value");
  EXPECT_EQ(FaultOfResponse({{"max_output_tokens", 257}}), "max_output_tokens invalid_value");
  EXPECT_EQ(FaultOfResponse({{"max_tokens", 5}}), "max_tokens unsupported_parameter");
  EXPECT_EQ(FaultOfResponse({{"n", 2}}), "n unsupported_parameter");
  EXPECT_EQ(FaultOfResponse({{"background", true}, {"store", false}}), "background invalid_value");
  EXPECT_EQ(FaultOfResponse({{"truncation", "x"}}), "truncation invalid_value");
  EXPECT_EQ(FaultOfResponse({{"metadata", {{"a", 1}}}}), "metadata.a invalid_type");
  EXPECT_EQ(FaultOfResponse({{"include", {1}}}), "include[0] invalid_type");
  EXPECT_EQ(FaultOfResponse({{"text", {{"format", {{"type", "x"}}}}}}),
            "text.format.type invalid_value");
  EXPECT_EQ(FaultOfResponse({{"text", {{"format", {{"type", "json_schema"}, {"name", "a"}}}}}}),
            "text.format.schema missing_required_parameter");
}

TEST(ResponsesRequest, ToolsAreNestedAndHostedOnesLeftOut) {
  Json body;
  body["tools"] = Json::parse(R"([{"type":"function","name":"f","parameters":{"type":"object"}},
      {"type":"web_search"},{"type":"web_search"},{"type":"custom","name":"p","format":
      {"type":"grammar","syntax":"lark","definition":"start: \"a\""}},
      {"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"},
                                              {"type":"function","name":"g"}]}])");

  const ResponsesRequest request = ParseResponse(body);

  EXPECT_EQ((*request.chat)["tools"], Json::parse(R"([
      {"type":"function","function":{"name":"f","parameters":{"type":"object"}}},
      {"type":"custom","custom":{"name":"p","format":{"type":"grammar",
        "grammar":{"syntax":"lark","definition":"start: \"a\""}}}},
      {"type":"function","function":{"name":"ns__f"}},
      {"type":"function","function":{"name":"g"}}])"));
  EXPECT_EQ(request.tools.ignored, (std::vector<std::string>{"web_search"}));
  EXPECT_EQ(request.tools.by_chat_name.at("ns__f").name_space, "ns");
  EXPECT_EQ((*request.settings)["tools"].size(), 3u);
  EXPECT_EQ((*request.settings)["tools"][2]["tools"][1]["name"], "g");
}

TEST(ResponsesRequest, ChoicesOfToolsAreNested) {
  Json body;
  body["tools"] = Json::parse(R"([{"type":"function","name":"f"},{"type":"custom","name":"p"}])");
  const auto choice = [&](const char* text) {
    body["tool_choice"] = Json::parse(text);
    return (*ParseResponse(body).chat)["tool_choice"];
  };
  const auto fault = [&](const char* text) {
    body["tool_choice"] = Json::parse(text);
    return FaultOfResponse(body);
  };

  EXPECT_EQ(choice(R"("required")"), "required");
  EXPECT_EQ(choice(R"({"type":"function","name":"f"})"),
            Json::parse(R"({"type":"function","function":{"name":"f"}})"));
  EXPECT_EQ(choice(R"({"type":"custom","name":"p"})"),
            Json::parse(R"({"type":"custom","custom":{"name":"p"}})"));
  EXPECT_EQ(choice(R"({"type":"allowed_tools","mode":"auto","tools":[
                       {"type":"function","name":"f"},{"type":"web_search"}]})"),
            Json::parse(R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[
                       {"type":"function","function":{"name":"f"}}]}})"));
  EXPECT_EQ(fault(R"({"type":"function","name":"p"})"), "tool_choice.name invalid_value");
  EXPECT_EQ(fault(R"({"type":"web_search"})"), "tool_choice.type unsupported_value");
  EXPECT_EQ(fault(R"("sometimes")"), "tool_choice invalid_value");
}

TEST(ResponsesRequest, FaultsOfToolsNameTheirField) {
  const auto fault = [](const char* tools) {
    return FaultOfResponse({{"tools", Json::parse(tools)}});
  };
  EXPECT_EQ(fault(R"([{"type":"function"}])"), "tools[0].name missing_required_parameter");
  EXPECT_EQ(fault(R"([{"type":"teapot"}])"), "tools[0].type invalid_value");
  EXPECT_EQ(fault(R"([{"type":"namespace","name":"n","tools":[{"type":"custom","name":"x",
                       "format":{"type":"grammar","syntax":"ebnf","definition":""}}]}])"),
            "tools[0].tools[0].format.syntax invalid_value");
}

TEST(ResponsesRequest, SettingsHaveTheirChatNames) {
  Json body = {{"max_output_tokens", 9},
               {"reasoning", {{"effort", "low"}}},
               {"include", {"message.output_text.logprobs", "reasoning.encrypted_content"}},
               {"top_logprobs", 2},
               {"seed", 7},
               {"zebra", 1},
               {"client_metadata", {{"a", "b"}}}};
  body["text"]["format"] = {
      {"type", "json_schema"}, {"name", "s"}, {"schema", {{"type", "object"}}}};

  const ResponsesRequest request = ParseResponse(body);
  const Json& chat = *request.chat;

  EXPECT_EQ(chat["max_completion_tokens"], 9);
  EXPECT_EQ(chat["reasoning_effort"], "low");
  EXPECT_EQ(chat["logprobs"], true);
  EXPECT_EQ(chat["top_logprobs"], 2);
  EXPECT_EQ(chat["seed"], 7);
  EXPECT_EQ(chat["zebra"], 1);  // ParseChatRequest lists it as ignored
  EXPECT_FALSE(chat.contains("client_metadata"));
  EXPECT_EQ(chat["response_format"]["json_schema"]["name"], "s");
  EXPECT_EQ((*request.settings)["text"]["format"]["strict"], true);
  EXPECT_EQ((*request.settings)["store"], true);
}

TEST(ResponsesRequest, FaultsOfTheChatNameTheFieldsOfThisApi) {
  Json body;
  body["instructions"] = "A";
  body["input"] = Json::parse(R"([{"role":"user","content":"x"},{"role":"user","content":"y"}])");
  body["tools"] = Json::parse(R"([{"type":"web_search"},{"type":"function","name":"?"}])");
  const ResponsesRequest request = ParseResponse(body);
  const auto own = [&](const std::string& param) {
    return InResponsesTerms(Error(ErrorCode::kInvalidArgument, param + " is bad").WithParam(param),
                            request);
  };

  EXPECT_EQ(own("messages[2].content").param(), "input[1]");
  EXPECT_STREQ(own("messages[0]").what(), "instructions is bad");
  EXPECT_EQ(own("messages").param(), "input");
  EXPECT_EQ(own("tools[0].function.name").param(), "tools[1].name");
  EXPECT_EQ(own("response_format.json_schema.schema").param(), "text.format.schema");
  EXPECT_EQ(own("temperature").param(), "temperature");
}

}  // namespace
}  // namespace tandem::server
