#include "server/wire/unserved_fields.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"
#include "server/wire/error_body.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr ModelLimits kModelLimits = {128, 1000};

Json ChatWith(const std::string& name, const Json& value) {
  Json body = Json::parse(R"({"messages": [{"role": "user", "content": "hi"}]})");
  body[name] = value;
  return body;
}

Json CompletionWith(const std::string& name, const Json& value) {
  Json body = Json::parse(R"({"prompt": "hi"})");
  body[name] = value;
  return body;
}

void ExpectUnsupported(const std::string& name, const std::function<void()>& parse) {
  SCOPED_TRACE(name);
  try {
    parse();
    FAIL() << "accepted";
  } catch (const Error& error) {
    const ErrorReply reply = MakeErrorReply(error, "req_1");
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json body = Json::parse(reply.body)["error"];
    EXPECT_EQ(body["param"], name);
    EXPECT_EQ(body["code"], "unsupported_parameter");
  }
}

// Written out, so that no row can leave the table unnoticed.
const char* const kNamesOfOtherServers[] = {

    "grammar",

    "bad_words",         "allowed_token_ids",
    "logits_processors", "truncate_prompt_tokens",
    "prompt_embeds",     "min_keep",
    "mirostat",          "dry_multiplier",
    "typical_p",         "max_new_tokens",
    "n_predict",         "functions",
    "function_call",     "audio",
    "web_search_options"};

TEST(UnservedFields, FieldsThatChangeAnAnswerAreRefusedByBothRoutes) {
  for (const char* name : kNamesOfOtherServers) {
    ExpectUnsupported(name, [&] { ParseChatRequest(ChatWith(name, "x"), kModelLimits); });
    ExpectUnsupported(name,
                      [&] { ParseCompletionRequest(CompletionWith(name, "x"), kModelLimits); });
  }
}

TEST(UnservedFields, EveryRowAcceptsNullAndItsNeutralValuesAndRefusesOthers) {
  for (const UnservedField& field : UnservedFields()) {
    const std::string name(field.name);
    SCOPED_TRACE(name);
    Json neutral = Json::parse(field.neutral_values);
    neutral.push_back(nullptr);
    if (field.in_chat) {
      for (const Json& value : neutral) {
        EXPECT_TRUE(ParseChatRequest(ChatWith(name, value), kModelLimits).ignored.empty()) << value;
      }
      ExpectUnsupported(name, [&] { ParseChatRequest(ChatWith(name, "strange"), kModelLimits); });
    }
    if (field.in_completions) {
      for (const Json& value : neutral) {
        EXPECT_TRUE(
            ParseCompletionRequest(CompletionWith(name, value), kModelLimits).ignored.empty())
            << value;
      }
      ExpectUnsupported(
          name, [&] { ParseCompletionRequest(CompletionWith(name, "strange"), kModelLimits); });
    }
  }
}

TEST(UnservedFields, TheMessageSaysWhatToUseInstead) {
  try {
    ParseCompletionRequest(CompletionWith("repeat_penalty", 1.1), kModelLimits);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "repeat_penalty is not supported: use repetition_penalty");
  }
}

}  // namespace
}  // namespace tandem::server
