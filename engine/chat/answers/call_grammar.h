#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/ids.h"
#include "engine/chat/answers/reasoning_splitter.h"
#include "engine/chat/answers/tool_format.h"

namespace tandem::engine {

// One tool that an answer may call.
struct CallableTool {
  std::string name;
  std::string path;  // of the arguments' schema, for errors
  // The schema of the arguments; null: any object.
  const nlohmann::ordered_json* parameters = nullptr;
  // A custom tool whose input obeys this Lark grammar. It stands unquoted behind RawInputMark.
  std::optional<std::string> input_grammar = {};
};

// A mark in a model's vocabulary.
struct MarkToken {
  std::optional<TokenId> id;  // a control token; unset: letters like any text
  bool ends_answer = false;   // the token ends the answer, so a grammar cannot hold it
};

struct CallGrammarOptions {
  const ToolFormat* format = nullptr;                 // null: no calls but those of raw inputs
  std::optional<ReasoningSplitter::State> reasoning;  // as in AnswerOptions
  bool is_forced = false;   // the answer is calls and nothing else, after a thought
  bool is_parallel = true;  // more than one call
  // The Lark part that describes an answer in place of a call. Empty: any text.
  std::string answer;
  std::function<MarkToken(std::string_view mark)> find_mark;
  // The JSON behind %json for a schema, checked. Throws with the path as param for a schema
  // that the grammar cannot hold.
  std::function<std::string(const nlohmann::ordered_json& schema, const std::string& path)> schema;
};

// A Lark grammar, in llguidance's variant, of the answers that call these tools: each call in the
// model's format, with a declared name, arguments of its schema and all marks. The parser of the
// same row reads every call that the grammar allows, with the same name and arguments. A text
// outside of calls holds nothing that the parser takes for one. Arguments follow the order of
// their schema. A thought may stand before all of it.
//
// REQUIRES: a tool, or an answer. Throws kInvalidArgument (unsupported_schema) with the path for
// parameters that the format cannot spell.
std::string CallGrammar(const std::vector<CallableTool>& tools, const CallGrammarOptions& options);

}  // namespace tandem::engine
