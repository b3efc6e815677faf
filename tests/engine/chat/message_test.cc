#include "engine/chat/message.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

TEST(NormalizeMessages, JoinsTextPartsWithLineBreaks) {
  const Json messages = Json::parse(R"([{"role": "user", "content": [
      {"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]}])");

  EXPECT_EQ(NormalizeMessages(messages)[0]["content"], "a\nb");
}

TEST(NormalizeMessages, NullAndAbsentContentBecomeEmpty) {
  const Json messages = Json::parse(R"([{"role": "assistant", "content": null},
                                        {"role": "assistant"},
                                        {"role": "user", "content": []}])");

  for (const Json& message : NormalizeMessages(messages)) EXPECT_EQ(message["content"], "");
}

TEST(NormalizeMessages, ParsesArgumentsThatAreJsonObjects) {
  const Json messages = Json::parse(R"([{"role": "assistant", "tool_calls": [
      {"function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
      {"function": {"name": "f", "arguments": "[1]"}},
      {"function": {"name": "f", "arguments": "{broken"}}]}])");

  const Json normalized = NormalizeMessages(messages);

  const Json& calls = normalized[0]["tool_calls"];
  EXPECT_EQ(calls[0]["function"]["arguments"].dump(), R"({"b":1,"a":[2]})");
  EXPECT_EQ(calls[1]["function"]["arguments"], "[1]");
  EXPECT_EQ(calls[2]["function"]["arguments"], "{broken");
}

TEST(NormalizeMessages, LeavesDeepArgumentsAsText) {
  std::string deep = "{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  const Json messages = {{{"role", "assistant"},
                          {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", deep}}}}}}}};

  EXPECT_EQ(NormalizeMessages(messages)[0]["tool_calls"][0]["function"]["arguments"], deep);
}

TEST(NormalizeMessages, RendersDeveloperAsSystemUnlessTold) {
  const Json messages = Json::parse(R"([{"role": "developer", "content": "x"}])");

  EXPECT_EQ(NormalizeMessages(messages)[0]["role"], "system");
  EXPECT_EQ(NormalizeMessages(messages, {.developer_as_system = false})[0]["role"], "developer");
}

TEST(NormalizeMessages, NamesThePartThatIsNotText) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "a"},
      {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])");

  try {
    NormalizeMessages(messages);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.param(), "messages[1].content");
  }
}

}  // namespace
}  // namespace tandem::engine
