#include "engine/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/unix_time.h"
#include "engine/chat/assistant_marks.h"
#include "engine/chat/jinja/eval.h"
#include "engine/chat/jinja/parser.h"
#include "engine/chat/messages.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Names that only the server may set: a client that set them could write control tokens.
constexpr std::array<std::string_view, 5> kReservedNames = {"messages", "tools", "bos_token",
                                                            "eos_token", "add_generation_prompt"};

// Marks every string a client sent as the client's, object keys included.
Value FromClientJson(Runtime& rt, const Json& json, int depth) {
  if (depth > kMaxValueDepth) {
    throw Error(ErrorCode::kInvalidArgument, "the messages or tools nest deeper than " +
                                                 std::to_string(kMaxValueDepth) +
                                                 " levels, which is the limit");
  }
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return Value::WideInt(std::to_string(json.get<uint64_t>()));
      }
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return Value::Of(Text::Make(json.get_ref<const std::string&>(), true));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromClientJson(rt, item, depth + 1));
      return MakeList(rt, std::move(items), ListKind::kList, true);
    }
    case Json::value_t::object: {
      DictBuilder dict(rt);
      for (const auto& [key, value] : json.items()) {
        dict.Set(Value::Of(Text::Make(key, true)), FromClientJson(rt, value, depth + 1));
      }
      return dict.Take(true);
    }
    case Json::value_t::binary:
      if (std::optional<std::string> digits = WideIntegerDigits(json)) {
        return Value::WideInt(*std::move(digits));
      }
      break;
    case Json::value_t::null:
    case Json::value_t::discarded:
      break;
  }
  return Value();
}

bool IsRole(const Json& json) {
  return json.is_string() && std::find(kMessageRoles.begin(), kMessageRoles.end(),
                                       json.get_ref<const std::string&>()) != kMessageRoles.end();
}

// The content of an assistant's message: a client's text, except for the marks that it spells.
Value FromAssistantContent(Runtime& rt, const std::string& content) {
  TextBuilder text(rt);
  size_t done = 0;
  for (const auto& [begin, end] : FindAssistantMarks(content)) {
    text.Append(std::string_view(content).substr(done, begin - done), true);
    text.Append(std::string_view(content).substr(begin, end - begin), false);
    done = end;
  }
  text.Append(std::string_view(content).substr(done), true);
  return Value::Of(text.Take());
}

Value FromMember(Runtime& rt, const std::string& key, const Json& value, bool is_assistant) {
  if (key == "role" && IsRole(value)) return Value::Literal(value.get<std::string>());
  if (key == "content" && is_assistant && value.is_string()) {
    return FromAssistantContent(rt, value.get_ref<const std::string&>());
  }
  return FromClientJson(rt, value, 3);
}

// Whether a template reads an assistant's thought under the name `thinking`. The variables
// enable_thinking and thinking of other templates do not count.
bool ReadsThinking(std::string_view source) {
  for (const std::string_view words : {"message.thinking", "\"thinking\"", "'thinking'"}) {
    if (source.find(words) != std::string_view::npos) return true;
  }
  return false;
}

// REQUIRES: an array.
Value FromMessages(Runtime& rt, const Json& messages, bool reads_thinking) {
  std::vector<Value> items;
  items.reserve(messages.size());
  for (const Json& message : messages) {
    if (!message.is_object()) {
      items.push_back(FromClientJson(rt, message, 2));
      continue;
    }
    const auto role = message.find("role");
    const bool is_assistant = role != message.end() && IsString(*role, "assistant");
    DictBuilder dict(rt);
    for (const auto& [key, value] : message.items()) {
      dict.Set(Value::Of(Text::Make(key, true)), FromMember(rt, key, value, is_assistant));
    }
    const auto thought = message.find("reasoning_content");
    if (reads_thinking && is_assistant && thought != message.end() &&
        !message.contains("thinking")) {
      dict.Set(Value::Of(Text::Make("thinking", true)), FromClientJson(rt, *thought, 3));
    }
    items.push_back(dict.Take(true));
  }
  return MakeList(rt, std::move(items), ListKind::kList, true);
}

// Names in the scope are views, so they must view the caller's JSON.
void DefineExtra(Runtime& rt, const Json& extra, Evaluator& evaluator) {
  if (!extra.is_object()) {
    throw Error(ErrorCode::kInvalidArgument, "chat_template_kwargs must be an object")
        .WithParam("chat_template_kwargs");
  }
  for (auto it = extra.begin(); it != extra.end(); ++it) {
    const std::string& name = it.key();
    if (std::find(kReservedNames.begin(), kReservedNames.end(), name) != kReservedNames.end()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "chat_template_kwargs must not contain '" + name + "'")
          .WithParam("chat_template_kwargs");
    }
    evaluator.Define(name, FromClientJson(rt, it.value(), 1));
  }
}

std::vector<RenderedPiece> ToPieces(const Text& text) {
  std::vector<RenderedPiece> pieces;
  text.ForEachRun(0, text.size(), [&pieces](std::string_view part, bool from_client) {
    pieces.push_back({std::string(part), from_client});
  });
  return pieces;
}

class JinjaChatTemplate : public ChatTemplate {
 public:
  explicit JinjaChatTemplate(std::string_view source)
      : source_(source), reads_thinking_(ReadsThinking(source)), body_(ParseTemplate(source)) {}

  std::vector<RenderedPiece> Render(const RenderInput& input) const override {
    return Render(input, nullptr);
  }

  std::vector<RenderedPiece> Render(
      const RenderInput& input,
      std::vector<std::pair<size_t, size_t>>* generations) const override {
    if (input.messages == nullptr || !input.messages->is_array()) {
      throw Error(ErrorCode::kInvalidArgument, "messages must be an array").WithParam("messages");
    }
    const int64_t now = input.now_unix_s.has_value() ? *input.now_unix_s : UnixNow();
    return ToPieces(*RenderText(input, now, generations));
  }

  bool Mentions(std::string_view words) const override {
    return source_.find(words) != std::string::npos;
  }

  std::string_view source() const override { return source_; }

 private:
  TextPtr RenderText(const RenderInput& input, int64_t now,
                     std::vector<std::pair<size_t, size_t>>* generations) const {
    Runtime rt(now);
    Evaluator evaluator(rt);
    // As in transformers, these two are defined even when they are none, because some templates
    // test for none before they test for defined.
    evaluator.Define("documents", Value());
    evaluator.Define("tools", Value());
    if (input.extra != nullptr && !input.extra->is_null()) DefineExtra(rt, *input.extra, evaluator);
    evaluator.Define("messages", FromMessages(rt, *input.messages, reads_thinking_));
    if (input.tools != nullptr && !input.tools->is_null()) {
      evaluator.Define("tools", FromClientJson(rt, *input.tools, 1));
    }
    evaluator.Define("add_generation_prompt", Value::Bool(input.add_generation_prompt));
    evaluator.Define("bos_token", Value::Literal(input.bos_token));
    evaluator.Define("eos_token", Value::Literal(input.eos_token));
    TextPtr text = evaluator.Render(body_);
    if (generations != nullptr) {
      if (evaluator.lost_a_generation()) {
        throw Error(ErrorCode::kUnsupported,
                    "the chat template has {% generation %} inside a macro or a {% set %} block, "
                    "where its position in the text is unknown; move it out of there");
      }
      *generations = evaluator.generations();
    }
    return text;
  }

  const std::string source_;
  const bool reads_thinking_;
  const Block body_;
};

}  // namespace

std::shared_ptr<const ChatTemplate> ChatTemplate::Compile(std::string_view source) {
  return std::make_shared<const JinjaChatTemplate>(source);
}

std::string JoinPieces(const std::vector<RenderedPiece>& pieces) {
  std::string text;
  for (const RenderedPiece& piece : pieces) text += piece.text;
  return text;
}

std::vector<std::pair<size_t, size_t>> ClientRanges(const std::vector<RenderedPiece>& pieces) {
  std::vector<std::pair<size_t, size_t>> ranges;
  size_t at = 0;
  for (const RenderedPiece& piece : pieces) {
    if (piece.from_client) ranges.emplace_back(at, at + piece.text.size());
    at += piece.text.size();
  }
  return ranges;
}

}  // namespace tandem::engine
