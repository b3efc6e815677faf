#include "server/batches/batch_answer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

using BatchJsonText = nlohmann::json;

TEST(BatchAnswer, ALineHoldsTheAnswerOnOneLine) {
  Response response;
  response.status = 400;
  response.body = "{\"error\":\n {\"message\": \"a\\nb\"}}";

  const std::string line = AnswerLine("id \"1\"\n", "req_1", response);
  const BatchJsonText parsed = BatchJsonText::parse(line);

  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(parsed["custom_id"], "id \"1\"\n");
  EXPECT_TRUE(parsed["id"].get<std::string>().starts_with("batch_req_"));
  EXPECT_EQ(parsed["response"]["status_code"], 400);
  EXPECT_EQ(parsed["response"]["request_id"], "req_1");
  EXPECT_EQ(parsed["response"]["body"]["error"]["message"], "a\nb");
  EXPECT_TRUE(parsed["error"].is_null());
}

TEST(BatchAnswer, ALineWithoutAnAnswerHasAnError) {
  const BatchJsonText parsed = BatchJsonText::parse(ErrorLine("a", "batch_expired", "too late"));

  EXPECT_TRUE(parsed["response"].is_null());
  EXPECT_EQ(parsed["error"], (BatchJsonText{{"code", "batch_expired"}, {"message", "too late"}}));
}

TEST(BatchAnswer, TokensAreReadFromBothFormsOfUsage) {
  const BatchUsage chat = UsageOf(
      R"({"choices":[{"usage":{"prompt_tokens":99}}],"usage":{"prompt_tokens":5,
          "completion_tokens":7,"prompt_tokens_details":{"cached_tokens":2},
          "completion_tokens_details":{"reasoning_tokens":3}}})");
  const BatchUsage responses = UsageOf(
      R"({"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":7,
          "output_tokens_details":{"reasoning_tokens":3}},"output":[[1,2]]})");

  for (const BatchUsage& usage : {chat, responses}) {
    EXPECT_EQ(usage.input_tokens, 5);
    EXPECT_EQ(usage.cached_tokens, 2);
    EXPECT_EQ(usage.output_tokens, 7);
    EXPECT_EQ(usage.reasoning_tokens, 3);
  }
  for (const char* without : {"", "[]", "{}", R"({"usage":3})", R"({"usage":null})", "{"}) {
    EXPECT_EQ(UsageOf(without).input_tokens, 0) << without;
  }
}

TEST(BatchAnswer, OnlyABusyServerAndLimitsOfTheKeyAreTemporary) {
  const auto is_temporary = [](int status, const char* code) {
    Response response;
    response.status = status;
    response.error_code = code;
    return IsTemporaryRefusal(response);
  };
  EXPECT_TRUE(is_temporary(429, "rate_limit_exceeded"));
  EXPECT_TRUE(is_temporary(503, "server_overloaded"));
  EXPECT_TRUE(is_temporary(503, "model_loading"));
  EXPECT_TRUE(is_temporary(503, "shutting_down"));
  EXPECT_FALSE(is_temporary(503, "out_of_memory"));
  EXPECT_FALSE(is_temporary(404, "model_not_found"));
  EXPECT_FALSE(is_temporary(500, "internal_error"));
  EXPECT_FALSE(is_temporary(200, ""));
}

}  // namespace
}  // namespace tandem::server
