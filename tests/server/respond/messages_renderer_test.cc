#include "server/respond/messages_renderer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/answers/answer_events.h"
#include "server/http/response_channel.h"

namespace tandem::server {
namespace {

using engine::AnswerEvent;
using engine::CallArguments;
using engine::CallBegin;
using engine::CallDropped;
using engine::CallEnd;
using engine::ReasoningPart;
using engine::TextPart;
using Reason = engine::ChoiceFinished::Reason;
using MessagesJson = nlohmann::ordered_json;

class ExposedMessages : public MessagesRenderer {
 public:
  using MessagesRenderer::MessagesRenderer;
  using MessagesRenderer::OnBegin;
  using MessagesRenderer::OnEnd;
  using MessagesRenderer::OnFailure;
  using MessagesRenderer::OnPart;
};

struct NamedEvent {
  std::string name;
  MessagesJson data;
};

// The frames of a stream: `event: NAME` and `data: JSON`.
std::vector<NamedEvent> ParseNamedEvents(const std::string& bytes) {
  std::vector<NamedEvent> events;
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t end = bytes.find("\n\n", at);
    const std::string frame = bytes.substr(at, end - at);
    const size_t line = frame.find("\ndata: ");
    EXPECT_TRUE(frame.starts_with("event: ") && line != std::string::npos) << frame;
    events.push_back({frame.substr(7, line - 7), MessagesJson::parse(frame.substr(line + 7))});
    at = end + 2;
  }
  return events;
}

// One renderer with its channel. The prompt has three tokens.
class MessagesOutput {
 public:
  explicit MessagesOutput(bool stream, bool streams_calls = false) {
    ReplyShape shape;
    shape.id = "msg_1";
    shape.model = "m";
    shape.request_id = "req_1";
    shape.stream = stream;
    shape.prompts = {{{1, 2, 3}, ""}};
    channel_ = std::make_shared<ResponseChannel>(
        1 << 20, [] {}, [](const std::shared_ptr<ResponseChannel>&) {});
    const ResponseWriter writer(channel_, [] { return ResponseWriter::Abandoned{}; });
    renderer_ = std::make_unique<ExposedMessages>(std::move(shape), writer, streams_calls);
    renderer_->OnBegin();
  }

  ExposedMessages& renderer() { return *renderer_; }
  void Show(const std::vector<AnswerEvent>& parts, const AnswerEnd& end) {
    for (const AnswerEvent& part : parts) renderer_->OnPart(part);
    renderer_->OnEnd(end);
  }
  std::vector<NamedEvent> TakeEvents() {
    ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.is_stream);
    return ParseNamedEvents(out.bytes);
  }
  Response TakeWhole() {
    ResponseChannel::Output out = channel_->Take();
    EXPECT_TRUE(out.finished);
    return out.head.value_or(Response{});
  }
  MessagesJson TakeBody() { return MessagesJson::parse(TakeWhole().body); }

 private:
  std::shared_ptr<ResponseChannel> channel_;
  std::unique_ptr<ExposedMessages> renderer_;
};

AnswerEnd EndOf(Reason reason, bool has_calls = false, std::string stop_string = {}) {
  return {reason, std::move(stop_string), has_calls};
}

std::vector<std::string> Names(const std::vector<NamedEvent>& events) {
  std::vector<std::string> names;
  for (const NamedEvent& event : events) names.push_back(event.name);
  return names;
}

// Reads a stream back into a message as clients do, and checks every rule of the order.
class MessagesReader {
 public:
  void Read(const NamedEvent& event) {
    ASSERT_EQ(event.data["type"], event.name);
    ASSERT_FALSE(is_over_) << event.name << " after the end";
    if (event.name == "message_start") {
      ASSERT_FALSE(has_begun_);
      has_begun_ = true;
      message_ = event.data["message"];
      ASSERT_EQ(message_["content"], MessagesJson::array());
    } else if (event.name == "error") {
      is_over_ = true;
    } else {
      ASSERT_TRUE(has_begun_) << event.name;
      ReadAfterStart(event);
    }
  }
  const MessagesJson& message() const { return message_; }
  bool is_over() const { return is_over_; }

 private:
  void ReadAfterStart(const NamedEvent& event) {
    MessagesJson& content = message_["content"];
    if (event.name == "content_block_start") {
      ASSERT_FALSE(is_open_ || has_delta_) << "a block begins within another one";
      ASSERT_EQ(event.data["index"], content.size());
      is_open_ = true;
      content.push_back(event.data["content_block"]);
      n_deltas_ = 0;
      input_.clear();
    } else if (event.name == "content_block_delta") {
      ASSERT_TRUE(is_open_);
      ASSERT_EQ(event.data["index"], content.size() - 1);
      ReadDelta(event.data["delta"], content.back());
    } else if (event.name == "content_block_stop") {
      ASSERT_TRUE(is_open_);
      ASSERT_EQ(event.data["index"], content.size() - 1);
      ASSERT_TRUE(n_deltas_ > 0 || content.back()["type"] == "tool_use") << "an empty block";
      ASSERT_TRUE(content.back()["type"] != "thinking" || content.back()["signature"] != "");
      if (content.back()["type"] == "tool_use") content.back()["text of input"] = input_;
      is_open_ = false;
    } else if (event.name == "message_delta") {
      ASSERT_FALSE(is_open_ || has_delta_);
      has_delta_ = true;
      message_["stop_reason"] = event.data["delta"]["stop_reason"];
      message_["stop_sequence"] = event.data["delta"]["stop_sequence"];
      message_["usage"] = event.data["usage"];
    } else {
      ASSERT_EQ(event.name, "message_stop");
      ASSERT_TRUE(has_delta_);
      is_over_ = true;
    }
  }

  void ReadDelta(const MessagesJson& delta, MessagesJson& block) {
    const std::string type = delta["type"];
    const std::string kind = block["type"];
    ++n_deltas_;
    if (type == "input_json_delta") {
      ASSERT_EQ(kind, "tool_use");
      input_ += delta["partial_json"].get<std::string>();
      return;
    }
    const bool is_signature = type == "signature_delta";
    ASSERT_EQ(kind, is_signature || type == "thinking_delta" ? "thinking" : "text");
    ASSERT_EQ(block.value("signature", ""), "") << "a delta after the signature";
    const char* member = is_signature ? "signature" : kind == "text" ? "text" : "thinking";
    ASSERT_NE(delta[member], "");
    block[member] = block[member].get<std::string>() + delta[member].get<std::string>();
  }

  MessagesJson message_;
  bool has_begun_ = false;
  bool is_open_ = false;
  bool has_delta_ = false;
  bool is_over_ = false;
  int n_deltas_ = 0;
  std::string input_;
};

TEST(MessagesRenderer, BodyHasThoughtsTextAndCallsAsBlocks) {
  MessagesOutput output(false);
  output.Show({ReasoningPart{"hm"}, ReasoningPart{"m"}, TextPart{"Let me "}, TextPart{"look."},
               CallBegin{0, "toolu_1", "look"}, CallArguments{0, "{\"a\":"}, CallArguments{0, "1}"},
               CallEnd{0}},
              EndOf(Reason::kStop, true));

  EXPECT_EQ(output.TakeBody(), MessagesJson::parse(R"({
    "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [
      {"type": "thinking", "thinking": "hmm", "signature": "msg_1"},
      {"type": "text", "text": "Let me look."},
      {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"a": 1}}],
    "stop_reason": "tool_use", "stop_sequence": null,
    "usage": {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
              "output_tokens": 0}})"));
}

TEST(MessagesRenderer, StreamClosesEachBlockBeforeTheNext) {
  MessagesOutput output(true);
  output.Show({ReasoningPart{"hm"}, TextPart{"Hi"}, TextPart{"!"}, CallBegin{0, "toolu_1", "look"},
               CallArguments{0, "{}"}, CallEnd{0}},
              EndOf(Reason::kStop, true));

  EXPECT_EQ(
      Names(output.TakeEvents()),
      (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                "content_block_delta", "content_block_stop", "content_block_start",
                                "content_block_delta", "content_block_delta", "content_block_stop",
                                "content_block_start", "content_block_delta", "content_block_stop",
                                "message_delta", "message_stop"}));
}

TEST(MessagesRenderer, AnAnswerWithoutTextHasNoBlock) {
  MessagesOutput stream(true);
  stream.Show({}, EndOf(Reason::kStop));
  EXPECT_EQ(Names(stream.TakeEvents()),
            (std::vector<std::string>{"message_start", "message_delta", "message_stop"}));
  MessagesOutput body(false);
  body.Show({}, EndOf(Reason::kStop));
  EXPECT_EQ(body.TakeBody()["content"], MessagesJson::array());
}

TEST(MessagesRenderer, TheStopReasonSaysWhatEndedTheAnswer) {
  const auto stop_of = [](const AnswerEnd& end) {
    MessagesOutput output(false);
    output.Show({TextPart{"a"}}, end);
    const MessagesJson body = output.TakeBody();
    return body["stop_reason"].dump() + body["stop_sequence"].dump();
  };
  EXPECT_EQ(stop_of(EndOf(Reason::kStop)), R"("end_turn"null)");
  EXPECT_EQ(stop_of(EndOf(Reason::kLength)), R"("max_tokens"null)");
  EXPECT_EQ(stop_of(EndOf(Reason::kLength, true)), R"("max_tokens"null)");
  EXPECT_EQ(stop_of(EndOf(Reason::kStop, true)), R"("tool_use"null)");
  EXPECT_EQ(stop_of(EndOf(Reason::kStop, false, "\"x")), R"("stop_sequence""\"x")");
}

TEST(MessagesRenderer, ADroppedCallIsTextAndNeverABlockOfItsOwn) {
  const std::vector<AnswerEvent> parts = {TextPart{"a"}, CallBegin{0, "toolu_1", "f"},
                                          CallArguments{0, "{\"x\":"},
                                          CallDropped{0, " <call>{\"x\":"}, TextPart{"?"}};
  MessagesOutput body(false);
  body.Show(parts, EndOf(Reason::kStop));
  EXPECT_EQ(body.TakeBody()["content"],
            MessagesJson::parse(R"([{"type": "text", "text": "a <call>{\"x\":?"}])"));
  MessagesOutput stream(true);
  stream.Show(parts, EndOf(Reason::kStop));
  MessagesReader reader;
  for (const NamedEvent& event : stream.TakeEvents()) reader.Read(event);
  EXPECT_EQ(reader.message()["content"],
            MessagesJson::parse(R"([{"type": "text", "text": "a <call>{\"x\":?"}])"));
}

TEST(MessagesRenderer, ACallThatAGrammarHoldsIsSentWhileItIsWritten) {
  MessagesOutput output(true, true);
  output.renderer().OnPart(TextPart{"a"});
  output.renderer().OnPart(CallBegin{0, "toolu_1", "f"});
  output.renderer().OnPart(CallArguments{0, "{\"x\":"});

  EXPECT_EQ(Names(output.TakeEvents()),
            (std::vector<std::string>{"message_start", "content_block_start", "content_block_delta",
                                      "content_block_stop", "content_block_start",
                                      "content_block_delta"}));
}

TEST(MessagesRenderer, ACallThatTheLimitCutsIsTheLastBlock) {
  const std::vector<AnswerEvent> parts = {CallBegin{0, "toolu_1", "f"},
                                          CallArguments{0, "{\"x\": \"ab"}};
  MessagesOutput body(false);
  body.Show(parts, EndOf(Reason::kLength, true));
  EXPECT_EQ(body.TakeBody()["content"][0]["input"], MessagesJson::object());
  MessagesOutput stream(true);
  stream.Show(parts, EndOf(Reason::kLength, true));
  MessagesReader reader;
  for (const NamedEvent& event : stream.TakeEvents()) reader.Read(event);
  EXPECT_EQ(reader.message()["content"][0]["text of input"], "{\"x\": \"ab");
}

TEST(MessagesRenderer, AFailureAfterTheStartIsOneErrorEvent) {
  MessagesOutput output(true);
  output.renderer().OnPart(TextPart{"a"});
  output.renderer().OnFailure(MakeErrorReply(503, "server_overloaded", "too slow"));

  const std::vector<NamedEvent> events = output.TakeEvents();
  EXPECT_EQ(events.back().name, "error");
  EXPECT_EQ(events.back().data, MessagesJson::parse(R"({"type": "error",
      "error": {"type": "overloaded_error", "message": "too slow"}, "request_id": "req_1"})"));
  MessagesReader reader;
  for (const NamedEvent& event : events) reader.Read(event);
  EXPECT_TRUE(reader.is_over());
}

TEST(MessagesRenderer, AFailureOfABodyHasItsOwnStatus) {
  MessagesOutput output(false);
  output.renderer().OnFailure(MakeErrorReply(503, "shutting_down", "stopping"));
  const Response response = output.TakeWhole();
  EXPECT_EQ(response.status, 503);
  EXPECT_EQ(response.error_message, "stopping");
}

TEST(MessagesRenderer, ASilentStreamGetsPings) {
  MessagesOutput output(true);
  EXPECT_TRUE(output.renderer().has_pings());
  output.renderer().SendPing();
  EXPECT_EQ(output.TakeEvents().back().data, MessagesJson::parse(R"({"type": "ping"})"));
  MessagesOutput body(false);
  body.renderer().SendPing();
  body.renderer().OnEnd(EndOf(Reason::kStop));
  EXPECT_EQ(body.TakeBody()["type"], "message");
}

// A random answer, in an order that the parser can produce, and the blocks that it must become.
struct RandomAnswer {
  std::vector<AnswerEvent> parts;
  MessagesJson content = MessagesJson::array();  // calls have their input as text
  AnswerEnd end;
};

class AnswerMaker {
 public:
  AnswerMaker(uint64_t seed, bool drops_calls) : random_(seed), drops_calls_(drops_calls) {}

  RandomAnswer Make() {
    RandomAnswer answer;
    const int n_parts = Below(8);
    for (int i = 0; i < n_parts; ++i) {
      const int kind = Below(4);
      if (kind == 0) {
        answer.parts.push_back(ReasoningPart{AddText(answer.content, "thinking")});
      } else if (kind == 1) {
        answer.parts.push_back(TextPart{AddText(answer.content, "text")});
      } else {
        AddCall(answer, Below(3) == 0 && drops_calls_);
      }
    }
    if (Below(3) == 0) {
      answer.end.reason = Reason::kLength;
      if (Below(2) == 0) AddCutCall(answer);
    }
    return answer;
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  std::string Word() {
    static const char* const kWords[] = {"a",  "é",      "\n",  "\"",
                                         "\\", "<call>", " b ", "\xf0\x9f\x99\x82"};
    std::string word;
    for (int i = 0; i <= Below(3); ++i) word += kWords[Below(8)];
    return word;
  }

  static void Append(MessagesJson& content, const std::string& type, const std::string& text) {
    if (content.empty() || content.back()["type"] != type) {
      content.push_back({{"type", type}, {type, ""}});
      if (type == "thinking") content.back()["signature"] = "msg_1";
    }
    content.back()[type] = content.back()[type].get<std::string>() + text;
  }
  std::string AddText(MessagesJson& content, const std::string& type) {
    const std::string text = Word();
    Append(content, type, text);
    return text;
  }

  // Sends the arguments in random pieces.
  void SendArguments(RandomAnswer& answer, int index, const std::string& arguments) {
    for (size_t at = 0; at < arguments.size();) {
      size_t n = 1 + static_cast<size_t>(Below(5));
      // Parts hold whole characters.
      while (at + n < arguments.size() && (arguments[at + n] & 0xc0) == 0x80) ++n;
      answer.parts.push_back(CallArguments{index, arguments.substr(at, n)});
      at += n;
    }
  }
  MessagesJson Begin(RandomAnswer& answer, int index) {
    MessagesJson block = {{"type", "tool_use"},
                          {"id", "toolu_" + std::to_string(index)},
                          {"name", "f"},
                          {"input", MessagesJson::object()}};
    answer.parts.push_back(CallBegin{index, block["id"], block["name"]});
    return block;
  }

  void AddCall(RandomAnswer& answer, bool is_dropped) {
    const int index = n_calls_++;
    MessagesJson block = Begin(answer, index);
    const std::string arguments = MessagesJson{{"k", Word()}, {Word(), Below(9)}}.dump();
    if (is_dropped) {
      SendArguments(answer, index, arguments.substr(0, arguments.size() / 2));
      answer.parts.push_back(CallDropped{index, " <call>" + arguments});
      return Append(answer.content, "text", " <call>" + arguments);
    }
    SendArguments(answer, index, arguments);
    answer.parts.push_back(CallEnd{index});
    block["text of input"] = arguments;
    answer.content.push_back(std::move(block));
    answer.end.has_calls = true;
  }

  void AddCutCall(RandomAnswer& answer) {
    const int index = n_calls_++;
    MessagesJson block = Begin(answer, index);
    const std::string arguments = R"({"k": "val)";
    SendArguments(answer, index, arguments);
    block["text of input"] = arguments;
    answer.content.push_back(std::move(block));
    answer.end.has_calls = true;
  }

  std::mt19937_64 random_;
  const bool drops_calls_;
  int n_calls_ = 0;
};

// As a body shows the content: a complete call has an object as input, a cut one an empty object.
MessagesJson BodyContent(MessagesJson content) {
  for (MessagesJson& block : content) {
    if (block["type"] != "tool_use") continue;
    const MessagesJson input =
        MessagesJson::parse(block["text of input"].get<std::string>(), nullptr, false);
    block.erase("text of input");
    if (input.is_object()) block["input"] = input;
  }
  return content;
}

TEST(MessagesRenderer, EveryAnswerKeepsTheOrderOfEventsAndIsTheSameAsItsBody) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    const bool streams_calls = seed % 2 == 0;
    const RandomAnswer answer = AnswerMaker(seed, !streams_calls).Make();
    MessagesOutput stream(true, streams_calls);
    stream.Show(answer.parts, answer.end);
    MessagesReader reader;
    for (const NamedEvent& event : stream.TakeEvents()) reader.Read(event);
    MessagesOutput whole(false, streams_calls);
    whole.Show(answer.parts, answer.end);
    const MessagesJson body = whole.TakeBody();

    ASSERT_TRUE(reader.is_over());
    ASSERT_EQ(reader.message()["content"], answer.content);
    ASSERT_EQ(body["content"], BodyContent(answer.content));
    for (const char* same :
         {"id", "type", "role", "model", "stop_reason", "stop_sequence", "usage"}) {
      ASSERT_EQ(reader.message()[same], body[same]) << same;
    }
    if (testing::Test::HasFailure()) return;
  }
}

// A grammar should prevent this. The order of events holds even so.
TEST(MessagesRenderer, ADroppedCallThatWasBegunIsClosed) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const RandomAnswer answer = AnswerMaker(seed, true).Make();
    MessagesOutput stream(true, true);
    stream.Show(answer.parts, answer.end);
    MessagesReader reader;
    for (const NamedEvent& event : stream.TakeEvents()) reader.Read(event);
    ASSERT_TRUE(reader.is_over());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(MessagesRenderer, AFailureAnywhereEndsTheStreamOnce) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const RandomAnswer answer = AnswerMaker(seed, true).Make();
    MessagesOutput stream(true, seed % 2 == 0);
    const size_t n = answer.parts.empty() ? 0 : seed % answer.parts.size();
    for (size_t i = 0; i < n; ++i) stream.renderer().OnPart(answer.parts[i]);
    stream.renderer().OnFailure(MakeErrorReply(500, "internal_error", "x"));
    MessagesReader reader;
    for (const NamedEvent& event : stream.TakeEvents()) reader.Read(event);
    ASSERT_TRUE(reader.is_over());
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace tandem::server
