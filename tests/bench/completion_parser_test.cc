#include "bench/client/completion_parser.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

TEST(CompletionParser, TextIsWhatTheModelSaidNotWhoSaysIt) {
  CompletionParser parser;
  for (const char* with_text :
       {R"({"choices":[{"delta":{"content":"a"}}]})", R"({"choices":[{"text":" a"}]})",
        R"({"choices":[{"delta":{"reasoning_content":"hm"}}]})",
        R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})",
        R"({"choices":[{"message":{"role":"assistant","content":"a"}}]})",
        R"({"choices":[{"text":""},{"text":"b"}]})"}) {
    EXPECT_TRUE(parser.Parse(with_text).has_text) << with_text;
  }
  for (const char* without_text :
       {R"({"choices":[{"delta":{"role":"assistant","content":""}}]})",
        R"({"choices":[{"delta":{"content":null}}]})", R"({"choices":[]})", R"({})",
        R"({"choices":[{"text":"","finish_reason":"length"}]})"}) {
    EXPECT_FALSE(parser.Parse(without_text).has_text) << without_text;
  }
}

TEST(CompletionParser, AFinishReasonThatIsNullIsNone) {
  CompletionParser parser;

  EXPECT_TRUE(parser.Parse(R"({"choices":[{"finish_reason":"length"}]})").has_finished);
  EXPECT_FALSE(parser.Parse(R"({"choices":[{"finish_reason":null}]})").has_finished);
}

TEST(CompletionParser, UsageIsReadWhereverServersPutIt) {
  CompletionParser parser;

  const auto plain = parser.Parse(R"({"choices":[],"usage":{"prompt_tokens":7,)"
                                  R"("completion_tokens":3,"prompt_tokens_details":)"
                                  R"({"cached_tokens":5}}})");
  const auto timed = parser.Parse(R"({"usage":{"prompt_tokens":7,"completion_tokens":3},)"
                                  R"("timings":{"cache_n":4}})");

  ASSERT_TRUE(plain.usage.has_value());
  EXPECT_EQ(plain.usage->prompt_tokens, 7);
  EXPECT_EQ(plain.usage->completion_tokens, 3);
  EXPECT_EQ(plain.usage->cached_tokens, 5);
  ASSERT_TRUE(timed.usage.has_value());
  EXPECT_EQ(timed.usage->cached_tokens, 4);
  EXPECT_FALSE(parser.Parse(R"({"usage":null})").usage.has_value());
}

TEST(CompletionParser, ErrorsAreReadInEveryShape) {
  CompletionParser parser;

  EXPECT_EQ(parser.Parse(R"({"error":{"message":"full","code":503}})").error, "full");
  EXPECT_EQ(parser.Parse(R"({"error":"full"})").error, "full");
  EXPECT_EQ(parser.Parse(R"({"object":"error","message":"full"})").error, "full");
  EXPECT_TRUE(parser.Parse(R"({"error":{}})").error.has_value());
  EXPECT_FALSE(parser.Parse(R"({"error":null,"choices":[]})").error.has_value());
}

TEST(CompletionParser, WhatIsNoJsonObjectIsRefused) {
  CompletionParser parser;
  for (const char* text : {"", "[]", "{", "nonsense", "\"text\"", "{\"a\":1}}"}) {
    EXPECT_THROW(parser.Parse(text), Error) << text;
  }
}

}  // namespace
}  // namespace tandem::bench
