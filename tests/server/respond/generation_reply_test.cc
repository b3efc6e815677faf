#include "server/respond/generation_reply.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "server/http/response_channel.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::ChoiceFinished;
using engine::PromptScores;
using engine::RequestFinished;
using engine::TextDelta;
using engine::TokenLogprob;

// Token i spells the i-th of these; 0 is the end token; 4 and 5 are halves of "é".
class TinyTokenizer : public engine::Tokenizer {
 public:
  std::vector<TokenId> EncodeMixed(std::string_view,
                                   std::span<const engine::TextRange>) const override {
    return {};
  }
  int64_t vocab_size() const override { return 6; }
  std::string_view TokenBytes(TokenId id) const override {
    static constexpr std::string_view kBytes[] = {"<end>", "Hi", " you", "!", "\xc3", "\xa9"};
    return kBytes[id];
  }
  bool IsSpecial(TokenId id) const override { return id == 0; }
  bool adds_leading_space() const override { return true; }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }
};

TokenLogprob Scored(TokenId id) {
  TokenLogprob out;
  out.token = id;
  out.logprob = -0.5f - static_cast<float>(id);
  out.rank = 2;
  out.top = {{1, -0.25f}, {2, -0.75f}, {3, -INFINITY}};
  return out;
}

// Plays the connection: runs posted tasks and collects the replies.
class GenerationReplyTest : public testing::Test {
 protected:
  void Begin(ReplyShape shape) {
    shape.id = "id-1";
    shape.model = "m";
    shape.fingerprint = "fp_x";
    shape.created = 7;
    shape.tokenizer = std::make_shared<TinyTokenizer>();
    shape.end_tokens = {0};
    shape.n_candidates = std::max(shape.n_candidates, shape.n);
    if (shape.prompts.empty()) shape.prompts = {{{1, 2}, "Hi you"}};
    channel_ = std::make_shared<ResponseChannel>(
        1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
    const ResponseWriter writer(channel_, [] { return ResponseWriter::Abandoned{}; });
    reply_ = GenerationReply::Create(std::move(shape), writer);
    reply_->Begin([this] { ++n_cancels_; }, [](bool) {});
  }

  void Send(engine::GenerationEvent event, size_t prompt = 0) {
    reply_->Sink(prompt)(RequestId{}, std::move(event));
  }
  void Finish(int choice, ChoiceFinished::Reason reason, int64_t tokens, size_t prompt = 0) {
    ChoiceFinished finished;
    finished.choice = choice;
    finished.reason = reason;
    finished.usage = {2, 1, tokens};
    Send(finished, prompt);
  }
  static TextDelta Delta(int choice, std::string text, std::vector<TokenId> ids) {
    TextDelta delta;
    delta.choice = choice;
    delta.text = std::move(text);
    for (const TokenId id : ids) delta.logprobs.push_back(Scored(id));
    delta.token_ids = std::move(ids);
    return delta;
  }

  void RunTasks() {
    std::vector<std::function<void()>> ran;
    channel_->RunTasks(ran);
  }
  Response TakeResponse() {
    RunTasks();
    ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.finished);
    return out.head.value_or(Response{});
  }
  // Returns the data of each event, without the final [DONE], which must be last.
  std::vector<Json> TakeChunks() {
    RunTasks();
    const ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.finished);
    std::vector<Json> chunks;
    bool done = false;
    size_t at = 0;
    while (at < out.bytes.size()) {
      const size_t end = out.bytes.find("\n\n", at);
      const std::string data = out.bytes.substr(at + 6, end - at - 6);
      EXPECT_FALSE(done);
      if (data == "[DONE]") {
        done = true;
      } else {
        chunks.push_back(Json::parse(data));
      }
      at = end + 2;
    }
    EXPECT_TRUE(done);
    return chunks;
  }

  std::shared_ptr<ResponseChannel> channel_;
  std::shared_ptr<GenerationReply> reply_;
  int n_cancels_ = 0;
};

TEST_F(GenerationReplyTest, ChatBodyHasTheShapeOfTheContract) {
  ReplyShape shape;
  shape.top_logprobs = 2;
  Begin(std::move(shape));
  Send(Delta(0, "Hi", {1}));
  Send(Delta(0, " you", {2, 0}));
  Finish(0, ChoiceFinished::Reason::kStop, 3);
  Send(RequestFinished{});

  const Json body = Json::parse(TakeResponse().body);

  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["choices"][0]["message"],
            (Json{{"role", "assistant"}, {"content", "Hi you"}, {"refusal", nullptr}}));
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  const Json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2u);  // the end token has no entry
  EXPECT_EQ(content[1]["token"], " you");
  EXPECT_EQ(content[1]["logprob"], -2.5);
  EXPECT_EQ(content[1]["bytes"], (Json{32, 121, 111, 117}));
  EXPECT_EQ(content[1]["top_logprobs"].size(), 2u);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 5);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

TEST_F(GenerationReplyTest, ChatStreamNamesTheRoleOncePerChoiceAndFinishesOnce) {
  ReplyShape shape;
  shape.stream = true;
  shape.include_usage = true;
  shape.n = 2;
  Begin(std::move(shape));
  Send(Delta(0, "Hi", {1}));
  Send(Delta(1, "!", {3}));
  Send(Delta(0, "", {4}));
  Send(Delta(0, "é", {5}));
  Finish(1, ChoiceFinished::Reason::kLength, 1);
  Finish(0, ChoiceFinished::Reason::kStop, 3);
  Send(RequestFinished{});

  const std::vector<Json> chunks = TakeChunks();

  std::string text[2];
  int n_roles[2] = {0, 0};
  std::string finish[2];
  for (size_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["object"], "chat.completion.chunk");
    EXPECT_TRUE(chunks[i]["usage"].is_null());
    const Json& choice = chunks[i]["choices"][0];
    const int index = choice["index"].get<int>();
    EXPECT_TRUE(finish[index].empty()) << "something after the finish of its choice";
    if (choice["delta"].contains("role")) ++n_roles[index];
    text[index] += choice["delta"].value("content", "");
    if (!choice["finish_reason"].is_null()) {
      finish[index] = choice["finish_reason"].get<std::string>();
      EXPECT_EQ(choice["delta"], Json::object());
    }
  }
  EXPECT_EQ(text[0], "Hié");
  EXPECT_EQ(text[1], "!");
  EXPECT_EQ(n_roles[0], 1);
  EXPECT_EQ(n_roles[1], 1);
  EXPECT_EQ(finish[0], "stop");
  EXPECT_EQ(finish[1], "length");
  EXPECT_EQ(chunks.back()["choices"], Json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 4);
}

engine::AnswerOptions AnswerWithThoughts() {
  engine::AnswerOptions answer;
  answer.reasoning = engine::ReasoningSplitter::State::kUndecided;
  return answer;
}

TEST_F(GenerationReplyTest, ThoughtsAreAnsweredApart) {
  for (const bool stream : {false, true}) {
    ReplyShape shape;
    shape.stream = stream;
    shape.include_usage = true;
    shape.top_logprobs = 0;
    shape.answer.emplace(AnswerWithThoughts());
    Begin(std::move(shape));
    Send(Delta(0, "<thi", {1}));
    Send(Delta(0, "nk>", {2}));
    Send(Delta(0, "hm", {3}));
    Send(Delta(0, "</think>Yes", {1}));
    Finish(0, ChoiceFinished::Reason::kStop, 4);
    Send(RequestFinished{});

    if (!stream) {
      const Json body = Json::parse(TakeResponse().body);
      EXPECT_EQ(body["choices"][0]["message"]["content"], "Yes");
      EXPECT_EQ(body["choices"][0]["message"]["reasoning_content"], "hm");
      EXPECT_EQ(body["choices"][0]["message"]["reasoning"], "hm");
      EXPECT_EQ(body["choices"][0]["logprobs"]["content"].size(), 4u);
      EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
      continue;
    }
    std::string order;
    size_t n_logprobs = 0;
    const std::vector<Json> chunks = TakeChunks();
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
      const Json& choice = chunks[i]["choices"][0];
      const Json& delta = choice["delta"];
      if (delta.contains("reasoning_content")) {
        EXPECT_EQ(delta["reasoning"], delta["reasoning_content"]);
        order += "r:" + delta["reasoning_content"].get<std::string>() + " ";
      } else if (delta.contains("content")) {
        order += "c:" + delta["content"].get<std::string>() + " ";
      }
      if (!choice["logprobs"].is_null()) n_logprobs += choice["logprobs"]["content"].size();
    }
    EXPECT_EQ(order, "c: c: r:hm c:Yes ");  // the first two: the role, the marks' tokens
    EXPECT_EQ(n_logprobs, 4u);
    EXPECT_EQ(chunks.back()["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  }
}

// The options of a request with the tool `f`, in the format hermes.
engine::AnswerOptions AnswersWithCalls() {
  engine::AnswerOptions answer;
  answer.format = engine::FindToolFormat("hermes");
  answer.tools = std::make_shared<const engine::DeclaredTools>(
      Json::parse(R"([{"type": "function", "function": {"name": "f"}}])"));
  answer.new_id = [] { return std::string("call_1"); };
  return answer;
}

TEST_F(GenerationReplyTest, CallsOfABodyStandBesideTheContent) {
  for (const bool has_text : {false, true}) {
    ReplyShape shape;
    shape.answer = AnswersWithCalls();
    shape.on_prompt_end = [](std::string_view reason) { EXPECT_EQ(reason, "tool_calls"); };
    Begin(std::move(shape));
    Send(Delta(0, has_text ? "Well.\n<tool_" : "<tool_", {1}));
    Send(Delta(0, "call>{\"name\": \"f\", \"arguments\": {\"k\": 1}}</tool_call>", {2}));
    Finish(0, ChoiceFinished::Reason::kStop, 3);
    Send(RequestFinished{});

    const Json choice = Json::parse(TakeResponse().body)["choices"][0];

    EXPECT_EQ(choice["message"]["content"], has_text ? Json("Well.") : Json());
    EXPECT_EQ(choice["message"]["tool_calls"], Json::parse(R"([{"id": "call_1", "type": "function",
                               "function": {"name": "f", "arguments": "{\"k\": 1}"}}])"));
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
  }
}

TEST_F(GenerationReplyTest, AStreamSendsTheNameOnceAndThenTheArguments) {
  ReplyShape shape;
  shape.answer = AnswersWithCalls();
  shape.stream = true;
  shape.top_logprobs = 0;
  Begin(std::move(shape));
  for (const char* text :
       {"<tool_call>{\"name\": \"f\", \"arguments\": {\"k\"", ": 1", "}}", "</tool_call>"}) {
    Send(Delta(0, text, {1}));
  }
  Finish(0, ChoiceFinished::Reason::kStop, 4);
  Send(RequestFinished{});

  Json calls = Json::array();
  size_t n_logprobs = 0;
  const std::vector<Json> chunks = TakeChunks();
  for (const Json& chunk : chunks) {
    const Json& choice = chunk["choices"][0];
    for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
      calls.push_back(call);
    }
    if (!choice["logprobs"].is_null()) n_logprobs += choice["logprobs"]["content"].size();
  }

  EXPECT_EQ(calls, Json::parse(R"([
      {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}},
      {"index": 0, "function": {"arguments": "{\"k\""}},
      {"index": 0, "function": {"arguments": ": 1"}},
      {"index": 0, "function": {"arguments": "}"}}])"));
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(n_logprobs, 4u);
}

TEST_F(GenerationReplyTest, ACallThatIsCutOrBrokenDoesNotEndWithToolCalls) {
  struct Case {
    ChoiceFinished::Reason reason;
    const char *finish_reason, *content;
    size_t n_calls;
  };
  const std::string answer = "<tool_call>{\"name\": \"f\", \"arguments\": {\"k\"";
  for (const Case& one : {Case{ChoiceFinished::Reason::kLength, "length", nullptr, 1},
                          Case{ChoiceFinished::Reason::kStop, "stop", answer.c_str(), 0}}) {
    ReplyShape shape;
    shape.answer = AnswersWithCalls();
    Begin(std::move(shape));
    Send(Delta(0, answer, {1}));
    Finish(0, one.reason, 1);
    Send(RequestFinished{});

    const Json choice = Json::parse(TakeResponse().body)["choices"][0];

    EXPECT_EQ(choice["finish_reason"], one.finish_reason);
    EXPECT_EQ(choice["message"]["content"], one.content != nullptr ? Json(one.content) : Json());
    EXPECT_EQ(choice["message"].value("tool_calls", Json::array()).size(), one.n_calls);
  }
}

TEST_F(GenerationReplyTest, StreamWithoutUsageHasNoUsageKey) {
  ReplyShape shape;
  shape.stream = true;
  Begin(std::move(shape));
  Send(Delta(0, "Hi", {1}));
  Finish(0, ChoiceFinished::Reason::kStop, 1);
  Send(RequestFinished{});

  for (const Json& chunk : TakeChunks()) EXPECT_FALSE(chunk.contains("usage"));
}

TEST_F(GenerationReplyTest, EchoScoresThePromptWithArraysOfEqualLength) {
  ReplyShape shape;
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.echo = true;
  shape.top_logprobs = 1;
  Begin(std::move(shape));
  PromptScores scores;
  scores.tokens = {Scored(1), Scored(2)};
  Send(scores);
  Send(Delta(0, "!", {3}));
  Finish(0, ChoiceFinished::Reason::kLength, 1);
  Send(RequestFinished{});

  const Json choice = Json::parse(TakeResponse().body)["choices"][0];

  EXPECT_EQ(choice["text"], "Hi you!");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"Hi", " you", "!"}));
  EXPECT_EQ(choice["logprobs"]["token_logprobs"], (Json{nullptr, -2.5, -3.5}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 2, 6}));
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  // The chosen token is always among its alternatives.
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][2], (Json{{"Hi", -0.25}, {"!", -3.5}}));
}

// 4 and 5 are halves of "é"; a single half is U+FFFD in the text.
TEST_F(GenerationReplyTest, OffsetsCountTheCharactersThatAreAnswered) {
  ReplyShape shape;
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.echo = true;
  shape.top_logprobs = 0;
  shape.prompts = {{{1, 4}, "Hi\ufffd"}};
  Begin(std::move(shape));
  PromptScores scores;
  scores.tokens = {Scored(1), Scored(4)};
  Send(scores);
  Send(Delta(0, "\ufffd!é\ufffd!", {5, 3, 4, 5, 4, 3}));
  Finish(0, ChoiceFinished::Reason::kLength, 6);
  Send(RequestFinished{});

  const Json choice = Json::parse(TakeResponse().body)["choices"][0];

  EXPECT_EQ(choice["text"], "Hi\ufffd\ufffd!é\ufffd!");
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 2, 3, 4, 5, 5, 6, 7}));
}

// The first space is the tokenizer's own, unless the text continues another text.
TEST_F(GenerationReplyTest, OffsetsKnowWhetherTheFirstSpaceIsText) {
  for (const bool continues : {false, true}) {
    ReplyShape shape;
    shape.kind = ReplyShape::Kind::kCompletion;
    shape.top_logprobs = 0;
    shape.prompts = {{{1}, "", continues}};
    Begin(std::move(shape));
    Send(Delta(0, continues ? " you!" : "you!", {2, 3}));
    Finish(0, ChoiceFinished::Reason::kLength, 2);
    Send(RequestFinished{});

    const Json choice = Json::parse(TakeResponse().body)["choices"][0];

    EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, continues ? 4 : 3}));
  }
}

TEST_F(GenerationReplyTest, ScoringAloneAnswersThePromptEvenAsAStream) {
  for (const bool stream : {false, true}) {
    ReplyShape shape;
    shape.kind = ReplyShape::Kind::kCompletion;
    shape.echo = true;
    shape.stream = stream;
    shape.top_logprobs = 0;
    Begin(std::move(shape));
    PromptScores scores;
    scores.tokens = {Scored(1), Scored(2)};
    Send(scores);
    Finish(0, ChoiceFinished::Reason::kLength, 0);
    Send(RequestFinished{});

    const Json choice =
        stream ? TakeChunks()[0]["choices"][0] : Json::parse(TakeResponse().body)["choices"][0];
    EXPECT_EQ(choice["text"], "Hi you");
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), 2u);
  }
}

TEST_F(GenerationReplyTest, ChoicesAreNumberedPromptByPrompt) {
  ReplyShape shape;
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.n = 2;
  shape.prompts = {{{1}, "a"}, {{2}, "b"}};
  Begin(std::move(shape));
  for (const size_t prompt : {1u, 0u}) {
    for (const int choice : {1, 0}) {
      Send(Delta(choice, std::to_string(prompt) + std::to_string(choice), {1}), prompt);
      Finish(choice, ChoiceFinished::Reason::kStop, 1, prompt);
    }
    Send(RequestFinished{}, prompt);
  }

  const Json body = Json::parse(TakeResponse().body);

  for (int i = 0; i < 4; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["choices"][1]["text"], "01");
  EXPECT_EQ(body["choices"][2]["text"], "10");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 2);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
}

TEST_F(GenerationReplyTest, BestOfAnswersTheLikeliestAndCountsAll) {
  ReplyShape shape;
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.n_candidates = 3;
  Begin(std::move(shape));
  Send(Delta(0, "!", {3}));
  Send(Delta(1, "Hi", {1}));
  Send(Delta(2, " you", {2}));
  for (int choice = 0; choice < 3; ++choice) Finish(choice, ChoiceFinished::Reason::kStop, 1);
  Send(RequestFinished{});

  const Json body = Json::parse(TakeResponse().body);

  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["text"], "Hi");
  EXPECT_EQ(body["choices"][0]["index"], 0);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
}

TEST_F(GenerationReplyTest, TokensCanBeNamedByIdAndHalvesOfCharactersByTheirBytes) {
  for (const bool as_ids : {true, false}) {
    ReplyShape shape;
    shape.kind = ReplyShape::Kind::kCompletion;
    shape.top_logprobs = 0;
    shape.return_tokens_as_token_ids = as_ids;
    Begin(std::move(shape));
    Send(Delta(0, "é", {4, 5}));
    Finish(0, ChoiceFinished::Reason::kLength, 2);
    Send(RequestFinished{});

    const Json tokens = Json::parse(TakeResponse().body)["choices"][0]["logprobs"]["tokens"];
    EXPECT_EQ(tokens,
              (as_ids ? Json{"token_id:4", "token_id:5"} : Json{"bytes:\\xc3", "bytes:\\xa9"}));
  }
}

TEST_F(GenerationReplyTest, StopReasonsNameWhatTheRequestAskedFor) {
  ReplyShape shape;
  shape.asked_end_tokens = {3};
  shape.n = 3;
  Begin(std::move(shape));
  for (int choice = 0; choice < 3; ++choice) {
    ChoiceFinished finished;
    finished.choice = choice;
    if (choice == 0) finished.stop_string = "END";
    if (choice == 1) finished.stop_token = 3;
    if (choice == 2) finished.stop_token = 0;
    Send(finished);
  }
  Send(RequestFinished{});

  const Json choices = Json::parse(TakeResponse().body)["choices"];

  EXPECT_EQ(choices[0]["stop_reason"], "END");
  EXPECT_EQ(choices[1]["stop_reason"], 3);
  EXPECT_TRUE(choices[2]["stop_reason"].is_null());
}

TEST_F(GenerationReplyTest, AFailureBeforeTheAnswerHasItsOwnStatus) {
  Begin({});
  RequestFinished failed;
  failed.outcome = RequestFinished::Outcome::kFailed;
  failed.code = ErrorCode::kDeadlineExceeded;
  failed.message = "the request waited too long";
  Send(failed);

  const Response response = TakeResponse();

  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(Json::parse(response.body)["error"]["message"], "the request waited too long");
}

TEST_F(GenerationReplyTest, AFailureInAStreamIsOneErrorEventAndCancelsTheRest) {
  ReplyShape shape;
  shape.kind = ReplyShape::Kind::kCompletion;
  shape.stream = true;
  shape.prompts = {{{1}, "a"}, {{2}, "b"}};
  Begin(std::move(shape));
  Send(Delta(0, "Hi", {1}));
  RequestFinished failed;
  failed.outcome = RequestFinished::Outcome::kFailed;
  failed.message = "private";
  Send(failed, 0);
  Send(Delta(0, "late", {1}), 1);

  const std::vector<Json> chunks = TakeChunks();

  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1]["error"]["code"], "internal_error");
  EXPECT_EQ(chunks[1].dump().find("private"), std::string::npos);
  EXPECT_EQ(n_cancels_, 1);
}

TEST_F(GenerationReplyTest, NothingIsKeptForAClientThatLeft) {
  ReplyShape shape;
  shape.stream = true;
  Begin(std::move(shape));
  RunTasks();
  const std::weak_ptr<GenerationReply> watched = reply_;
  {
    const engine::EventSink sink = reply_->Sink(0);
    reply_.reset();
    channel_->Disconnect();
    sink(RequestId{}, Delta(0, "Hi", {1}));
  }

  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace tandem::server
