#include "server/respond/llama_server_renderer.h"

#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "server/respond/error_response.h"
#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

std::string_view StopTypeOf(const AnswerEnd& end) {
  if (end.reason == engine::ChoiceFinished::Reason::kLength) return "limit";
  return end.stop_string.empty() ? "eos" : "word";
}

// Appends the count, the time and the speed of one phase, as `"prompt_n":…`.
void AppendPhase(std::string& out, std::string_view phase, int64_t n_tokens, double seconds) {
  const auto number = [&](std::string_view name, double value) {
    out += R"(,")";
    out += phase;
    out += name;
    out += R"(":)";
    AppendJsonNumber(out, value);
  };
  const auto count = static_cast<double>(n_tokens);
  out += R"(,")";
  out += phase;
  out += R"(_n":)";
  AppendJsonInt(out, n_tokens);
  number("_ms", seconds * 1e3);
  number("_per_token_ms", n_tokens > 0 ? seconds * 1e3 / count : 0);
  number("_per_second", seconds > 0 ? count / seconds : 0);
}

}  // namespace

LlamaServerRenderer::LlamaServerRenderer(ReplyShape shape, LlamaServerReply reply,
                                         ResponseWriter writer)
    : AnswerRenderer(std::move(shape), std::move(writer)), reply_(std::move(reply)) {}

void LlamaServerRenderer::OnBegin() {
  if (shape().stream) stream_ = StartStream();
}

void LlamaServerRenderer::OnPart(const engine::AnswerEvent& part) {
  if (const auto* text = std::get_if<engine::TextPart>(&part)) text_ += text->text;
}

std::string LlamaServerRenderer::Head(bool with_tokens) {
  std::string out = R"({"index":0,"content":)";
  AppendJsonString(out, std::exchange(text_, {}));
  out += R"(,"tokens":)";
  std::span<const TokenId> tokens(token_ids());
  AppendJsonInts(out, with_tokens ? tokens.subspan(n_sent_tokens_) : std::span<const TokenId>());
  n_sent_tokens_ = tokens.size();
  out += R"(,"id_slot":0,"tokens_predicted":)";
  AppendJsonInt(out, usage().completion_tokens);
  out += R"(,"tokens_evaluated":)";
  AppendJsonInt(out, usage().prompt_tokens);
  if (shape().top_logprobs >= 0) {
    out += R"(,"completion_probabilities":[)";
    out += TakeLogprobs();
    out.push_back(']');
  }
  return out;
}

void LlamaServerRenderer::OnDeltaEnd() {
  if (!stream_ || text_.empty()) return;
  stream_->Send(Head(true) + R"(,"stop":false})");
}

void LlamaServerRenderer::AppendEnd(std::string& out, const AnswerEnd& end) const {
  const ReplyUsage& counts = usage();
  out += R"(,"stop":true,"model":)";
  AppendJsonString(out, shape().model);
  out += R"(,"generation_settings":)";
  out += reply_.settings;
  out += R"(,"prompt":)";
  AppendJsonString(out, shape().prompts.front().text);
  out += R"(,"truncated":false,"stop_type":")";
  out += StopTypeOf(end);
  out += R"(","stopping_word":)";
  AppendJsonString(out, end.stop_string);
  out += R"(,"tokens_cached":)";
  AppendJsonInt(out, counts.cached_tokens);
  out += R"(,"timings":{"cache_n":)";
  AppendJsonInt(out, counts.cached_tokens);
  AppendPhase(out, "prompt", counts.prompt_tokens - counts.cached_tokens, end.timings.prefill_s);
  AppendPhase(out, "predicted", counts.completion_tokens, end.timings.decode_s);
  out += "}}";
}

void LlamaServerRenderer::OnEnd(const AnswerEnd& end) {
  std::string out = Head(stream_ || reply_.returns_tokens);
  AppendEnd(out, end);
  if (!stream_) return writer().Json(200, std::move(out));
  stream_->Send(out);
  stream_->Close();
}

void LlamaServerRenderer::OnFailure(const ErrorReply& reply) {
  if (!stream_) return writer().Send(ToResponse(reply));
  stream_->Send(reply.body);
  stream_->Send("[DONE]");
  stream_->Close();
}

}  // namespace tandem::server
