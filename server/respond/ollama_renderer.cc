#include "server/respond/ollama_renderer.h"

#include <chrono>
#include <cmath>
#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/wire/json_text.h"
#include "server/wire/ollama/timestamp.h"

namespace tandem::server {
namespace {

void AppendNanoseconds(std::string& out, std::string_view name, double seconds) {
  out += R"(,")";
  out += name;
  out += R"(":)";
  AppendJsonInt(out, std::llround(seconds * 1e9));
}

// Appends `"name":"text"`.
void AppendMember(std::string& out, std::string_view name, std::string_view text) {
  out.push_back('"');
  out += name;
  out += R"(":)";
  AppendJsonString(out, text);
}

}  // namespace

void AppendOllamaCounts(std::string& out, const engine::RequestTimings& timings,
                        int64_t prompt_tokens, int64_t completion_tokens) {
  AppendNanoseconds(out, "total_duration", timings.e2e_s);
  AppendNanoseconds(out, "load_duration", timings.queue_s);
  out += R"(,"prompt_eval_count":)";
  AppendJsonInt(out, prompt_tokens);
  AppendNanoseconds(out, "prompt_eval_duration", timings.prefill_s);
  out += R"(,"eval_count":)";
  AppendJsonInt(out, completion_tokens);
  AppendNanoseconds(out, "eval_duration", timings.decode_s);
}

OllamaRenderer::OllamaRenderer(ReplyShape shape, OllamaReply reply, ResponseWriter writer)
    : AnswerRenderer(std::move(shape), std::move(writer)), reply_(std::move(reply)) {}

void OllamaRenderer::SendPing() {
  if (stream_) SendLine({});
}

void OllamaRenderer::OnBegin() {
  if (shape().stream) stream_ = StartLineStream();
}

void OllamaRenderer::OnPart(const engine::AnswerEvent& part) {
  std::visit([&](const auto& alternative) { Handle(alternative); }, part);
}

void OllamaRenderer::Handle(const engine::CallBegin& call) {
  call_ = Call{call.index, call.id, call.name, {}};
}

void OllamaRenderer::Handle(const engine::CallArguments& arguments) {
  if (call_) call_->arguments += arguments.text;
}

void OllamaRenderer::Handle(const engine::CallEnd&) {
  if (!call_) return;
  std::string& out = parts_.calls;
  if (!out.empty()) out.push_back(',');
  out += R"({"id":)";
  AppendJsonString(out, call_->id);
  out += R"(,"function":{"index":)";
  AppendJsonInt(out, call_->index);
  out += R"(,"name":)";
  AppendJsonString(out, call_->name);
  out += R"(,"arguments":)";
  out += call_->arguments;
  out += "}}";
  call_.reset();
}

void OllamaRenderer::Handle(const engine::CallDropped& dropped) {
  call_.reset();
  parts_.text += dropped.written;
}

std::string OllamaRenderer::Head(const Parts& parts) const {
  std::string out = "{";
  AppendMember(out, "model", reply_.model);
  out.push_back(',');
  AppendMember(out, "created_at", OllamaTime(std::chrono::system_clock::now()));
  if (reply_.route == OllamaReply::Route::kGenerate) {
    out.push_back(',');
    AppendMember(out, "response", parts.text);
    if (parts.thinking.empty()) return out;
    out.push_back(',');
    AppendMember(out, "thinking", parts.thinking);
    return out;
  }
  out += R"(,"message":{"role":"assistant",)";
  AppendMember(out, "content", parts.text);
  if (!parts.thinking.empty()) {
    out.push_back(',');
    AppendMember(out, "thinking", parts.thinking);
  }
  if (!parts.calls.empty()) {
    out += R"(,"tool_calls":[)";
    out += parts.calls;
    out.push_back(']');
  }
  out.push_back('}');
  return out;
}

void OllamaRenderer::AppendLogprobs(std::string& out) {
  if (shape().top_logprobs < 0) return;
  out += R"(,"logprobs":[)";
  out += TakeLogprobs();
  out.push_back(']');
}

void OllamaRenderer::SendLine(const Parts& parts) {
  std::string out = Head(parts);
  AppendLogprobs(out);
  out += R"(,"done":false})";
  stream_->SendLine(out);
}

void OllamaRenderer::OnDeltaEnd() {
  if (!stream_) return;
  if (parts_.text.empty() && parts_.thinking.empty() && parts_.calls.empty()) return;
  SendLine(std::exchange(parts_, {}));
}

void OllamaRenderer::OnEnd(const AnswerEnd& end) {
  std::string out = Head(parts_);
  AppendLogprobs(out);
  out += R"(,"done":true,"done_reason":)";
  out += end.reason == engine::ChoiceFinished::Reason::kLength ? R"("length")" : R"("stop")";
  if (reply_.has_context) {
    std::vector<TokenId> tokens = shape().prompts.front().ids;
    tokens.insert(tokens.end(), token_ids().begin(), token_ids().end());
    out += R"(,"context":)";
    AppendJsonInts(out, tokens);
  }
  AppendOllamaCounts(out, end.timings, usage().prompt_tokens, usage().completion_tokens);
  out.push_back('}');
  if (!stream_) return writer().Json(200, std::move(out));
  stream_->SendLine(out);
  stream_->Close();
}

void OllamaRenderer::OnFailure(const ErrorReply& reply) {
  if (!stream_) return writer().Send(ToResponse(reply));
  stream_->SendLine(InOllamaShape(reply).body);
  stream_->Close();
}

}  // namespace tandem::server
