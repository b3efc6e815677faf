#include "server/respond/messages_renderer.h"

#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

std::string_view StopReason(const AnswerEnd& end) {
  if (end.reason == engine::ChoiceFinished::Reason::kLength) return "max_tokens";
  if (end.has_calls) return "tool_use";
  return end.stop_string.empty() ? "end_turn" : "stop_sequence";
}

// Appends `"stop_reason":…,"stop_sequence":…`.
void AppendStop(std::string& out, const AnswerEnd& end) {
  const std::string_view reason = StopReason(end);
  out += R"("stop_reason":")";
  out += reason;
  out += R"(","stop_sequence":)";
  if (reason == "stop_sequence") {
    AppendJsonString(out, end.stop_string);
  } else {
    out += "null";
  }
}

}  // namespace

MessagesRenderer::MessagesRenderer(ReplyShape shape, ResponseWriter writer, bool streams_calls)
    : AnswerRenderer(std::move(shape), std::move(writer)), streams_calls_(streams_calls) {}

void MessagesRenderer::Send(std::string_view event, std::string_view data) {
  stream_->SendNamed(event, data);
}

void MessagesRenderer::SendPing() {
  if (stream_) Send("ping", R"({"type":"ping"})");
}

std::string MessagesRenderer::BlockEvent(std::string_view type) const {
  std::string out = R"({"type":")";
  out += type;
  out += R"(","index":)";
  AppendJsonInt(out, n_blocks_ - 1);
  return out;
}

void MessagesRenderer::AppendUsage(std::string& out) const {
  const ReplyUsage& counts = usage();
  out += R"("usage":{"input_tokens":)";
  AppendJsonInt(out, counts.prompt_tokens - counts.cached_tokens);
  out += R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)";
  AppendJsonInt(out, counts.cached_tokens);
  out += R"(,"output_tokens":)";
  AppendJsonInt(out, counts.completion_tokens);
  out.push_back('}');
}

void MessagesRenderer::OnBegin() {
  if (!shape().stream) return;
  stream_ = StartStream();
  std::string out = R"({"type":"message_start","message":{"id":)";
  AppendJsonString(out, shape().id);
  out += R"(,"type":"message","role":"assistant","model":)";
  AppendJsonString(out, shape().model);
  out += R"(,"content":[],"stop_reason":null,"stop_sequence":null,)";
  AppendUsage(out);
  out += "}}";
  Send("message_start", out);
}

void MessagesRenderer::OnPart(const engine::AnswerEvent& part) {
  std::visit([&](const auto& alternative) { Handle(alternative); }, part);
}

void MessagesRenderer::Handle(const engine::ReasoningPart& part) {
  AddText(Block::kThinking, part.text);
}

void MessagesRenderer::Handle(const engine::TextPart& part) { AddText(Block::kText, part.text); }

void MessagesRenderer::Handle(const engine::CallBegin& call) {
  if (stream_ && streams_calls_) return OpenCall(call.id, call.name);
  call_ = Call{call.id, call.name, {}};
}

void MessagesRenderer::Handle(const engine::CallArguments& arguments) {
  if (call_) {
    call_->arguments += arguments.text;
  } else if (open_ == Block::kCall) {
    SendArguments(arguments.text);
  }
}

void MessagesRenderer::Handle(const engine::CallEnd&) {
  if (call_) return ShowCall(*std::exchange(call_, std::nullopt), true);
  Close();
}

void MessagesRenderer::Handle(const engine::CallDropped& dropped) {
  call_.reset();
  if (open_ == Block::kCall) Close();
  AddText(Block::kText, dropped.written);
}

void MessagesRenderer::Open(Block block) {
  if (open_ == block) return;
  Close();
  open_ = block;
  ++n_blocks_;
  if (!stream_) return;
  std::string out = BlockEvent("content_block_start");
  out += block == Block::kText
             ? R"(,"content_block":{"type":"text","text":""}})"
             : R"(,"content_block":{"type":"thinking","thinking":"","signature":""}})";
  Send("content_block_start", out);
}

void MessagesRenderer::AddText(Block block, std::string_view text) {
  if (text.empty()) return;
  Open(block);
  if (!stream_) {
    text_ += text;
    return;
  }
  std::string out = BlockEvent("content_block_delta");
  out += block == Block::kText ? R"(,"delta":{"type":"text_delta","text":)"
                               : R"(,"delta":{"type":"thinking_delta","thinking":)";
  AppendJsonString(out, text);
  out += "}}";
  Send("content_block_delta", out);
}

void MessagesRenderer::Close() {
  const Block block = std::exchange(open_, Block::kNone);
  if (block == Block::kNone) return;
  // Clients drop thoughts without a signature. Nothing checks ours: it is the message's id.
  if (!stream_) {
    if (!content_.empty()) content_.push_back(',');
    content_ +=
        block == Block::kText ? R"({"type":"text","text":)" : R"({"type":"thinking","thinking":)";
    AppendJsonString(content_, std::exchange(text_, {}));
    if (block == Block::kThinking) {
      content_ += R"(,"signature":)";
      AppendJsonString(content_, shape().id);
    }
    content_.push_back('}');
    return;
  }
  if (block == Block::kThinking) {
    std::string out = BlockEvent("content_block_delta");
    out += R"(,"delta":{"type":"signature_delta","signature":)";
    AppendJsonString(out, shape().id);
    out += "}}";
    Send("content_block_delta", out);
  }
  Send("content_block_stop", BlockEvent("content_block_stop") + "}");
}

void MessagesRenderer::OpenCall(std::string_view id, std::string_view name) {
  Close();
  open_ = Block::kCall;
  ++n_blocks_;
  std::string out = BlockEvent("content_block_start");
  out += R"(,"content_block":{"type":"tool_use","id":)";
  AppendJsonString(out, id);
  out += R"(,"name":)";
  AppendJsonString(out, name);
  out += R"(,"input":{}}})";
  Send("content_block_start", out);
}

void MessagesRenderer::SendArguments(std::string_view arguments) {
  if (arguments.empty()) return;
  std::string out = BlockEvent("content_block_delta");
  out += R"(,"delta":{"type":"input_json_delta","partial_json":)";
  AppendJsonString(out, arguments);
  out += "}}";
  Send("content_block_delta", out);
}

void MessagesRenderer::ShowCall(const Call& call, bool is_complete) {
  if (stream_) {
    OpenCall(call.id, call.name);
    SendArguments(call.arguments);
    return Close();
  }
  Close();
  if (!content_.empty()) content_.push_back(',');
  content_ += R"({"type":"tool_use","id":)";
  AppendJsonString(content_, call.id);
  content_ += R"(,"name":)";
  AppendJsonString(content_, call.name);
  content_ += R"(,"input":)";
  // A cut call has no object yet.
  content_ += is_complete ? std::string_view(call.arguments) : std::string_view("{}");
  content_.push_back('}');
}

void MessagesRenderer::OnEnd(const AnswerEnd& end) {
  if (call_) ShowCall(*std::exchange(call_, std::nullopt), false);
  Close();
  std::string out;
  if (stream_) {
    out = R"({"type":"message_delta","delta":{)";
    AppendStop(out, end);
    out += "},";
    AppendUsage(out);
    out.push_back('}');
    Send("message_delta", out);
    Send("message_stop", R"({"type":"message_stop"})");
    stream_->Close();
    return;
  }
  out = R"({"id":)";
  AppendJsonString(out, shape().id);
  out += R"(,"type":"message","role":"assistant","model":)";
  AppendJsonString(out, shape().model);
  out += R"(,"content":[)";
  out += content_;
  out += "],";
  AppendStop(out, end);
  out.push_back(',');
  AppendUsage(out);
  out.push_back('}');
  writer().Json(200, std::move(out));
}

void MessagesRenderer::OnFailure(const ErrorReply& reply) {
  if (!stream_) return writer().Send(ToResponse(reply));
  Send("error", InAnthropicShape(reply, shape().request_id).body);
  stream_->Close();
}

}  // namespace tandem::server
