#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"
#include "server/wire/ollama/embed.h"
#include "server/wire/ollama/request.h"
#include "server/wire/ollama/timestamp.h"

namespace tandem::server {
namespace {

using OllamaJson = nlohmann::ordered_json;

constexpr ModelLimits kOllamaLimits = {128, 1000};
const std::string kOllamaHi = R"("model": "m", "messages": [{"role": "user", "content": "Hi"}])";

OllamaRequest ChatRequestOf(const std::string& fields) {
  return ParseOllamaChat(ParseJsonObject("{" + fields + "}"), kOllamaLimits);
}

OllamaRequest GenerateRequestOf(const std::string& fields, bool has_template = true) {
  return ParseOllamaGenerate(ParseJsonObject("{" + fields + "}"), kOllamaLimits, has_template);
}

// The chat body of these members besides `model` and `messages`.
OllamaJson OllamaChatOf(const std::string& fields) {
  return *ChatRequestOf(kOllamaHi + ", " + fields).body;
}

OllamaJson OllamaHistoryOf(const std::string& messages) {
  return ChatRequestOf("\"messages\": [" + messages + "]").body->at("messages");
}

template <class Action>
Error OllamaFault(Action&& action) {
  const std::optional<Error> error = ErrorOf(action);
  EXPECT_TRUE(error);
  return error.value_or(Error(ErrorCode::kInternal, "no error"));
}

TEST(OllamaRequest, StreamsUnlessToldOtherwise) {
  EXPECT_TRUE(ChatRequestOf(kOllamaHi).stream);
  EXPECT_EQ(OllamaChatOf(R"("stream": null)")["stream"], true);
  EXPECT_FALSE(OllamaChatOf(R"("stream": false)").contains("stream"));
}

TEST(OllamaRequest, OptionsBecomeFieldsOfChat) {
  const OllamaJson chat = OllamaChatOf(R"("options": {
      "num_predict": 20, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 7,
      "stop": ["a", "b"], "repeat_penalty": 1.2, "presence_penalty": 1, "frequency_penalty": -1})");

  EXPECT_EQ(chat["max_tokens"], 20);
  EXPECT_EQ(chat["temperature"], 0.5);
  EXPECT_EQ(chat["top_k"], 3);
  EXPECT_EQ(chat["top_p"], 0.9);
  EXPECT_EQ(chat["min_p"], 0.1);
  EXPECT_EQ(chat["seed"], 7);
  EXPECT_EQ(chat["stop"], OllamaJson::parse(R"(["a", "b"])"));
  EXPECT_EQ(chat["repetition_penalty"], 1.2);
  EXPECT_EQ(chat["presence_penalty"], 1);
  EXPECT_EQ(chat["frequency_penalty"], -1);
  EXPECT_NO_THROW(ParseChatRequest(chat, kOllamaLimits));
}

TEST(OllamaRequest, ValuesThatAskForNothingLeaveTheDefault) {
  const OllamaJson chat = OllamaChatOf(R"("format": "", "tools": [], "think": null, "options": {
      "num_predict": -1, "seed": -1, "stop": [], "repeat_penalty": 1.5, "repeat_last_n": 0,
      "mirostat": 0, "tfs_z": 1.0, "typical_p": 1})");
  EXPECT_EQ(chat, OllamaJson::parse(R"({"messages": [{"role": "user", "content": "Hi"}],
                                        "stream": true})"));
}

TEST(OllamaRequest, OptionsWithoutEffectAreNamed) {
  const OllamaRequest request = ChatRequestOf(
      kOllamaHi +
      R"(, "options": {"num_gpu": 1, "num_ctx": 129, "temperature": 1}, "shift": true)");
  EXPECT_EQ(request.ignored,
            (std::vector<std::string>{"options.num_ctx", "options.num_gpu", "shift"}));
  EXPECT_TRUE(ChatRequestOf(kOllamaHi + R"(, "options": {"num_ctx": 128})").ignored.empty());
}

TEST(OllamaRequest, AnAnswerLongerThanTheContextIsCapped) {
  EXPECT_EQ(OllamaChatOf(R"("options": {"num_predict": 1000000})")["max_tokens"], 128);
}

TEST(OllamaRequest, FaultsHaveOllamasNames) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {R"("options": {"temperature": 3})", "options.temperature"},
      {R"("options": {"temperature": "hot"})", "options.temperature"},
      {R"("options": {"mirostat": 2})", "options.mirostat"},
      {R"("options": {"typical_p": 0.5})", "options.typical_p"},
      {R"("options": {"stop": [""]})", "options.stop[0]"},
      {R"("options": {"stop": 5})", "options.stop"},
      {R"("options": [])", "options"},
      {R"("format": "xml")", "format"},
      {R"("format": 1)", "format"},
      {R"("think": "a lot")", "think"},
      {R"("stream": "yes")", "stream"},
      {R"("tools": {})", "tools"},
      {R"("keep_alive": "soon")", "keep_alive"},
      {R"("keep_alive": "5 m")", "keep_alive"},
      {R"("keep_alive": "inf")", "keep_alive"},
      {R"("keep_alive": [])", "keep_alive"}};
  for (const auto& [fields, param] : kCases) {
    EXPECT_EQ(OllamaFault([&] { OllamaChatOf(fields); }).param(), param) << fields;
  }
}

TEST(OllamaRequest, OnlyAZeroKeepAliveUnloads) {
  for (const char* zero : {"0", "0.0", "\"0\"", "\"0s\"", "\"-0m\"", "\"0h0m\""}) {
    EXPECT_TRUE(ChatRequestOf(std::string(R"("keep_alive": )") + zero).is_zero_keep_alive) << zero;
  }
  for (const char* other : {"null", "-1", "300", "\"5m\"", "\"-1m\"", "\"1h30m\"", "\"1.5s\"",
                            "\"10ms\"", "\"0h1ns\""}) {
    EXPECT_FALSE(ChatRequestOf(std::string(R"("keep_alive": )") + other).is_zero_keep_alive)
        << other;
  }
}

TEST(OllamaRequest, ARequestWithoutPromptHasNoBody) {
  EXPECT_EQ(ChatRequestOf(R"("model": "m")").body, nullptr);
  EXPECT_EQ(ChatRequestOf(R"("messages": [])").body, nullptr);
  EXPECT_EQ(GenerateRequestOf(R"("prompt": "")").body, nullptr);
  EXPECT_NE(GenerateRequestOf(R"("prompt": "a")").body, nullptr);
}

TEST(OllamaRequest, CallsGetIdsAndResultsThatOfTheirCall) {
  const OllamaJson history = OllamaHistoryOf(R"(
      {"role": "user", "content": "Hi"},
      {"role": "assistant", "thinking": "hm", "tool_calls": [
          {"function": {"name": "f", "arguments": {"x": 1}}},
          {"function": {"name": "g", "arguments": {}}},
          {"function": {"name": "f", "arguments": {"x": 2}}}]},
      {"role": "tool", "tool_name": "g", "content": "G"},
      {"role": "tool", "tool_name": "f", "content": "F1"},
      {"role": "tool", "content": "F2"})");

  EXPECT_EQ(history[1]["reasoning_content"], "hm");
  EXPECT_EQ(history[1]["content"], "");
  const OllamaJson& calls = history[1]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"], OllamaJson::parse(R"({"x": 1})"));
  EXPECT_EQ(history[2]["tool_call_id"], calls[1]["id"]);
  EXPECT_EQ(history[3]["tool_call_id"], calls[0]["id"]);
  EXPECT_EQ(history[4]["tool_call_id"], calls[2]["id"]);
  EXPECT_NE(calls[0]["id"], calls[2]["id"]);
  OllamaJson chat;
  chat["messages"] = history;
  EXPECT_NO_THROW(ParseChatRequest(chat, kOllamaLimits));
}

TEST(OllamaRequest, AResultWithoutItsCallIsAccepted) {
  const OllamaJson history = OllamaHistoryOf(R"({"role": "tool", "tool_name": "f", "content": "1"},
                                                {"role": "tool", "content": "2"})");
  EXPECT_NE(history[0]["tool_call_id"], history[1]["tool_call_id"]);
}

TEST(OllamaRequest, FaultsOfMessagesNameTheirPlace) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {R"(5)", "messages[0]"},
      {R"({"content": "a"})", "messages[0].role"},
      {R"({"role": "robot"})", "messages[0].role"},
      {R"({"role": "user", "content": ["a"]})", "messages[0].content"},
      {R"({"role": "user", "content": "a", "images": ["aGk="]})", "messages[0].images"},
      {R"({"role": "assistant", "tool_calls": [{}]})", "messages[0].tool_calls[0].function"},
      {R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]})",
       "messages[0].tool_calls[0].function.arguments"}};
  for (const auto& [message, param] : kCases) {
    EXPECT_EQ(OllamaFault([&] { OllamaHistoryOf(message); }).param(), param) << message;
  }
}

TEST(OllamaRequest, ALastAnswerIsContinued) {
  const auto continues = [](const std::string& last) {
    return ChatRequestOf(R"("messages": [{"role": "user", "content": "Hi"}, )" + last + "]")
        .body->contains("continue_final_message");
  };
  EXPECT_TRUE(continues(R"({"role": "assistant", "content": "Once"})"));
  EXPECT_FALSE(continues(R"({"role": "assistant", "content": ""})"));
  EXPECT_FALSE(continues(R"({"role": "user", "content": "more"})"));
}

TEST(OllamaRequest, AFormatIsTheResponseFormat) {
  EXPECT_EQ(OllamaChatOf(R"("format": "json")")["response_format"]["type"], "json_object");
  const OllamaJson format = OllamaChatOf(R"("format": {"type": "object"})")["response_format"];
  EXPECT_EQ(format["json_schema"]["schema"], OllamaJson::parse(R"({"type": "object"})"));
}

TEST(OllamaRequest, ToolsWithoutATypeAreFunctions) {
  const OllamaJson tools =
      OllamaChatOf(R"("tools": [{"function": {"name": "f", "parameters": {}}}])")["tools"];
  EXPECT_EQ(tools[0]["type"], "function");
}

TEST(OllamaRequest, ThinkIsTheTemplatesSwitchAndTheEffort) {
  EXPECT_EQ(OllamaChatOf(R"("think": false)")["chat_template_kwargs"]["enable_thinking"], false);
  EXPECT_FALSE(ChatRequestOf(kOllamaHi + R"(, "think": false)").thinks);
  const OllamaRequest high = ChatRequestOf(kOllamaHi + R"(, "think": "high")");
  EXPECT_TRUE(high.thinks);
  EXPECT_EQ((*high.body)["reasoning_effort"], "high");
}

TEST(OllamaRequest, APromptIsOneTurnOfAChat) {
  const OllamaRequest turn = GenerateRequestOf(R"("prompt": "Hi", "system": "Be brief.",
                                                  "context": [5, 6])");
  EXPECT_FALSE(turn.is_plain);
  EXPECT_EQ(turn.body->at("messages"), OllamaJson::parse(R"([
      {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])"));
  EXPECT_EQ(turn.context, (std::vector<TokenId>{5, 6}));
}

TEST(OllamaRequest, ARawPromptAndAModelWithoutTemplateAreCompletions) {
  const OllamaRequest raw = GenerateRequestOf(R"("prompt": "<s>Hi", "raw": true)");
  EXPECT_TRUE(raw.is_plain);
  EXPECT_EQ(raw.body->at("parse_special"), true);
  const CompletionRequest completion = ParseCompletionRequest(*raw.body, kOllamaLimits);
  EXPECT_EQ(completion.max_tokens, 128);
  const OllamaRequest plain = GenerateRequestOf(R"("prompt": "<s>Hi")", false);
  EXPECT_TRUE(plain.is_plain);
  EXPECT_EQ(plain.body->at("parse_special"), false);
}

TEST(OllamaRequest, ASuffixAsksForTheTextBetween) {
  const OllamaRequest request = GenerateRequestOf(R"("prompt": "a", "suffix": "b")");
  EXPECT_TRUE(request.is_plain);
  EXPECT_EQ(request.body->at("suffix"), "b");
}

TEST(OllamaRequest, FaultsOfAPromptAreNamed) {
  const std::vector<std::pair<std::string, std::string>> kCases = {
      {R"("prompt": "a", "images": ["aGk="])", "images"},
      {R"("prompt": "a", "template": "{{ .Prompt }}")", "template"},
      {R"("prompt": "a", "raw": true, "system": "b")", "raw"},
      {R"("prompt": "a", "raw": true, "context": [1])", "raw"},
      {R"("prompt": "a", "suffix": "b", "system": "c")", "suffix"},
      {R"("prompt": "a", "context": [1000])", "context[0]"},
      {R"("prompt": 5)", "prompt"}};
  for (const auto& [fields, param] : kCases) {
    EXPECT_EQ(OllamaFault([&] { GenerateRequestOf(fields); }).param(), param) << fields;
  }
}

TEST(OllamaRequest, LaterFaultsAreToldInOllamasTerms) {
  const Error error = InOllamaTerms(
      Error(ErrorCode::kInvalidArgument, "response_format.json_schema.schema cannot be served")
          .WithParam("response_format.json_schema.schema"));
  EXPECT_EQ(error.param(), "format");
  EXPECT_STREQ(error.what(), "format cannot be served");
}

TEST(OllamaEmbed, ReadsTextsAndCutsThemByDefault) {
  const auto parse = [](const std::string& fields, OllamaEmbedRoute route) {
    return ParseOllamaEmbed(ParseJsonObject("{" + fields + "}"), route, 64);
  };
  const OllamaEmbedRequest list = parse(R"("input": ["a", "b"])", OllamaEmbedRoute::kEmbed);
  EXPECT_EQ(list.texts, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(list.truncates);
  EXPECT_EQ(list.dimensions, 64);
  EXPECT_EQ(parse(R"("prompt": "a")", OllamaEmbedRoute::kEmbeddings).texts.size(), 1);
  EXPECT_TRUE(parse(R"("input": "")", OllamaEmbedRoute::kEmbed).texts.empty());
  EXPECT_EQ(OllamaFault([&] { parse(R"("input": ["a", 5])", OllamaEmbedRoute::kEmbed); }).param(),
            "input[1]");
  EXPECT_EQ(OllamaFault([&] { parse(R"("input": [""])", OllamaEmbedRoute::kEmbed); }).param(),
            "input[0]");
  EXPECT_EQ(OllamaFault([&] {
              parse(R"("input": "a", "dimensions": 65)", OllamaEmbedRoute::kEmbed);
            }).param(),
            "dimensions");
}

TEST(OllamaTime, IsUtcWithMicroseconds) {
  using std::chrono::microseconds;
  EXPECT_EQ(OllamaTime(std::chrono::system_clock::time_point(microseconds(1'000'042))),
            "1970-01-01T00:00:01.000042Z");
  EXPECT_EQ(OllamaTime(std::chrono::system_clock::time_point(microseconds(-1))),
            "1969-12-31T23:59:59.999999Z");
}

}  // namespace
}  // namespace tandem::server
