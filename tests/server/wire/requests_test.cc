#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"
#include "server/wire/error_body.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr ModelLimits kLimits = {128, 1000};

struct BadBody {
  const char* fields;  // members besides messages or prompt
  const char* param;
  const char* code;
};

// Each bad body gives exactly this status, param and code.
void ExpectRefusal(const std::function<void()>& parse, const BadBody& bad) {
  SCOPED_TRACE(bad.fields);
  try {
    parse();
    FAIL() << "accepted";
  } catch (const Error& error) {
    const ErrorReply reply = MakeErrorReply(error, "req_1");
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json body = Json::parse(reply.body)["error"];
    EXPECT_EQ(body["param"], bad.param) << reply.body;
    EXPECT_EQ(body["code"], bad.code) << reply.body;
    EXPECT_EQ(body["type"], "invalid_request_error");
    EXPECT_LT(reply.body.size(), 4096u);
  }
}

const BadBody kBadCommonFields[] = {
    {R"("temperature": "hot")", "temperature", "invalid_type"},
    {R"("temperature": true)", "temperature", "invalid_type"},
    {R"("temperature": 2.1)", "temperature", "invalid_value"},
    {R"("temperature": -0.1)", "temperature", "invalid_value"},
    {R"("top_p": 1.5)", "top_p", "invalid_value"},
    {R"("top_k": -2)", "top_k", "invalid_value"},
    {R"("top_k": 1.5)", "top_k", "invalid_type"},
    {R"("min_p": 2)", "min_p", "invalid_value"},
    {R"("n": 0)", "n", "invalid_value"},
    {R"("n": 129)", "n", "invalid_value"},
    {R"("n": 1e30)", "n", "invalid_value"},
    {R"("seed": 18446744073709551615)", "seed", "invalid_value"},
    {R"("seed": "1")", "seed", "invalid_type"},
    {R"("stop": "")", "stop", "invalid_value"},
    {R"("stop": [])", "stop", "invalid_value"},
    {R"("stop": [1])", "stop[0]", "invalid_type"},
    {R"("stop": ["a", ""])", "stop[1]", "invalid_value"},
    {R"("stop": {})", "stop", "invalid_type"},
    {R"("stop_token_ids": [1000])", "stop_token_ids[0]", "invalid_value"},
    {R"("stop_token_ids": 3)", "stop_token_ids", "invalid_type"},
    {R"("ignore_eos": 1)", "ignore_eos", "invalid_type"},
    {R"("min_tokens": 129)", "min_tokens", "invalid_value"},
    {R"("max_tokens": 4, "min_tokens": 5)", "min_tokens", "invalid_value"},
    {R"("max_tokens": 129)", "max_tokens", "invalid_value"},
    {R"("max_tokens": "4")", "max_tokens", "invalid_type"},
    {R"("presence_penalty": 3)", "presence_penalty", "invalid_value"},
    {R"("frequency_penalty": -3)", "frequency_penalty", "invalid_value"},
    {R"("repetition_penalty": 0)", "repetition_penalty", "invalid_value"},
    {R"("logit_bias": {"x": 1})", "logit_bias", "invalid_value"},
    {R"("logit_bias": {"1000": 1})", "logit_bias", "invalid_value"},
    {R"("logit_bias": {"-1": 1})", "logit_bias", "invalid_value"},
    {R"("logit_bias": {"1": 101})", "logit_bias", "invalid_value"},
    {R"("logit_bias": {"1": "1"})", "logit_bias", "invalid_type"},
    {R"("logit_bias": [1])", "logit_bias", "invalid_type"},
    {R"("prompt_logprobs": 21)", "prompt_logprobs", "invalid_value"},
    {R"("stream": "yes")", "stream", "invalid_type"},
    {R"("stream_options": {"include_usage": true})", "stream_options", "invalid_value"},
    {R"("stream": true, "stream_options": {"include_usage": 1})", "stream_options.include_usage",
     "invalid_type"},
    {R"("response_format": {"type": "yaml"})", "response_format.type", "invalid_value"},
    {R"("response_format": {})", "response_format.type", "missing_required_parameter"},
};

TEST(ChatRequest, NamesTheFieldAtFault) {
  const BadBody only_chat[] = {
      {R"("max_tokens": 0)", "max_tokens", "invalid_value"},
      {R"("max_completion_tokens": 0)", "max_completion_tokens", "invalid_value"},
      {R"("top_logprobs": 2)", "top_logprobs", "invalid_value"},
      {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs", "invalid_value"},
      {R"("logprobs": 2)", "logprobs", "invalid_type"},
      {R"("tools": [{"type": "function"}])", "tools[0].function", "missing_required_parameter"},
      {R"("tool_choice": "required")", "tool_choice", "invalid_value"},
      {R"("functions": [])", "functions", "unsupported_parameter"},
      {R"("audio": {})", "audio", "unsupported_parameter"},
      {R"("modalities": ["text", "audio"])", "modalities", "unsupported_parameter"},
      {R"("continue_final_message": true)", "continue_final_message", "invalid_value"},
      {R"("chat_template_kwargs": {"messages": []})", "chat_template_kwargs", "invalid_value"},
      {R"("reasoning_effort": "huge")", "reasoning_effort", "invalid_value"},
  };
  const auto parse = [](const BadBody& bad) {
    const std::string text =
        std::string(R"({"messages": [{"role": "user", "content": "hi"}], )") + bad.fields + "}";
    const Json body = ParseJsonObject(text);
    ExpectRefusal([&] { ParseChatRequest(body, kLimits); }, bad);
  };
  for (const BadBody& bad : kBadCommonFields) parse(bad);
  for (const BadBody& bad : only_chat) parse(bad);
}

TEST(CompletionRequest, NamesTheFieldAtFault) {
  const BadBody only_completions[] = {
      {R"("max_tokens": -1)", "max_tokens", "invalid_value"},
      {R"("logprobs": 21)", "logprobs", "invalid_value"},
      {R"("logprobs": true)", "logprobs", "invalid_type"},
      {R"("n": 3, "best_of": 2)", "best_of", "invalid_value"},
      {R"("best_of": 2, "stream": true)", "best_of", "invalid_value"},
      {R"("suffix": "end")", "suffix", "unsupported_parameter"},
  };
  const auto parse = [](const BadBody& bad) {
    const Json body = ParseJsonObject(std::string(R"({"prompt": "hi", )") + bad.fields + "}");
    ExpectRefusal([&] { ParseCompletionRequest(body, kLimits); }, bad);
  };
  for (const BadBody& bad : kBadCommonFields) parse(bad);
  for (const BadBody& bad : only_completions) parse(bad);
}

TEST(ChatRequest, TakesTokenIdsInPlaceOfMessages) {
  const auto parse = [](const std::string& fields) {
    return ParseChatRequest(ParseJsonObject("{" + fields + "}"), kLimits);
  };
  const ChatRequest request = parse(R"("prompt_token_ids": [0, 999, 7.0], "messages": null)");
  EXPECT_EQ(request.prompt_ids, (std::vector<TokenId>{0, 999, 7}));
  EXPECT_EQ(request.prompt.messages, nullptr);

  const BadBody cases[] = {
      {R"("prompt_token_ids": [])", "prompt_token_ids", "invalid_value"},
      {R"("prompt_token_ids": "a")", "prompt_token_ids", "invalid_type"},
      {R"("prompt_token_ids": [1, 1000])", "prompt_token_ids[1]", "invalid_value"},
      {R"("prompt_token_ids": [1], "messages": [{"role": "user", "content": "hi"}])",
       "prompt_token_ids", "invalid_value"},
      {R"("prompt_token_ids": [1], "add_generation_prompt": true)", "add_generation_prompt",
       "invalid_value"},
      {R"("prompt_token_ids": [1], "continue_final_message": true)", "continue_final_message",
       "invalid_value"},
      {R"("prompt_token_ids": [1], "chat_template_kwargs": {})", "chat_template_kwargs",
       "invalid_value"},
      {R"("prompt_token_ids": [1], "reasoning_effort": "low")", "reasoning_effort",
       "invalid_value"},
  };
  for (const BadBody& bad : cases) ExpectRefusal([&] { parse(bad.fields); }, bad);
}

TEST(CompletionRequest, TakesASuffixForModelsThatFillIn) {
  ModelLimits limits = kLimits;
  limits.fills_in = true;
  const auto parse = [&](const std::string& fields) {
    return ParseCompletionRequest(ParseJsonObject(R"({"prompt": "", )" + fields + "}"), limits);
  };
  EXPECT_EQ(parse(R"("suffix": "end")").suffix, "end");
  EXPECT_EQ(parse(R"("suffix": "")").suffix, std::nullopt);
  EXPECT_EQ(parse(R"("suffix": null)").suffix, std::nullopt);

  const BadBody cases[] = {
      {R"("suffix": "end", "echo": true)", "suffix", "invalid_value"},
      {R"("suffix": 3)", "suffix", "invalid_type"},
  };
  for (const BadBody& bad : cases) ExpectRefusal([&] { parse(bad.fields); }, bad);
}

TEST(CompletionRequest, ChecksEveryKindOfPrompt) {
  const std::pair<const char*, BadBody> cases[] = {
      {"{}", {"missing", "prompt", "missing_required_parameter"}},
      {R"({"prompt": null})", {"null", "prompt", "missing_required_parameter"}},
      {R"({"prompt": 5})", {"number", "prompt", "invalid_type"}},
      {R"({"prompt": []})", {"empty", "prompt", "invalid_value"}},
      {R"({"prompt": [[]]})", {"empty ids", "prompt[0]", "invalid_value"}},
      {R"({"prompt": ["a", 1]})", {"mixed", "prompt[1]", "invalid_type"}},
      {R"({"prompt": [1, "a"]})", {"mixed ids", "prompt[1]", "invalid_value"}},
      {R"({"prompt": [[1], "a"]})", {"mixed lists", "prompt[1]", "invalid_type"}},
      {R"({"prompt": [-1]})", {"negative", "prompt[0]", "invalid_value"}},
      {R"({"prompt": [1.5]})", {"fraction", "prompt[0]", "invalid_value"}},
      {R"({"prompt": [1000]})", {"too big", "prompt[0]", "invalid_value"}},
      {R"({"prompt": [[3], [1e300]]})", {"huge", "prompt[1][0]", "invalid_value"}},
      {R"({"prompt": [true]})", {"bool", "prompt[0]", "invalid_type"}},
  };
  for (const auto& [text, bad] : cases) {
    const Json body = ParseJsonObject(text);
    BadBody named = bad;
    named.fields = text;
    ExpectRefusal([&] { ParseCompletionRequest(body, kLimits); }, named);
  }

  const auto prompts = [](const char* text) {
    return ParseCompletionRequest(ParseJsonObject(text), kLimits).prompts;
  };
  EXPECT_EQ(std::get<std::string>(prompts(R"({"prompt": ""})")[0]), "");
  EXPECT_EQ(prompts(R"({"prompt": ["a", "b"]})").size(), 2u);
  EXPECT_EQ(std::get<std::vector<TokenId>>(prompts(R"({"prompt": [1, 2.0]})")[0]),
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(std::get<std::vector<TokenId>>(prompts(R"({"prompt": [[1], [999]]})")[1]),
            (std::vector<TokenId>{999}));
}

TEST(ChatRequest, ChecksMessagesBeforeOtherFields) {
  const std::pair<const char*, BadBody> cases[] = {
      {R"({"temperature": 9})", {"", "messages", "missing_required_parameter"}},
      {R"({"messages": "hi"})", {"", "messages", "invalid_type"}},
      {R"({"messages": [], "n": 0})", {"", "messages", "invalid_value"}},
      {R"({"messages": ["hi"]})", {"", "messages[0]", "invalid_type"}},
      {R"({"messages": [{"content": "hi"}]})",
       {"", "messages[0].role", "missing_required_parameter"}},
      {R"({"messages": [{"role": "robot", "content": "hi"}]})",
       {"", "messages[0].role", "invalid_value"}},
      {R"({"messages": [{"role": "user"}]})",
       {"", "messages[0].content", "missing_required_parameter"}},
      {R"({"messages": [{"role": "user", "content": 5}]})",
       {"", "messages[0].content", "invalid_type"}},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       {"", "messages[0].content[0]", "unsupported_value"}},
      {R"({"messages": [{"role": "user", "content": [{"type": "smell"}]}]})",
       {"", "messages[0].content[0].type", "invalid_value"}},
      {R"({"messages": [{"role": "tool", "content": "x"}]})",
       {"", "messages[0].tool_call_id", "missing_required_parameter"}},
  };
  for (const auto& [text, bad] : cases) {
    const Json body = ParseJsonObject(text);
    BadBody named = bad;
    named.fields = text;
    ExpectRefusal([&] { ParseChatRequest(body, kLimits); }, named);
  }
}

TEST(ChatRequest, NormalisesMessagesForTemplates) {
  const Json body = ParseJsonObject(R"({"messages": [
      {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null, "tool_calls": [
          {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
          {"id": "d", "type": "function", "function": {"name": "g", "arguments": "not json"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "3"}]})");

  const ChatRequest request = ParseChatRequest(body, kLimits);

  const Json& messages = *request.prompt.messages;
  EXPECT_EQ(messages[0]["role"], "system");
  EXPECT_EQ(messages[0]["content"], "a\nb");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["arguments"]["x"], 1);
  EXPECT_EQ(messages[1]["tool_calls"][1]["function"]["arguments"], "not json");
  EXPECT_EQ(messages[2]["tool_call_id"], "c");
}

TEST(ChatRequest, KeepsTheDeveloperOnlyForTemplatesThatKnowIt) {
  const Json body = ParseJsonObject(R"({"messages": [{"role": "developer", "content": "a"}]})");
  ModelLimits limits = kLimits;
  limits.knows_developer = true;

  EXPECT_EQ((*ParseChatRequest(body, kLimits).prompt.messages)[0]["role"], "system");
  EXPECT_EQ((*ParseChatRequest(body, limits).prompt.messages)[0]["role"], "developer");
}

TEST(ChatRequest, AnAssistantWithCallsAloneHasEmptyText) {
  const Json body = ParseJsonObject(R"({"messages": [
      {"role": "assistant", "content": null, "tool_calls": [
          {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
      {"role": "assistant", "refusal": "no"},
      {"role": "assistant", "content": "b", "tool_calls": []}]})");

  const ChatRequest request = ParseChatRequest(body, kLimits);
  const Json& messages = *request.prompt.messages;

  EXPECT_EQ(messages[0]["content"], "");
  EXPECT_EQ(messages[1]["content"], "no");
  EXPECT_FALSE(messages[2].contains("tool_calls"));
}

// The parser reports the first fault in the order of the fields below, not of the body.
TEST(Requests, ReportTheFirstFaultInTheOrderOfTheTable) {
  const std::pair<const char*, const char*> chat_fields[] = {
      {"max_completion_tokens", "0"},
      {"max_tokens", "0"},
      {"temperature", "9"},
      {"top_p", "9"},
      {"min_p", "9"},
      {"top_k", "-9"},
      {"n", "0"},
      {"seed", "0.5"},
      {"stop", "1"},
      {"stop_token_ids", "1"},
      {"include_stop_str_in_output", "1"},
      {"ignore_eos", "1"},
      {"min_tokens", "-1"},
      {"presence_penalty", "9"},
      {"frequency_penalty", "9"},
      {"repetition_penalty", "0"},
      {"logit_bias", "1"},
      {"logprobs", "1"},
      {"top_logprobs", "-1"},
      {"prompt_logprobs", "-1"},
      {"response_format", "1"},
      {"tools", "1"},
      {"tool_choice", "1"},
      {"parallel_tool_calls", "1"},
      {"stream", "1"},
      {"stream_options", "1"},
      {"add_generation_prompt", "1"},
      {"continue_final_message", "1"},
      {"chat_template_kwargs", "1"},
      {"reasoning_effort", "1"},
      {"skip_special_tokens", "1"},
      {"return_token_ids", "1"},
      {"return_tokens_as_token_ids", "1"},
      {"priority", "0.5"},
      {"functions", "1"},
  };
  for (size_t first = 0; first < std::size(chat_fields); ++first) {
    // In the body, later faults come first.
    std::string text = "{";
    for (size_t i = std::size(chat_fields); i-- > first;) {
      text += "\"" + std::string(chat_fields[i].first) + "\": " + chat_fields[i].second + ", ";
    }
    text += R"("messages": [{"role": "user", "content": "hi"}]})";
    try {
      ParseChatRequest(ParseJsonObject(text), kLimits);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.param(), chat_fields[first].first);
    }
  }
}

TEST(FieldReader, MessagesNameFieldRangeAndShortenedValue) {
  const auto message = [](const std::string& fields) {
    try {
      ParseCompletionRequest(ParseJsonObject(R"({"prompt": "a", )" + fields + "}"), kLimits);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };

  EXPECT_EQ(message(R"("temperature": 3)"), "temperature must be a number in [0, 2], got 3");
  EXPECT_EQ(message(R"("temperature": "hot")"),
            "temperature must be a number in [0, 2], got \"hot\"");
  EXPECT_EQ(message(R"("n": 1e308)"), "n must be an integer in [1, 128], got 1e+308");
  EXPECT_EQ(message(R"("top_k": -2)"), "top_k must be an integer of at least -1, got -2");
  EXPECT_EQ(message(R"("seed": {})"), "seed must be an integer of 64 bits, got an object");
  EXPECT_EQ(message(R"("max_tokens": 3, "min_tokens": 4)"),
            "min_tokens must be an integer in [0, 3], got 4");
  const std::string long_value = message("\"n\": \"" + std::string(100000, 'x') + "\"");
  EXPECT_LT(long_value.size(), 200u);
  // Cut between characters.
  EXPECT_EQ(ShortForm(std::string(59, 'x') + "éé"), "\"" + std::string(59, 'x') + "\"…");
}

TEST(ChatRequest, TakesDefaultsNullsAndWholeFloats) {
  const Json body = ParseJsonObject(R"({"model": "m", "messages": [{"role": "user", "content": ""}],
      "temperature": null, "n": 2.0, "max_tokens": 7, "max_completion_tokens": 9,
      "stop": "x", "logit_bias": {"3": -100}, "logprobs": true, "response_format": {"type": "text"},
      "tools": [], "tool_choice": "auto", "user": "u", "foo": 1, "bar": null})");

  const ChatRequest request = ParseChatRequest(body, kLimits);

  EXPECT_FALSE(request.generation.sampling[0]);  // temperature
  EXPECT_EQ(request.generation.n, 2);
  EXPECT_EQ(request.max_tokens, 9);
  EXPECT_EQ(request.generation.stop.strings, std::vector<std::string>{"x"});
  EXPECT_EQ(request.generation.logit_bias[0].first, 3);
  EXPECT_EQ(request.top_logprobs, 0);
  EXPECT_TRUE(request.prompt.add_generation_prompt);
  EXPECT_EQ(request.ignored, (std::vector<std::string>{"foo", "bar"}));
  EXPECT_EQ(IgnoredParamsHeader({"foo", "a\r\nb"}), "foo, a??b");
}

TEST(JsonBody, RefusesWhatIsNotOneObject) {
  const std::string cases[] = {
      "",
      "{",
      "[]",
      "1",
      "{} x",
      "{\"a\": NaN}",
      "{\"a\": 1e999}",
      "{\"a\": \"\xff\"}",
      "{'a': 1}",
      "{\"a\": 1,}",
      "{\"a\": " + std::string(70, '[') + std::string(70, ']') + "}",
      std::string(1 << 20, '['),
      std::string("{}\0", 3),
      std::string("{}\0garbage", 10),
      std::string("{\"a\": \"\0\"}", 10),
      std::string("\0{}", 3),
  };
  for (const std::string& text : cases) {
    SCOPED_TRACE(text.substr(0, 40));
    try {
      ParseJsonObject(text);
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), "invalid_json");
    }
  }
  EXPECT_EQ(ParseJsonObject("{\"a\": \"]]]]]\\\"[[\"}")["a"], "]]]]]\"[[");
}

TEST(ErrorBody, AFullDiskIs507AndNamesNoPath) {
  const ErrorReply full = MakeErrorReply(
      Error(ErrorCode::kIo, "could not write /srv/x: No space").WithReason("insufficient_storage"),
      "r");
  EXPECT_EQ(full.status, 507);
  EXPECT_EQ(full.code, "insufficient_storage");
  EXPECT_EQ(full.body.find("/srv"), std::string::npos);
  EXPECT_EQ(MakeErrorReply(Error(ErrorCode::kIo, "could not read /srv/x"), "r").status, 500);
}

TEST(ErrorBody, AlwaysHasItsFourKeysAndHidesOurOwnFaults) {
  const auto body = [](const ErrorReply& reply) { return Json::parse(reply.body)["error"]; };

  const Json refused = body(MakeErrorReply(404, "unknown_url", "no such path \xff"));
  const ErrorReply internal =
      MakeErrorReply(Error(ErrorCode::kInternal, "check failed: secret at file.cc:3"), "req_7");
  const ErrorReply unauthorised = MakeErrorReply(Error(ErrorCode::kUnauthenticated, "no"), "r");

  EXPECT_EQ(refused.size(), 4u);
  EXPECT_TRUE(refused["param"].is_null());
  EXPECT_EQ(refused["code"], "unknown_url");
  EXPECT_EQ(internal.status, 500);
  EXPECT_EQ(internal.body.find("secret"), std::string::npos);
  EXPECT_NE(internal.body.find("req_7"), std::string::npos);
  EXPECT_EQ(body(internal)["type"], "server_error");
  EXPECT_EQ(unauthorised.headers[0].first, "www-authenticate");
  EXPECT_EQ(MakeErrorReply(Error(ErrorCode::kAlreadyExists, "x"), "r").status, 409);
  EXPECT_EQ(body(MakeErrorReply(Error(ErrorCode::kUnavailable, "x"), "r"))["code"],
            "server_overloaded");
  EXPECT_LE(MakeErrorReply(400, "c", std::string(100000, 'x')).body.size(), 4096u);
  // One byte may take six in JSON.
  EXPECT_LE(MakeErrorReply(400, "c", std::string(5000, '\1'), std::string(500, '\1')).body.size(),
            4096u);
}

TEST(TokenizeRequest, TakesPromptOrMessages) {
  const auto tokenize = [](const char* text) {
    return ParseTokenizeRequest(ParseJsonObject(text), kLimits);
  };
  const auto detokenize = [](const char* text) {
    return ParseDetokenizeRequest(ParseJsonObject(text), kLimits);
  };
  EXPECT_EQ(*tokenize(R"({"content": "a"})").prompt, "a");
  EXPECT_TRUE(tokenize(R"({"messages": [{"role": "user", "content": "a"}]})").chat);
  EXPECT_THROW(tokenize("{}"), Error);
  EXPECT_THROW(tokenize(R"({"prompt": "a", "messages": []})"), Error);
  // No message to continue.
  EXPECT_THROW(tokenize(R"({"messages": [{"role": "user", "content": "a"}],
                            "continue_final_message": true})"),
               Error);
  EXPECT_THROW(detokenize(R"({"tokens": [1000]})"), Error);
  EXPECT_EQ(detokenize(R"({"tokens": [999]})").tokens, std::vector<TokenId>{999});
  EXPECT_EQ(detokenize(R"({"tokens": [], "x": 1})").ignored, std::vector<std::string>{"x"});
}

TEST(RenderRequest, LeavesMessagesToTheTrainersReader) {
  const auto render = [](const char* text) {
    return ParseRenderRequest(ParseJsonObject(text), kLimits);
  };
  const RenderRequest request = render(R"({"train": true, "messages": [
      {"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]})");

  EXPECT_TRUE(request.train);
  EXPECT_EQ((*request.chat.messages)[1]["weight"], 0);
  EXPECT_FALSE(request.chat.add_generation_prompt);
  EXPECT_THROW(render(R"({"train": true, "messages": []})"), Error);
  EXPECT_THROW(render(R"({"train": true, "continue_final_message": true, "messages": [
                          {"role": "user", "content": "a"}]})"),
               Error);
  EXPECT_FALSE(render(R"({"messages": [{"role": "user", "content": "a", "weight": 1}]})")
                   .chat.messages->front()
                   .contains("weight"));
}

TEST(Seeds, DifferPerPromptButNotForTheFirst) {
  EXPECT_EQ(SeedOfPrompt(42, 0), 42u);
  EXPECT_NE(SeedOfPrompt(42, 1), SeedOfPrompt(42, 2));
  EXPECT_NE(SeedOfPrompt(42, 1), SeedOfPrompt(43, 1));
}

}  // namespace
}  // namespace tandem::server
