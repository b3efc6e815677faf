#include "engine/chat/answers/tool_detection.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <variant>

#include "engine/base/attempt.h"
#include "engine/chat/answers/answer_parser.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kProbeName = "probe_of_tools";

const Json& ProbeTools() {
  static const Json tools = Json::parse(R"([{"type": "function", "function": {
      "name": "probe_of_tools", "description": "d", "parameters": {"type": "object",
      "properties": {"word": {"type": "string", "description": "d"}},
      "required": ["word"]}}}])");
  return tools;
}

// Nine letters and digits are an id that every known template accepts.
const Json& ProbeMessages() {
  static const Json messages = Json::parse(R"([{"role": "user", "content": "u"},
      {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdef123", "type": "function",
      "function": {"name": "probe_of_tools", "arguments": {"word": "seven"}}}]}])");
  return messages;
}

const Json& ProbeArguments() {
  static const Json arguments = Json::parse(R"({"word": "seven"})");
  return arguments;
}

// Nullopt for a template that refuses the chat.
std::optional<std::string> RenderProbe(const ChatTemplate& chat_template, RenderInput input,
                                       const Json& messages) {
  input.messages = &messages;
  std::optional<std::string> text;
  ErrorOf({ErrorCode::kInvalidArgument, ErrorCode::kUnsupported},
          [&] { text = JoinPieces(chat_template.Render(input)); });
  return text;
}

// Whether the row reads exactly the probe's call.
bool ReadsProbe(const ToolFormat& format, std::string_view answer) {
  // The parser accepts either key, the template writes one.
  const std::string key = '"' + std::string(format.arguments_key) + '"';
  if (format.style == CallStyle::kJson && answer.find(key) == std::string_view::npos) return false;
  AnswerOptions options;
  options.format = &format;
  options.tools = std::make_shared<const DeclaredTools>(ProbeTools());
  options.new_id = [] { return std::string(); };
  AnswerParser parser(options);
  AnswerEvents events = parser.Push(answer);
  AnswerEvents last = parser.Finish(false);
  events.insert(events.end(), last.begin(), last.end());
  int n_ended = 0;
  std::string arguments;
  for (const AnswerEvent& event : events) {
    if (std::holds_alternative<CallEnd>(event)) ++n_ended;
    if (std::holds_alternative<CallDropped>(event)) return false;
    if (const auto* part = std::get_if<CallArguments>(&event)) arguments += part->text;
  }
  if (n_ended != 1) return false;
  Json read;
  ErrorOf([&] { read = ParseUntrustedJson(arguments, "call"); });
  return read == ProbeArguments();
}

}  // namespace

const ToolFormat* DetectToolFormat(const ChatTemplate& chat_template, const std::string& bos_text,
                                   const std::string& eos_text) {
  RenderInput input;
  input.tools = &ProbeTools();
  input.bos_token = bos_text;
  input.eos_token = eos_text;
  input.now_unix_s = 0;  // both renderings state the same date
  const Json question = Json::array({ProbeMessages()[0]});
  const std::optional<std::string> prompt = RenderProbe(chat_template, input, question);
  input.add_generation_prompt = false;
  const std::optional<std::string> chat = RenderProbe(chat_template, input, ProbeMessages());
  if (!prompt || !chat) return nullptr;

  // The answer begins where the chat leaves the prompt. A thought may stand before the call.
  const auto [at, in_prompt] =
      std::mismatch(chat->begin(), chat->end(), prompt->begin(), prompt->end());
  std::string_view answer = std::string_view(*chat).substr(at - chat->begin());
  if (answer.find(kProbeName) == std::string_view::npos) return nullptr;
  if (const size_t close = answer.find(kThinkClose); close != std::string_view::npos) {
    answer.remove_prefix(close + kThinkClose.size());
  }
  const auto rows = ToolFormats();
  const auto found = std::find_if(rows.begin(), rows.end(), [answer](const ToolFormat& row) {
    return ReadsProbe(row, answer);
  });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace tandem::engine
