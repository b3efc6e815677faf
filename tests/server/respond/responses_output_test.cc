#include "server/respond/responses_output.h"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::AnswerEvent;
using engine::CallArguments;
using engine::CallBegin;
using engine::CallDropped;
using engine::CallEnd;
using engine::ReasoningPart;
using engine::TextPart;
using Events = std::vector<std::pair<std::string, std::string>>;
using Status = ResponsesOutput::Status;

const std::map<std::string, ResponsesTool> kTools = {
    {"f", {"f", "", false}}, {"ns__f", {"f", "ns", false}}, {"c", {"c", "", true}}};

Json HeadOf(const std::string& id) {
  return {{"id", id}, {"object", "response"}, {"status", "queued"}, {"model", "m"}};
}

// Replays a stream as a client does, and fails at the first event out of order.
class OrderChecker {
 public:
  void Take(const std::string& type, const std::string& data) {
    const Json event = Json::parse(data);
    ASSERT_EQ(event["type"], type);
    ASSERT_EQ(event["sequence_number"], n_events_) << data;
    ++n_events_;
    ASSERT_FALSE(is_over_) << "an event after the last one: " << data;
    if (type == "keepalive") return;
    if (n_events_ == 1) {
      ASSERT_EQ(type, "response.created");
      ASSERT_TRUE(event["response"]["output"].empty());
    } else if (type == "response.in_progress") {
      ASSERT_EQ(items_.size(), 0u);
    } else if (type == "response.output_item.added") {
      Added(event);
    } else if (type == "response.output_item.done") {
      Done(event);
    } else if (type.starts_with("response.content_part.")) {
      OfOpenItem(event);
      if (type.ends_with(".added")) {
        ASSERT_FALSE(has_part_);
        has_part_ = true;
      } else {
        ASSERT_TRUE(is_text_done_);
        ASSERT_EQ(event["part"]["text"], text_);
        part_ = event["part"];
      }
    } else if (type.ends_with(".delta")) {
      OfOpenItem(event);
      ASSERT_FALSE(is_text_done_);
      text_ += event["delta"].get<std::string>();
      for (const Json& logprob : event.value("logprobs", Json::array())) {
        logprobs_.push_back(logprob);
      }
    } else if (type.ends_with(".done")) {
      OfOpenItem(event);
      is_text_done_ = true;
      for (const char* name : {"text", "arguments", "input"}) {
        EXPECT_EQ(event.value(name, text_), text_) << name;
      }
    } else {
      is_over_ = true;
      ASSERT_FALSE(open_) << "an item is still open";
      ASSERT_EQ(event["response"]["output"], Json(items_));
    }
  }

  bool is_over() const { return is_over_; }
  const std::vector<Json>& items() const { return items_; }

 private:
  void Added(const Json& event) {
    ASSERT_FALSE(open_) << "two open items";
    ASSERT_EQ(event["output_index"], items_.size());
    open_ = event["item"];
    ASSERT_EQ((*open_)["status"], "in_progress");
    ASSERT_TRUE(ids_.insert((*open_)["id"]).second) << "an id twice";
    text_.clear();
    logprobs_ = Json::array();
    has_part_ = is_text_done_ = false;
    part_ = {};
  }
  void OfOpenItem(const Json& event) {
    ASSERT_TRUE(open_);
    ASSERT_EQ(event["item_id"], (*open_)["id"]);
    ASSERT_EQ(event["output_index"], items_.size());
  }
  void Done(const Json& event) {
    ASSERT_TRUE(open_);
    ASSERT_TRUE(is_text_done_);
    const Json& item = event["item"];
    ASSERT_EQ(item["id"], (*open_)["id"]);
    ASSERT_NE(item["status"], "in_progress");
    if (item.contains("content")) {
      ASSERT_EQ(item["content"], Json::array({part_}));
      EXPECT_EQ(part_.value("logprobs", Json::array()), logprobs_);
    } else {
      ASSERT_EQ(item.contains("input") ? item["input"] : item["arguments"], text_);
    }
    items_.push_back(item);
    open_.reset();
  }

  int64_t n_events_ = 0;
  bool is_over_ = false;
  std::optional<Json> open_;
  std::vector<Json> items_;
  std::set<std::string> ids_;
  std::string text_;
  Json logprobs_;
  Json part_;
  bool has_part_ = false;
  bool is_text_done_ = false;
};

// A sequence as the parser of answers makes it; the last call may have no end.
std::vector<AnswerEvent> RandomParts(std::mt19937& random) {
  std::vector<AnswerEvent> parts;
  int n_calls = 0;
  const size_t n = random() % 12;
  for (size_t i = 0; i < n; ++i) {
    switch (random() % 3) {
      case 0:
        parts.emplace_back(ReasoningPart{"r\"" + std::to_string(i)});
        break;
      case 1:
        parts.emplace_back(TextPart{"t\n\xc3\xa9" + std::to_string(i)});
        break;
      default: {
        const char* names[] = {"f", "ns__f", "c", "undeclared"};
        const int index = n_calls++;
        CallBegin begin;
        begin.index = index;
        begin.id = "call_" + std::to_string(index);
        begin.name = names[random() % 4];
        parts.emplace_back(begin);
        for (size_t k = random() % 4; k > 0; --k) {
          parts.emplace_back(CallArguments{.index = index, .text = "{\"a\":"});
        }
        const auto end = random() % 4;
        if (end == 0) {
          parts.emplace_back(CallDropped{index, "<call>{\"a\":"});
        } else if (end == 1 && i + 1 == n) {
          return parts;  // cut
        } else {
          parts.emplace_back(CallEnd{.index = index});
        }
      }
    }
  }
  return parts;
}

TEST(ResponsesOutput, EveryStreamHoldsTheOrderRules) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    OrderChecker checker;
    ResponsesOutput output(HeadOf("resp_abc"), kTools,
                           [&](std::string_view type, const std::string& data) {
                             checker.Take(std::string(type), data);
                           });
    output.Begin();
    for (const AnswerEvent& part : RandomParts(random)) {
      if (random() % 5 == 0) output.Ping();
      output.Add(part, random() % 2 ? R"({"token":"x"})" : "");
    }
    const Status statuses[] = {Status::kCompleted, Status::kIncomplete, Status::kFailed,
                               Status::kCancelled};
    const Json response = output.Finish(statuses[random() % 4], {}, "why");
    output.End(response);

    EXPECT_TRUE(checker.is_over());
    if (HasFailure()) return;
  }
}

TEST(ResponsesOutput, AReplayHasTheOrderAndTheItemsOfTheStream) {
  for (unsigned seed = 0; seed < 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    ResponsesOutput output(HeadOf("resp_abc"), kTools, nullptr);
    for (const AnswerEvent& part : RandomParts(random)) {
      output.Add(part, R"({"token":"x"})");
    }
    const Json response =
        output.Finish(random() % 2 ? Status::kCompleted : Status::kIncomplete, {}, "");
    OrderChecker checker;

    for (const auto& [type, data] : ReplayOf(response)) checker.Take(type, data);

    EXPECT_TRUE(checker.is_over());
    EXPECT_EQ(Json(checker.items()), response["output"]);
    if (HasFailure()) return;
  }
}

// The types of the events, and the final object.
std::pair<std::vector<std::string>, Json> EventsOf(const std::vector<AnswerEvent>& parts,
                                                   Status status = Status::kCompleted) {
  std::vector<std::string> types;
  ResponsesOutput output(
      HeadOf("resp_abc"), kTools,
      [&](std::string_view type, const std::string&) { types.emplace_back(type); });
  output.Begin();
  for (const AnswerEvent& part : parts) output.Add(part);
  Json response = output.Finish(status, {.prompt_tokens = 3, .completion_tokens = 2}, "why");
  output.End(response);
  return {types, response};
}

TEST(ResponsesOutput, TextIsAMessageWithTheDocumentedEvents) {
  const auto [types, response] = EventsOf({TextPart{"Hi"}, TextPart{" you"}});

  EXPECT_EQ(types,
            (std::vector<std::string>{"response.created", "response.in_progress",
                                      "response.output_item.added", "response.content_part.added",
                                      "response.output_text.delta", "response.output_text.delta",
                                      "response.output_text.done", "response.content_part.done",
                                      "response.output_item.done", "response.completed"}));
  EXPECT_EQ(response["output"], Json::parse(R"([{"id":"msg_abco0","type":"message",
      "status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hi you",
      "annotations":[],"logprobs":[]}]}])"));
  EXPECT_EQ(response["usage"], Json::parse(R"({"input_tokens":3,
      "input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":2,
      "output_tokens_details":{"reasoning_tokens":0},"total_tokens":5})"));
}

TEST(ResponsesOutput, ACallNamesItsNamespaceAndACustomCallHasInput) {
  CallBegin begin;
  begin.id = "call_1";
  begin.name = "ns__f";
  CallBegin custom;
  custom.id = "call_2";
  custom.name = "c";

  const auto [types, response] = EventsOf({begin, CallArguments{.text = "{}"}, CallEnd{}, custom,
                                           CallArguments{.text = "x = 1"}, CallEnd{}});

  EXPECT_EQ(response["output"][0], Json::parse(R"({"id":"fc_abco0","type":"function_call",
      "status":"completed","call_id":"call_1","name":"f","namespace":"ns","arguments":"{}"})"));
  EXPECT_EQ(response["output"][1], Json::parse(R"({"id":"ctc_abco1","type":"custom_tool_call",
      "status":"completed","call_id":"call_2","name":"c","input":"x = 1"})"));
  EXPECT_EQ(types[4], "response.function_call_arguments.done");
}

TEST(ResponsesOutput, ADroppedCallOfAStreamIsIncompleteAndItsTextFollows) {
  CallBegin begin;
  begin.id = "call_1";
  begin.name = "f";

  const Json response =
      EventsOf({begin, CallArguments{.text = "{"}, CallDropped{0, "<f>{"}}).second;

  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "<f>{");
}

TEST(ResponsesOutput, ADroppedCallThatNobodySawIsText) {
  ResponsesOutput output(HeadOf("resp_abc"), kTools, nullptr);
  CallBegin begin;
  begin.id = "call_1";
  begin.name = "f";
  output.Add(TextPart{"a"});
  output.Add(begin);
  output.Add(CallDropped{0, "<f>{"});
  output.Add(TextPart{"b"});

  const Json items = output.Finish(Status::kCompleted, {})["output"];

  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(items[1]["content"][0]["text"], "<f>{b");
}

TEST(ResponsesOutput, ACompletedResponseHasAMessageEvenWithoutText) {
  const Json response = EventsOf({ReasoningPart{"hm"}}).second;

  EXPECT_EQ(response["output"][1]["type"], "message");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "");
}

TEST(ResponsesOutput, TheLimitEndsTheOpenItemAndTheResponseAsIncomplete) {
  const auto [types, response] = EventsOf({TextPart{"a"}}, Status::kIncomplete);

  EXPECT_EQ(types.back(), "response.incomplete");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
}

TEST(ResponsesOutput, AFailureIsTheErrorOfTheResponse) {
  const auto [types, response] = EventsOf({TextPart{"a"}}, Status::kFailed);

  EXPECT_EQ(types.back(), "response.failed");
  EXPECT_EQ(response["error"], Json::parse(R"({"code":"server_error","message":"why"})"));
}

}  // namespace
}  // namespace tandem::server
