#include "server/handlers/answer_grammar.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/chat/answers/call_grammar.h"
#include "engine/chat/answers/declared_tools.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/handlers/generate.h"
#include "server/handlers/tool_formats.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;
using engine::CallableTool;
using engine::GrammarSource;

// The grammar as a part of another one.
std::string LarkPart(const GrammarSource& source) {
  switch (source.kind) {
    case GrammarSource::Kind::kJsonSchema:
      return "%json " + source.text;
    case GrammarSource::Kind::kLark:
      return "%lark {\n" + source.text + "\n}";
    case GrammarSource::Kind::kRegex:
      break;
  }
  std::string out = "/";
  for (size_t i = 0; i < source.text.size(); ++i) {
    if (source.text[i] == '/') out += '\\';
    out += source.text[i];
    if (source.text[i] == '\\' && i + 1 < source.text.size()) out += source.text[++i];
  }
  return out + "/";
}

// "tools[3].function" as x-ignored-params spells it: "tools.3.function".
std::string Dotted(const std::string& path) {
  std::string out;
  for (const char byte : path) {
    if (byte != ']') out += byte == '[' ? '.' : byte;
  }
  return out;
}

Error Unservable(const std::string& param, const Error& error) {
  if (error.code() != ErrorCode::kInvalidArgument) {
    return Error(error.code(), error.what()).WithParam(param);
  }
  if (!error.param().empty()) return error;
  return Error(error.code(), param + " cannot be served: " + error.what())
      .WithParam(param)
      .WithReason("unsupported_schema");
}

// The tools of a request as the grammar takes them. Owns the schemas that it makes.
class Tools {
 public:
  Tools(const ToolFields& fields, const ServedModel& model) : model_(model) {
    for (const Json& tool : *fields.callable) {
      const auto at = std::find(fields.declared->begin(), fields.declared->end(), tool);
      const std::string path = "tools[" + std::to_string(at - fields.declared->begin()) + "]";
      tool["type"] == "custom" ? AddCustom(tool["custom"], path + ".custom")
                               : AddFunction(tool["function"], path + ".function");
    }
  }

  std::vector<CallableTool>& all() { return tools_; }
  // Whether a tool may take any object where its schema cannot be served.
  bool may_relax(size_t i) const { return may_relax_[i]; }

 private:
  void AddFunction(const Json& function, const std::string& path) {
    CallableTool tool{.name = function["name"].get<std::string>(), .path = path + ".parameters"};
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && !parameters->is_null()) tool.parameters = &*parameters;
    tools_.push_back(std::move(tool));
    may_relax_.push_back(!(function.contains("strict") && function["strict"] == true));
  }

  void AddCustom(const Json& custom, const std::string& path) {
    CallableTool tool{.name = custom["name"].get<std::string>(), .path = path};
    Json input = {{"type", "string"}};
    if (custom.contains("format") && custom["format"].contains("grammar")) {
      const Json& grammar = custom["format"]["grammar"];
      const auto definition = grammar["definition"].get<std::string>();
      tool.path = path + ".format.grammar.definition";
      const bool is_lark = engine::HasRawInput(custom);
      // Alone first: its errors concern the client's text, and no bracket can leave its part.
      CompileStructured(model_, {is_lark ? engine::LarkGrammar(definition, tool.path)
                                         : engine::RegexGrammar(definition, tool.path),
                                 tool.path});
      if (is_lark) {
        tool.input_grammar = definition;
      } else {
        input["pattern"] = "^(?:" + definition + ")$";
      }
    }
    made_.push_back({{"type", "object"},
                     {"properties", {{"input", std::move(input)}}},
                     {"required", Json::array({"input"})},
                     {"additionalProperties", false}});
    if (!tool.input_grammar) tool.parameters = &made_.back();
    tools_.push_back(std::move(tool));
    may_relax_.push_back(false);
  }

  const ServedModel& model_;
  std::vector<CallableTool> tools_;
  std::vector<bool> may_relax_;
  std::deque<Json> made_;
};

engine::MarkToken FindMark(const engine::LoadedModel& loaded, std::string_view mark) {
  const std::optional<TokenId> id = loaded.tokenizer->FindToken(mark);
  if (!id) return {};
  const auto& ends = loaded.end_tokens;
  const bool ends_answer = std::find(ends.begin(), ends.end(), *id) != ends.end();
  if (!loaded.tokenizer->IsSpecial(*id) && !ends_answer) return {};
  return {.id = id, .ends_answer = ends_answer};
}

// Bounds the time that all schemas of a request take together.
constexpr size_t kMostGrammarBytes = size_t{512} << 10;

std::shared_ptr<const engine::Grammar> Compile(const ServedModel& model,
                                               const std::vector<CallableTool>& tools,
                                               const engine::CallGrammarOptions& options) {
  std::string text = engine::CallGrammar(tools, options);
  if (text.size() > kMostGrammarBytes) {
    throw Error(ErrorCode::kInvalidArgument,
                "tools must have schemas of at most " + std::to_string(kMostGrammarBytes) +
                    " bytes in all: send fewer tools, or shorter schemas")
        .WithParam("tools")
        .WithReason("unsupported_schema");
  }
  return model.loaded().grammars->Compile({GrammarSource::Kind::kLark, std::move(text)});
}

// Finds the tools whose schemas cannot be served. Throws for the first one that must be; the others
// take any object.
void Relax(const ServedModel& model, Tools& tools, const engine::CallGrammarOptions& options,
           std::vector<std::string>& ignored) {
  for (size_t i = 0; i < tools.all().size(); ++i) {
    CallableTool& tool = tools.all()[i];
    const auto error = ErrorOf({ErrorCode::kInvalidArgument}, [&] {
      engine::CallGrammarOptions alone = options;
      alone.is_forced = true;
      alone.answer.clear();
      Compile(model, {tool}, alone);
    });
    if (!error) continue;
    const Error explained = Unservable(tool.path, *error);
    if (options.is_forced || !tools.may_relax(i)) throw Error(explained);
    ignored.push_back(Dotted(explained.param()));
    tool.parameters = nullptr;
  }
}

// Whether a structured answer cannot hold a call: its strings spell no opening mark, or escape
// what follows.
bool CanTellCalls(const engine::LoadedModel& loaded, const engine::ToolFormat& format) {
  if (format.style == engine::CallStyle::kHarmony) {
    return FindMark(loaded, engine::kHarmonyChannel).id.has_value();
  }
  if (format.only_at_beginning) return false;
  return format.style == engine::CallStyle::kJson || FindMark(loaded, format.opening).id;
}

}  // namespace

AnswerGrammar ConstrainChat(const HandlerContext& context, const ServedModel& model,
                            const ChatRequest& chat,
                            std::optional<engine::ReasoningSplitter::State> reasoning) {
  const ToolFields& fields = chat.prompt.tools;
  const auto& structured = chat.generation.structured;
  const bool has_tools = fields.callable != nullptr && !fields.callable->empty();
  AnswerGrammar out;
  if (!has_tools && !structured) return out;
  const bool may_think = reasoning && *reasoning != engine::ReasoningSplitter::State::kAnswering;
  if (structured && !fields.is_forced) {
    out.grammar = CompileStructured(model, *structured);
    out.is_text = !has_tools && !may_think;
    if (out.is_text) return out;
  }
  const engine::LoadedModel& loaded = model.loaded();
  engine::CallGrammarOptions options;
  options.format = &CallFormatOf(context, model);
  options.reasoning = reasoning;
  options.is_forced = fields.is_forced;
  options.is_parallel = fields.is_parallel;
  options.find_mark = [&](std::string_view mark) { return FindMark(loaded, mark); };
  options.schema = [](const Json& schema, const std::string& path) {
    return engine::SchemaGrammar(schema, path).text;
  };
  if (out.grammar) options.answer = LarkPart(structured->source);
  if (!has_tools) {
    out.grammar = Compile(model, {}, options);
    return out;
  }
  if (out.grammar && !CanTellCalls(loaded, *options.format)) {
    throw UnsupportedField(structured->param,
                           structured->param + " cannot stand beside tools for the call format " +
                               std::string(options.format->name) +
                               " of this model: leave one of them out, or force a call");
  }
  out.grammar = nullptr;
  const std::string param = fields.is_forced ? "tool_choice" : "tools";
  const auto unusable = ErrorOf({ErrorCode::kUnsupported}, [&] {
    Tools tools(fields, model);
    const auto fault = ErrorOf({ErrorCode::kInvalidArgument},
                               [&] { out.grammar = Compile(model, tools.all(), options); });
    if (!fault) return;
    if (fault->param() == "tools") throw Error(*fault);
    Relax(model, tools, options, out.ignored);
    // No tool alone is at fault, or those at fault take any object now.
    WithContext([&](const Error& error) { return Unservable("tools", error); },
                [&] { out.grammar = Compile(model, tools.all(), options); });
  });
  if (!unusable) return out;
  const bool must_hold = fields.is_forced || structured.has_value() || !unusable->param().empty();
  if (must_hold) throw Unservable(unusable->param().empty() ? param : unusable->param(), *unusable);
  out.grammar = nullptr;
  out.ignored = {"tools.function.parameters"};
  return out;
}

}  // namespace tandem::server
