#include "engine/chat/answers/tool_format.h"

#include <algorithm>

namespace tandem::engine {
namespace {

constexpr ToolFormat kFormats[] = {
    {.name = "hermes",
     .summary = R"(<tool_call>{"name": "f", "arguments": {"k": 1}}</tool_call>)",
     .opening = "<tool_call>",
     .closing = "</tool_call>"},
    {.name = "qwen3-coder",
     .summary = "<tool_call><function=f><parameter=k>1</parameter></function></tool_call>",
     .style = CallStyle::kXmlParameters,
     .opening = "<tool_call>",
     .closing = "</tool_call>"},
    {.name = "mistral",
     .summary = R"([TOOL_CALLS][{"name": "f", "arguments": {"k": 1}}])",
     .opening = "[TOOL_CALLS]",
     .has_short_ids = true},
    {.name = "mistral-args",
     .summary = R"([TOOL_CALLS]f[ARGS]{"k": 1})",
     .style = CallStyle::kNameThenJson,
     .opening = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .name_note = "[CALL_ID]",
     .has_short_ids = true},
    {.name = "functiongemma",
     .summary = "<start_function_call>call:f{k:<escape>v<escape>}<end_function_call>",
     .style = CallStyle::kKeyedValues,
     .opening = "<start_function_call>",
     .closing = "<end_function_call>",
     .quote = "<escape>"},
    {.name = "gemma4",
     .summary = "<|tool_call>call:f{k:<|\"|>v<|\"|>}<tool_call|>",
     .style = CallStyle::kKeyedValues,
     .opening = "<|tool_call>",
     .closing = "<tool_call|>",
     .quote = "<|\"|>"},
    {.name = "harmony",
     .summary = R"(<|channel|>commentary to=functions.f<|message|>{"k": 1}<|call|>)",
     .style = CallStyle::kHarmony},
    {.name = "llama3-json",
     .summary = R"({"name": "f", "parameters": {"k": 1}})",
     .only_at_beginning = true,
     .opening = "<|python_tag|>",
     .separator = ";",
     .arguments_key = "parameters",
     .is_parallel = false},
    {.name = "pythonic",
     .summary = R"([f(k=1), g()])",
     .style = CallStyle::kPythonic,
     .only_at_beginning = true,
     .opening = "<|python_tag|>"},
    {.name = "json",
     .summary = R"({"name": "f", "arguments": {"k": 1}})",
     .only_at_beginning = true},
};

}  // namespace

std::span<const ToolFormat> ToolFormats() { return kFormats; }

const ToolFormat* FindToolFormat(std::string_view name) {
  const auto found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                  [name](const ToolFormat& row) { return row.name == name; });
  return found == std::end(kFormats) ? nullptr : &*found;
}

std::string ToolFormatNames() {
  std::string names;
  for (const ToolFormat& row : kFormats) {
    if (!names.empty()) names += ", ";
    names += row.name;
  }
  return names;
}

std::vector<std::string_view> MarksOf(const ToolFormat& format) {
  if (format.style == CallStyle::kHarmony) {
    return {kHarmonyStart, kHarmonyChannel, kHarmonyConstrain, kHarmonyMessage,
            kHarmonyEnd,   kHarmonyCall,    kHarmonyReturn};
  }
  std::vector<std::string_view> marks;
  for (const std::string_view mark :
       {format.opening, format.closing, format.name_end, format.name_note, format.quote}) {
    if (!mark.empty()) marks.push_back(mark);
  }
  return marks;
}

}  // namespace tandem::engine
