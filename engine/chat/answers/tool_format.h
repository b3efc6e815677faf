#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// How a model writes the name and the arguments of one call.
enum class CallStyle {
  kJson,           // {"name": "f", "arguments": {…}}, one or a list
  kNameThenJson,   // f[ARGS]{…}
  kXmlParameters,  // <function=f><parameter=k>v</parameter></function>
  kPythonic,       // [f(k="v", n=1), g()]
  kKeyedValues,    // call:f{k:<quote>v<quote>,n:1}
  kHarmony,        // messages with a channel and a recipient
};

// One row of the table: how a family of models writes tool calls. The incremental parser is made
// from the row. An empty mark does not occur in the format.
struct ToolFormat {
  std::string_view name = {};     // of --tool-parser
  std::string_view summary = {};  // one call, for documentation
  CallStyle style = CallStyle::kJson;
  // Calls begin at the beginning of the answer only, because no mark tells them from text.
  bool only_at_beginning = false;
  std::string_view opening = {};    // before a call or a list of calls
  std::string_view closing = {};    // after it; a complete call without it is accepted
  std::string_view separator = {};  // between two calls of one block, besides the commas of a list
  std::string_view name_end = {};   // kNameThenJson: between name and arguments
  std::string_view name_note = {};  // kNameThenJson: begins a note after the name, which is dropped
  std::string_view quote = {};      // kKeyedValues: around texts
  std::string_view arguments_key = "arguments";  // kJson: the key that the format's models write
  bool is_parallel = true;                       // several calls in one answer
  // The chat template accepts only ids of nine letters and digits.
  bool has_short_ids = false;
};

// All rows. Detection tries them in this order.
std::span<const ToolFormat> ToolFormats();
// The row of this name; null if there is none.
const ToolFormat* FindToolFormat(std::string_view name);
// "hermes, qwen3-coder, …", for error messages and help.
std::string ToolFormatNames();
// Every mark of the row, without empty ones. Marks that are control tokens must be kept in the text
// of an answer.
std::vector<std::string_view> MarksOf(const ToolFormat& format);

// The marks of kHarmony.
inline constexpr std::string_view kHarmonyStart = "<|start|>";
inline constexpr std::string_view kHarmonyChannel = "<|channel|>";
inline constexpr std::string_view kHarmonyConstrain = "<|constrain|>";
inline constexpr std::string_view kHarmonyMessage = "<|message|>";
inline constexpr std::string_view kHarmonyEnd = "<|end|>";
inline constexpr std::string_view kHarmonyCall = "<|call|>";
inline constexpr std::string_view kHarmonyReturn = "<|return|>";

}  // namespace tandem::engine
