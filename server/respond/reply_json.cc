#include "server/respond/reply_json.h"

#include <algorithm>

#include "server/wire/json_text.h"

namespace tandem::server {
namespace {

bool IsChat(const ReplyShape& shape) { return shape.kind == ReplyShape::Kind::kChat; }

std::string MakeHead(const ReplyShape& shape) {
  std::string head = R"({"id":)";
  AppendJsonString(head, shape.id);
  head += R"(,"object":")";
  head += !IsChat(shape) ? "text_completion"
          : shape.stream ? "chat.completion.chunk"
                         : "chat.completion";
  head += R"(","created":)";
  AppendJsonInt(head, shape.created);
  head += R"(,"model":)";
  AppendJsonString(head, shape.model);
  head += R"(,"system_fingerprint":)";
  AppendJsonString(head, shape.fingerprint);
  head += R"(,"choices":[)";
  return head;
}

}  // namespace

ReplyJson::ReplyJson(const ReplyShape& shape)
    : shape_(shape),
      names_{shape.tokenizer, shape.return_tokens_as_token_ids, shape.skip_special_tokens,
             shape.shown_special_tokens},
      head_(MakeHead(shape)) {}

void ReplyJson::AppendIndex(std::string& out, size_t prompt_idx, int choice) const {
  out += R"({"index":)";
  AppendJsonInt(out, prompt_idx * static_cast<size_t>(shape_.n) + static_cast<size_t>(choice));
}

void ReplyJson::AppendText(std::string& out, std::string_view text) const {
  out += IsChat(shape_) ? R"(,"delta":{"content":)" : R"(,"text":)";
  AppendJsonString(out, text);
  if (IsChat(shape_)) out.push_back('}');
}

void ReplyJson::AppendFinish(std::string& out, const engine::ChoiceFinished& finished,
                             bool with_calls) const {
  out += R"(,"finish_reason":)";
  out += finished.reason == engine::ChoiceFinished::Reason::kLength ? R"("length")"
         : with_calls                                               ? R"("tool_calls")"
                                                                    : R"("stop")";
  out += R"(,"stop_reason":)";
  const auto& asked = shape_.asked_end_tokens;
  if (!finished.stop_string.empty()) {
    AppendJsonString(out, finished.stop_string);
  } else if (finished.stop_token &&
             std::find(asked.begin(), asked.end(), *finished.stop_token) != asked.end()) {
    AppendJsonInt(out, *finished.stop_token);
  } else {
    out += "null";
  }
}

void ReplyJson::AppendPromptExtras(std::string& out, size_t prompt_idx,
                                   std::span<const engine::TokenLogprob> scores) const {
  if (shape_.return_token_ids) {
    out += R"(,"prompt_token_ids":)";
    AppendJsonInts(out, shape_.prompts[prompt_idx].ids);
  }
  if (shape_.prompt_logprobs) {
    out += R"(,"prompt_logprobs":)";
    AppendPromptLogprobs(out, scores, *shape_.prompt_logprobs, names_);
  }
}

void AppendUsage(std::string& out, const ReplyUsage& usage) {
  out += R"(,"usage":{"prompt_tokens":)";
  AppendJsonInt(out, usage.prompt_tokens);
  out += R"(,"completion_tokens":)";
  AppendJsonInt(out, usage.completion_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonInt(out, usage.prompt_tokens + usage.completion_tokens);
  out += R"(,"prompt_tokens_details":{"cached_tokens":)";
  AppendJsonInt(out, usage.cached_tokens);
  out += R"(},"completion_tokens_details":{"reasoning_tokens":)";
  AppendJsonInt(out, usage.reasoning_tokens);
  out += R"(,"accepted_prediction_tokens":)";
  AppendJsonInt(out, usage.accepted_prediction_tokens);
  out += R"(,"rejected_prediction_tokens":)";
  AppendJsonInt(out, usage.rejected_prediction_tokens);
  out += "}}";
}

void AppendReasoning(std::string& out, std::string_view reasoning) {
  out += R"("reasoning_content":)";
  AppendJsonString(out, reasoning);
  out += R"(,"reasoning":)";
  AppendJsonString(out, reasoning);
}

void AppendReasoningDelta(std::string& out, std::string_view reasoning) {
  out += R"(,"delta":{)";
  AppendReasoning(out, reasoning);
  out.push_back('}');
}

namespace {

// The members of a call from `id` on, with the braces open.
void AppendCallHead(std::string& out, std::string_view id, std::string_view name, bool is_custom) {
  out += R"("id":)";
  AppendJsonString(out, id);
  out += is_custom ? R"(,"type":"custom","custom":{"name":)"
                   : R"(,"type":"function","function":{"name":)";
  AppendJsonString(out, name);
  out += is_custom ? R"(,"input":)" : R"(,"arguments":)";
}

void AppendDeltaIndex(std::string& out, int index) {
  out += R"(,"delta":{"tool_calls":[{"index":)";
  AppendJsonInt(out, index);
  out.push_back(',');
}

}  // namespace

void AppendCallBegin(std::string& out, const engine::CallBegin& call) {
  AppendDeltaIndex(out, call.index);
  AppendCallHead(out, call.id, call.name, call.is_custom);
  out += R"(""}}]})";
}

void AppendCallArguments(std::string& out, const engine::CallArguments& arguments) {
  AppendDeltaIndex(out, arguments.index);
  out += arguments.is_custom ? R"("custom":{"input":)" : R"("function":{"arguments":)";
  AppendJsonString(out, arguments.text);
  out += "}}]}";
}

void AppendMessage(std::string& out, std::string_view content, std::string_view reasoning,
                   std::span<const ToolCall> calls) {
  out += R"(,"message":{"role":"assistant","content":)";
  if (content.empty() && !calls.empty()) {
    out += "null";
  } else {
    AppendJsonString(out, content);
  }
  out += R"(,"refusal":null)";
  if (!reasoning.empty()) {
    out.push_back(',');
    AppendReasoning(out, reasoning);
  }
  if (!calls.empty()) {
    out += R"(,"tool_calls":[)";
    for (const ToolCall& call : calls) {
      out += &call == calls.data() ? "{" : ",{";
      AppendCallHead(out, call.id, call.name, call.is_custom);
      AppendJsonString(out, call.arguments);
      out += "}}";
    }
    out.push_back(']');
  }
  out.push_back('}');
}

}  // namespace tandem::server
