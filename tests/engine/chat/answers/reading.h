#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/chat/answers/answer_parser.h"

namespace tandem::engine::testing {

inline const nlohmann::ordered_json& WeatherTools() {
  static const auto tools = nlohmann::ordered_json::parse(R"([
      {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
       "parameters": {"type": "object", "properties": {"city": {"type": "string"},
       "days": {"type": "integer"}, "parts": {"type": "array"}}}}},
      {"type": "function", "function": {"name": "now"}}])");
  return tools;
}

inline AnswerOptions ReadsCalls(std::string_view format) {
  AnswerOptions options;
  options.format = FindToolFormat(format);
  options.tools = std::make_shared<const DeclaredTools>(WeatherTools());
  options.new_id = [] { return std::string("id"); };
  return options;
}

// A spelling of the events, with neighbouring deltas joined:
// t"text" r"thought" begin(name) a"arguments" end drop finish(calls).
inline std::string Spell(const AnswerEvents& events) {
  std::string out;
  char open = 0;  // the kind of the open text
  const auto text = [&](char kind, const std::string& part) {
    if (open != kind) {
      if (open != 0) out += "\" ";
      out += std::string(1, kind) + "\"";
    }
    open = kind;
    out += part;
  };
  const auto word = [&](const std::string& part) {
    if (open != 0) out += "\" ";
    open = 0;
    out += part + " ";
  };
  for (const AnswerEvent& event : events) {
    if (const auto* part = std::get_if<TextPart>(&event)) {
      text('t', part->text);
    } else if (const auto* thought = std::get_if<ReasoningPart>(&event)) {
      text('r', thought->text);
    } else if (const auto* begin = std::get_if<CallBegin>(&event)) {
      word("begin(" + begin->name + ")");
    } else if (const auto* arguments = std::get_if<CallArguments>(&event)) {
      text('a', arguments->text);
    } else if (std::holds_alternative<CallEnd>(event)) {
      word("end");
    } else if (std::holds_alternative<CallDropped>(event)) {
      word("drop");
    } else {
      word(std::get<AnswerFinish>(event).has_calls ? "finish(calls)" : "finish");
    }
  }
  out.pop_back();
  return out;
}

// The events of an answer that arrives in pieces, which end at the offsets of `cuts`.
inline AnswerEvents ReadCut(const AnswerOptions& options, std::string_view answer,
                            const std::vector<size_t>& cuts, bool was_cut = false) {
  AnswerParser parser(options);
  AnswerEvents all;
  const auto take = [&all](AnswerEvents events) {
    for (AnswerEvent& event : events) all.push_back(std::move(event));
  };
  size_t from = 0;
  for (const size_t cut : cuts) {
    take(parser.Push(answer.substr(from, cut - from)));
    from = cut;
  }
  take(parser.Push(answer.substr(from)));
  take(parser.Finish(was_cut));
  return all;
}

inline AnswerEvents ReadWhole(const AnswerOptions& options, std::string_view answer,
                              bool was_cut = false) {
  return ReadCut(options, answer, {}, was_cut);
}

// One piece per byte.
inline AnswerEvents ReadBytes(const AnswerOptions& options, std::string_view answer,
                              bool was_cut = false) {
  std::vector<size_t> cuts;
  for (size_t i = 1; i < answer.size(); ++i) cuts.push_back(i);
  return ReadCut(options, answer, cuts, was_cut);
}

}  // namespace tandem::engine::testing
