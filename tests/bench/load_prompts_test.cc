#include "bench/load/load_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::json;

PromptOptions Ids() {
  PromptOptions options;
  options.endpoint = PromptOptions::Endpoint::kCompletions;
  options.kind = PromptOptions::Kind::kIds;
  options.model = "a \"model\"";
  options.prompt_tokens = {10, 20};
  options.output_tokens = {4, 8};
  return options;
}

Json BodyOf(const PromptMaker& maker, int64_t request_idx) {
  return Json::parse(maker.Make(request_idx).body);
}

TEST(LoadPrompts, RangesAreReadOrRefused) {
  EXPECT_EQ(ParseIntRange("64", "--x").high, 64);
  EXPECT_EQ(ParseIntRange("16-128", "--x").low, 16);
  EXPECT_EQ(ParseIntRange("16-128", "--x").high, 128);
  for (const char* text : {"", "x", "16-", "128-16", "1-2-3", "-3", "5 "}) {
    EXPECT_THROW(ParseIntRange(text, "--x"), Error) << text;
  }
}

TEST(LoadPrompts, AnIdPromptHasItsTokensWithinTheirRange) {
  const PromptMaker maker(Ids(), {});
  std::set<size_t> lengths;
  for (int64_t i = 0; i < 200; ++i) {
    const LoadRequest request = maker.Make(i);
    const Json body = Json::parse(request.body);

    EXPECT_EQ(body["model"], "a \"model\"");
    EXPECT_EQ(body["max_tokens"], request.output_tokens);
    EXPECT_EQ(body["ignore_eos"], true);
    EXPECT_EQ(body["temperature"], 0);
    EXPECT_EQ(body["stream"], true);
    EXPECT_EQ(body["stream_options"]["include_usage"], true);
    EXPECT_GE(request.output_tokens, 4);
    EXPECT_LE(request.output_tokens, 8);
    lengths.insert(body["prompt"].size());
    for (const Json& id : body["prompt"]) {
      EXPECT_GE(id.get<int64_t>(), 300);
      EXPECT_LE(id.get<int64_t>(), 2000);
    }
  }
  EXPECT_EQ(lengths.size(), 11u) << "each length of 10 to 20 should occur";
  EXPECT_EQ(*lengths.begin(), 10u);
}

TEST(LoadPrompts, TheSameSeedAsksTheSameAndAnotherDoesNot) {
  PromptOptions other = Ids();
  other.seed = 2;

  EXPECT_EQ(PromptMaker(Ids(), {}).Make(7).body, PromptMaker(Ids(), {}).Make(7).body);
  EXPECT_NE(PromptMaker(Ids(), {}).Make(7).body, PromptMaker(other, {}).Make(7).body);
}

TEST(LoadPrompts, PromptsAreDistinctUnlessToldToTakeTurns) {
  PromptOptions turns = Ids();
  turns.distinct_prompts = 3;
  std::set<std::string> all, three;
  for (int64_t i = 0; i < 30; ++i) {
    all.insert(BodyOf(PromptMaker(Ids(), {}), i)["prompt"].dump());
    three.insert(BodyOf(PromptMaker(turns, {}), i)["prompt"].dump());
  }

  EXPECT_EQ(all.size(), 30u);
  EXPECT_EQ(three.size(), 3u);
}

TEST(LoadPrompts, ASharedPrefixIsSharedAndComesOnTop) {
  PromptOptions options = Ids();
  options.shared_prefix_tokens = 100;
  options.prompt_tokens = {10, 10};
  const PromptMaker maker(options, {});

  const Json a = BodyOf(maker, 0)["prompt"], b = BodyOf(maker, 1)["prompt"];

  ASSERT_EQ(a.size(), 110u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 100, b.begin()));
  EXPECT_NE(a, b);
}

TEST(LoadPrompts, TextHasTheWordsThatTheMeasuredLengthCallsFor) {
  PromptOptions options;
  options.prompt_tokens = {130, 130};
  options.shared_prefix_tokens = 50;
  const PromptMaker maker(options, {.tokens_per_word = 2, .tokens_around = 30});

  const std::string text = BodyOf(maker, 0)["messages"][0]["content"];

  // 50 / 2 shared words and (130 - 30) / 2 words of its own.
  EXPECT_EQ(std::count(text.begin(), text.end(), ' ') + 1, 75);
}

TEST(LoadPrompts, TheAskedFractionOfClientsLeavesMidAnswer) {
  PromptOptions options = Ids();
  options.abort_fraction = 0.25;
  const PromptMaker maker(options, {});
  int64_t leaving = 0;
  for (int64_t i = 0; i < 4000; ++i) {
    const LoadRequest request = maker.Make(i);
    if (request.leaves_after_pieces == 0) continue;
    ++leaving;
    EXPECT_LE(request.leaves_after_pieces, request.output_tokens / 2);
  }

  EXPECT_NEAR(static_cast<double>(leaving) / 4000, 0.25, 0.03);  // four standard errors
}

TEST(LoadPrompts, ExtraMembersAreAddedAndMayReplaceOurs) {
  PromptOptions options = Ids();
  options.extra_json = R"({"top_k":5,"temperature":0.5})";

  const Json body = BodyOf(PromptMaker(options, {}), 0);

  EXPECT_EQ(body["top_k"], 5);
  EXPECT_EQ(body["temperature"], 0.5);
}

TEST(LoadPrompts, ContradictionsAreRefused) {
  PromptOptions chat_ids = Ids();
  chat_ids.endpoint = PromptOptions::Endpoint::kChat;
  PromptOptions plain_abort = Ids();
  plain_abort.stream = false;
  plain_abort.abort_fraction = 0.5;
  PromptOptions bad_extra = Ids();
  bad_extra.extra_json = "[1]";

  EXPECT_THROW(PromptMaker(chat_ids, {}), Error);
  EXPECT_THROW(PromptMaker(plain_abort, {}), Error);
  EXPECT_THROW(PromptMaker(bad_extra, {}), Error);
}

}  // namespace
}  // namespace tandem::bench
