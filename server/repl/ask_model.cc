#include "server/repl/ask_model.h"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kMaxCalls = 128;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string MemberText(const Json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

int64_t MemberCount(const Json& object, const char* name) {
  if (!object.is_object()) return 0;
  const auto found = object.find(name);
  return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

// Joins the events of one stream into an answer.
class Gatherer {
 public:
  Gatherer(ModelAnswer& answer, const AnswerSink& sink, Clock::time_point begin)
      : answer_(answer), sink_(sink), begin_(begin) {}

  void Take(const Json& event) {
    if (!event.is_object()) return;
    if (event.contains("usage")) TakeUsage(event["usage"]);
    if (!event.contains("choices") || !event["choices"].is_array()) return;
    for (const Json& choice : event["choices"]) TakeChoice(choice);
  }

  void Finish() {
    if (calls_.empty()) return;
    answer_.tool_calls = Json(calls_).dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  void TakeUsage(const Json& usage) {
    if (!usage.is_object()) return;
    answer_.prompt_tokens = MemberCount(usage, "prompt_tokens");
    answer_.completion_tokens = MemberCount(usage, "completion_tokens");
    answer_.cached_tokens =
        MemberCount(usage.value("prompt_tokens_details", Json()), "cached_tokens");
    answer_.reasoning_tokens =
        MemberCount(usage.value("completion_tokens_details", Json()), "reasoning_tokens");
  }

  void TakeChoice(const Json& choice) {
    if (!choice.is_object()) return;
    const Json delta = choice.value("delta", Json());
    std::string reasoning = MemberText(delta, "reasoning_content");
    if (reasoning.empty()) reasoning = MemberText(delta, "reasoning");
    const std::string text = MemberText(choice, "text") + MemberText(delta, "content");
    if (!reasoning.empty() || !text.empty()) {
      answer_.last_token_s = SecondsSince(begin_);
      if (answer_.first_token_s == 0) {
        answer_.first_token_s = answer_.last_token_s;
        answer_.first_tokens = answer_.completion_tokens;
      }
    }
    answer_.reasoning += reasoning;
    answer_.text += text;
    if (!reasoning.empty()) sink_.on_reasoning(reasoning);
    if (!text.empty()) sink_.on_text(text);
    if (delta.is_object() && delta.contains("tool_calls") && delta["tool_calls"].is_array()) {
      for (const Json& call : delta["tool_calls"]) TakeCall(call);
    }
    if (std::string reason = MemberText(choice, "finish_reason"); !reason.empty()) {
      answer_.finish_reason = std::move(reason);
    }
  }

  void TakeCall(const Json& part) {
    const int64_t index = MemberCount(part, "index");
    if (index < 0 || index >= static_cast<int64_t>(kMaxCalls)) return;
    const auto place = static_cast<size_t>(index);
    while (calls_.size() <= place) {
      calls_.push_back(
          {{"id", ""}, {"type", "function"}, {"function", {{"name", ""}, {"arguments", ""}}}});
    }
    Json& call = calls_[place];
    if (std::string id = MemberText(part, "id"); !id.empty()) call["id"] = std::move(id);
    const Json function = part.value("function", Json());
    for (const char* name : {"name", "arguments"}) {
      call["function"][name] =
          call["function"][name].get<std::string>() + MemberText(function, name);
    }
  }

  ModelAnswer& answer_;
  const AnswerSink& sink_;
  const Clock::time_point begin_;
  std::vector<Json> calls_;
};

std::string OneDecimal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string TwoDecimals(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

double Rounded(double seconds) {
  return static_cast<double>(static_cast<int64_t>(seconds * 1e6)) / 1e6;
}

}  // namespace

double ModelAnswer::TokensPerSecond() const {
  const auto rate = [](int64_t tokens, double seconds) {
    return tokens > 0 && seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  // A fast model sends many tokens at once; if all came so, only the whole time says anything.
  const int64_t later = completion_tokens - first_tokens;
  return first_tokens > 0 && later > first_tokens ? rate(later, last_token_s - first_token_s)
                                                  : rate(completion_tokens, total_s);
}

std::string ModelAnswer::Statistics() const {
  if (completion_tokens == 0 && prompt_tokens == 0) return TwoDecimals(total_s) + " s";
  std::string out = std::to_string(completion_tokens) + " tokens";
  if (TokensPerSecond() > 0) out += ", " + OneDecimal(TokensPerSecond()) + " tokens/s";
  if (first_token_s > 0) out += ", first after " + TwoDecimals(first_token_s) + " s";
  out += "; prompt " + std::to_string(prompt_tokens);
  if (cached_tokens > 0) out += " (" + std::to_string(cached_tokens) + " cached)";
  return out;
}

std::string ModelAnswer::ToJson(const std::string& model) const {
  Json out = {{"model", model}, {"text", text}};
  out["reasoning"] = reasoning.empty() ? Json() : Json(reasoning);
  out["tool_calls"] = tool_calls.empty() ? Json::array() : Json::parse(tool_calls);
  out["finish_reason"] = finish_reason.empty() ? Json() : Json(finish_reason);
  out["usage"] = {{"prompt_tokens", prompt_tokens},
                  {"cached_tokens", cached_tokens},
                  {"completion_tokens", completion_tokens},
                  {"reasoning_tokens", reasoning_tokens}};
  out["timings"] = {{"first_token_s", Rounded(first_token_s)},
                    {"total_s", Rounded(total_s)},
                    {"tokens_per_second", Rounded(TokensPerSecond())}};
  if (is_stopped) out["stopped"] = true;
  if (fault) out["error"] = fault->what();
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ModelAnswer AskModel(const ServerClient& client, const std::string& request, bool is_completion,
                     const AnswerSink& sink, std::stop_token stop) {
  ModelAnswer answer;
  const auto begin = Clock::now();
  Gatherer gatherer(answer, sink, begin);
  Json body = Json::parse(request);
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  answer.fault = ErrorOf([&] {
    client.Stream(
        is_completion ? "/v1/completions" : "/v1/chat/completions", &body,
        [&](std::string_view, const Json& event) { gatherer.Take(event); }, stop);
  });
  gatherer.Finish();
  answer.total_s = SecondsSince(begin);
  answer.is_stopped = stop.stop_requested();
  if (answer.is_stopped) answer.fault.reset();
  if (!answer.fault && !answer.is_stopped && answer.finish_reason.empty()) {
    answer.fault = Error(ErrorCode::kDataLoss,
                         "the answer of " + client.url() + " ended without its last event");
  }
  return answer;
}

}  // namespace tandem::server
