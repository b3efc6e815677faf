#include "server/respond/responses_renderer.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "server/http/response_channel.h"
#include "server/respond/generation_reply.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::ChoiceFinished;
using engine::RequestFinished;

// Plays the connection of one response.
class ResponsesRendererTest : public testing::Test {
 protected:
  void Begin(bool streams, ResponsesShape response = {}) {
    ReplyShape shape;
    shape.id = "resp_1";
    shape.model = "m";
    shape.stream = streams;
    shape.prompts = {{{1, 2}, "", false}};
    response.settings = std::make_shared<const Json>(Json{{"store", true}});
    channel_ = std::make_shared<ResponseChannel>(
        1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
    const ResponseWriter writer(channel_, [] { return ResponseWriter::Abandoned{}; });
    auto renderer =
        std::make_unique<ResponsesRenderer>(std::move(shape), std::move(response), writer);
    cancel_ = renderer->MakeCancel();
    reply_ = GenerationReply::Create(std::move(renderer), writer);
    reply_->Begin([] {}, [](bool) {});
  }
  void Send(engine::GenerationEvent event) { reply_->Sink(0)(RequestId{}, std::move(event)); }
  void SendText(const std::string& text) {
    engine::TextDelta delta;
    delta.text = text;
    delta.token_ids = {1};
    Send(delta);
  }
  void End(ChoiceFinished::Reason reason = ChoiceFinished::Reason::kStop) {
    ChoiceFinished finished;
    finished.reason = reason;
    finished.usage = {2, 1, 1};
    Send(finished);
    Send(RequestFinished{});
    reply_.reset();
  }
  ResponseChannel::Output Take() {
    std::vector<std::function<void()>> ran;
    channel_->RunTasks(ran);
    return channel_->Take();
  }

  std::shared_ptr<ResponseChannel> channel_;
  std::shared_ptr<GenerationReply> reply_;
  std::function<void()> cancel_;
};

TEST_F(ResponsesRendererTest, ABodyIsTheResponseObject) {
  Begin(false);
  SendText("Hi");
  End();

  const Json body = Json::parse(Take().head->body);

  EXPECT_EQ(body["status"], "completed");
  EXPECT_EQ(body["output"][0]["content"][0]["text"], "Hi");
  EXPECT_EQ(body["usage"]["output_tokens"], 1);
  EXPECT_EQ(body["usage"]["input_tokens_details"]["cached_tokens"], 1);
}

TEST_F(ResponsesRendererTest, AStreamNamesItsEventsAndHasNoDone) {
  Begin(true);
  SendText("Hi");
  End(ChoiceFinished::Reason::kLength);

  const ResponseChannel::Output output = Take();

  EXPECT_TRUE(output.finished);
  EXPECT_TRUE(output.bytes.starts_with("event: response.created\ndata: {\"type\":"));
  EXPECT_NE(output.bytes.find("event: response.incomplete\n"), std::string::npos);
  EXPECT_EQ(output.bytes.find("[DONE]"), std::string::npos);
}

TEST_F(ResponsesRendererTest, ASilentStreamGetsCountedKeepalives) {
  Begin(true);
  Take();

  EXPECT_TRUE(channel_->RequestPing());

  EXPECT_EQ(Take().bytes,
            "event: keepalive\ndata: {\"type\":\"keepalive\",\"sequence_number\":2}\n\n");
}

TEST_F(ResponsesRendererTest, TheEndWaitsUntilTheResponseIsKept) {
  ResponsesShape::Done done;
  Json kept;
  Begin(false, {.keep = [&](const Json& response, ResponsesShape::Done then) {
          kept = response;
          done = std::move(then);
        }});
  SendText("Hi");
  End();

  EXPECT_FALSE(Take().head);
  done(true);

  EXPECT_EQ(Json::parse(Take().head->body), kept);
}

TEST_F(ResponsesRendererTest, AResponseThatCouldNotBeKeptSaysSo) {
  Begin(true, {.keep = [](const Json&, const ResponsesShape::Done& done) { done(false); }});
  End();
  std::string bytes = Take().bytes;
  bytes += Take().bytes;

  EXPECT_NE(bytes.find(R"("store":false)"), std::string::npos);
}

TEST_F(ResponsesRendererTest, AFailureBeforeTheAnswerIsAnHttpError) {
  Begin(false);
  RequestFinished failed;
  failed.outcome = RequestFinished::Outcome::kFailed;
  failed.code = ErrorCode::kUnavailable;
  failed.message = "no room";
  Send(failed);

  EXPECT_EQ(Take().head->status, 503);
}

TEST_F(ResponsesRendererTest, AFailureOfAStreamEndsItsItemAndTheResponse) {
  Begin(true);
  SendText("Hi");
  RequestFinished failed;
  failed.outcome = RequestFinished::Outcome::kFailed;
  failed.code = ErrorCode::kUnavailable;
  failed.message = "no room";
  Send(failed);

  const std::string bytes = Take().bytes;

  EXPECT_NE(bytes.find("event: response.output_item.done\n"), std::string::npos);
  EXPECT_NE(bytes.find("event: response.failed\n"), std::string::npos);
  EXPECT_NE(bytes.find("no room"), std::string::npos);
}

TEST_F(ResponsesRendererTest, ACancelledResponseEndsOnce) {
  std::vector<std::string> types;
  std::vector<std::string> statuses;
  Begin(false,
        {.on_event = [&](std::string_view type, const std::string&) { types.emplace_back(type); },
         .on_status = [&](const Json& body) { statuses.push_back(body["status"]); }});
  SendText("Hi");
  Take();
  cancel_();
  cancel_();
  SendText("more");
  End();
  Take();

  EXPECT_EQ(statuses, (std::vector<std::string>{"in_progress", "cancelled"}));
  EXPECT_EQ(types.back(), "response.incomplete");
}

}  // namespace
}  // namespace tandem::server
