#include "server/respond/ollama_renderer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/answers/answer_events.h"
#include "server/http/response_channel.h"
#include "server/respond/llama_server_renderer.h"

namespace tandem::server {
namespace {

using engine::ChoiceFinished;
using engine::RequestFinished;
using engine::TextDelta;
using OllamaLine = nlohmann::ordered_json;

// One answer with its channel. The prompt has three tokens.
class RenderedAnswer {
 public:
  explicit RenderedAnswer(bool stream) {
    shape_.id = "id";
    shape_.model = "m";
    shape_.request_id = "req_1";
    shape_.stream = stream;
    shape_.return_token_ids = true;
    shape_.prompts = {{{1, 2, 3}, "ab"}};
    channel_ = std::make_shared<ResponseChannel>(
        1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
  }

  ReplyShape& shape() { return shape_; }
  void Begin(OllamaReply reply) {
    renderer_ = std::make_unique<OllamaRenderer>(shape_, std::move(reply), Writer());
    renderer_->Begin([] {}, [](bool) {});
  }
  void Begin(LlamaServerReply reply) {
    renderer_ = std::make_unique<LlamaServerRenderer>(shape_, std::move(reply), Writer());
    renderer_->Begin([] {}, [](bool) {});
  }
  void Write(std::string text, std::vector<TokenId> tokens) {
    TextDelta delta;
    delta.text = std::move(text);
    delta.token_ids = std::move(tokens);
    renderer_->On(0, std::move(delta));
  }
  void End(ChoiceFinished::Reason reason = ChoiceFinished::Reason::kStop,
           std::string stop_string = {}) {
    ChoiceFinished choice;
    choice.reason = reason;
    choice.stop_string = std::move(stop_string);
    choice.usage = {3, 2, 4};
    renderer_->On(0, choice);
    RequestFinished finished;
    finished.timings = {0.5, 1, 2, 1.5, 3.5};
    renderer_->On(0, finished);
  }
  void Fail() {
    RequestFinished finished;
    finished.outcome = RequestFinished::Outcome::kFailed;
    finished.code = ErrorCode::kUnavailable;
    finished.message = "out of luck";
    renderer_->On(0, finished);
  }
  EventRenderer& renderer() { return *renderer_; }

  // The JSON values of a stream, one a line, without what `prefix` marks.
  std::vector<OllamaLine> TakeLines(const std::string& prefix = {}) {
    ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.is_stream);
    if (out.head) type_ = out.head->content_type;
    std::vector<OllamaLine> lines;
    size_t at = 0;
    while (at < out.bytes.size()) {
      const size_t end = out.bytes.find('\n', at);
      const std::string line = out.bytes.substr(at, end - at);
      at = end + 1;
      if (line.empty()) continue;
      EXPECT_TRUE(line.starts_with(prefix)) << line;
      lines.push_back(OllamaLine::parse(line.substr(prefix.size())));
    }
    return lines;
  }
  const std::string& type() const { return type_; }
  OllamaLine TakeBody() {
    ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.finished);
    return OllamaLine::parse(out.head.value_or(Response{}).body);
  }

 private:
  ResponseWriter Writer() {
    return ResponseWriter(channel_, [] { return ResponseWriter::Abandoned{}; });
  }

  ReplyShape shape_;
  std::shared_ptr<ResponseChannel> channel_;
  std::unique_ptr<EventRenderer> renderer_;
  std::string type_;
};

engine::AnswerOptions ThinkingOptions() {
  engine::AnswerOptions options;
  options.reasoning = engine::ReasoningSplitter::State::kUndecided;
  return options;
}

TEST(OllamaRenderer, AStreamIsLinesOfJsonAndTheLastOneIsDone) {
  RenderedAnswer answer(true);
  answer.Begin(OllamaReply{.route = OllamaReply::Route::kChat, .model = "m:latest"});
  answer.Write("Hi", {10});
  answer.Write("!", {11, 12});
  answer.End();

  const std::vector<OllamaLine> lines = answer.TakeLines();
  EXPECT_EQ(answer.type(), "application/x-ndjson");
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[0]["model"], "m:latest");
  EXPECT_EQ(lines[0]["message"], OllamaLine::parse(R"({"role": "assistant", "content": "Hi"})"));
  EXPECT_EQ(lines[0]["done"], false);
  EXPECT_EQ(lines[1]["message"]["content"], "!");
  const OllamaLine& last = lines[2];
  EXPECT_EQ(last["message"]["content"], "");
  EXPECT_EQ(last["done"], true);
  EXPECT_EQ(last["done_reason"], "stop");
  EXPECT_EQ(last["total_duration"], 3'500'000'000);
  EXPECT_EQ(last["load_duration"], 500'000'000);
  EXPECT_EQ(last["prompt_eval_count"], 3);
  EXPECT_EQ(last["prompt_eval_duration"], 1'000'000'000);
  EXPECT_EQ(last["eval_count"], 4);
  EXPECT_EQ(last["eval_duration"], 2'000'000'000);
  EXPECT_FALSE(last.contains("context"));
}

TEST(OllamaRenderer, ABodyHasTheWholeAnswer) {
  RenderedAnswer answer(false);
  answer.Begin(
      OllamaReply{.route = OllamaReply::Route::kGenerate, .model = "m", .has_context = true});
  answer.Write("Hi", {10});
  answer.Write("!", {11});
  answer.End(ChoiceFinished::Reason::kLength);

  const OllamaLine body = answer.TakeBody();
  EXPECT_EQ(body["response"], "Hi!");
  EXPECT_EQ(body["done_reason"], "length");
  EXPECT_EQ(body["context"], OllamaLine::parse("[1, 2, 3, 10, 11]"));
}

TEST(OllamaRenderer, ThoughtsAreApartFromTheAnswer) {
  for (const auto route : {OllamaReply::Route::kChat, OllamaReply::Route::kGenerate}) {
    RenderedAnswer answer(false);
    answer.shape().answer = ThinkingOptions();
    answer.Begin(OllamaReply{.route = route, .model = "m"});
    answer.Write("<think>hm</think>Hi", {10});
    answer.End();
    const OllamaLine body = answer.TakeBody();
    const OllamaLine& where = route == OllamaReply::Route::kChat ? body["message"] : body;
    EXPECT_EQ(where["thinking"], "hm");
    EXPECT_EQ(where[route == OllamaReply::Route::kChat ? "content" : "response"], "Hi");
  }
}

TEST(OllamaRenderer, AFailureInAStreamIsALine) {
  RenderedAnswer answer(true);
  answer.Begin(OllamaReply{.model = "m"});
  answer.Write("Hi", {10});
  answer.Fail();
  EXPECT_EQ(answer.TakeLines().back(), OllamaLine::parse(R"({"error": "out of luck"})"));
}

TEST(OllamaRenderer, ASilentStreamGetsObjectsWithoutText) {
  RenderedAnswer answer(true);
  answer.Begin(OllamaReply{.model = "m"});
  EXPECT_TRUE(answer.renderer().has_pings());
  answer.renderer().SendPing();
  const std::vector<OllamaLine> lines = answer.TakeLines();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0]["message"]["content"], "");
  EXPECT_EQ(lines[0]["done"], false);
}

TEST(OllamaRenderer, NoTextBreaksALine) {
  RenderedAnswer answer(true);
  answer.Begin(OllamaReply{.model = "m"});
  const std::string text = "a\n\r\x0b\x1c\xc2\x85\xe2\x80\xa8\xe2\x80\xa9z";
  answer.Write(text, {10});
  answer.End();
  const std::vector<OllamaLine> lines = answer.TakeLines();
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0]["message"]["content"], text);
}

TEST(LlamaServerRenderer, AStreamEndsWithTheMembersOfABody) {
  RenderedAnswer answer(true);
  answer.Begin(LlamaServerReply{.settings = R"({"n_ctx":8})"});
  answer.Write("Hi", {10});
  answer.Write("!", {11, 12});
  answer.End(ChoiceFinished::Reason::kStop, "x");

  const std::vector<OllamaLine> events = answer.TakeLines("data: ");
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0]["content"], "Hi");
  EXPECT_EQ(events[0]["tokens"], OllamaLine::parse("[10]"));
  EXPECT_EQ(events[0]["stop"], false);
  EXPECT_EQ(events[1]["tokens"], OllamaLine::parse("[11, 12]"));
  const OllamaLine& last = events[2];
  EXPECT_EQ(last["content"], "");
  EXPECT_EQ(last["stop"], true);
  EXPECT_EQ(last["stop_type"], "word");
  EXPECT_EQ(last["stopping_word"], "x");
  EXPECT_EQ(last["prompt"], "ab");
  EXPECT_EQ(last["generation_settings"]["n_ctx"], 8);
  EXPECT_EQ(last["tokens_predicted"], 4);
  EXPECT_EQ(last["tokens_evaluated"], 3);
  EXPECT_EQ(last["tokens_cached"], 2);
  EXPECT_EQ(last["timings"]["prompt_n"], 1);
  EXPECT_EQ(last["timings"]["prompt_ms"], 1000);
  EXPECT_EQ(last["timings"]["predicted_n"], 4);
  EXPECT_EQ(last["timings"]["predicted_per_second"], 2);
}

TEST(LlamaServerRenderer, ABodyHasTokensOnRequest) {
  for (const bool returns_tokens : {false, true}) {
    RenderedAnswer answer(false);
    answer.Begin(LlamaServerReply{.settings = "{}", .returns_tokens = returns_tokens});
    answer.Write("Hi", {10});
    answer.End(ChoiceFinished::Reason::kLength);
    const OllamaLine body = answer.TakeBody();
    EXPECT_EQ(body["content"], "Hi");
    EXPECT_EQ(body["stop_type"], "limit");
    EXPECT_EQ(body["tokens"].size(), returns_tokens ? 1 : 0);
  }
}

}  // namespace
}  // namespace tandem::server
