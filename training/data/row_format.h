#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "training/data/row_file.h"

namespace tandem::training {

// The meaning of a row's columns.
enum class RowFormat {
  kAuto,         // detected from the first rows
  kPlain,        // no rows: a text file between delimiter lines
  kText,         // {"text": …}
  kMessages,     // {"messages": [{"role", "content", …}], "tools"?}: OpenAI's, and most hub sets
  kShareGpt,     // {"conversations": [{"from", "value"}], "system"?, "tools"?}
  kInstruction,  // {"instruction", "input"?, "output"}: Alpaca's
  kPromptCompletion,  // {"prompt", "completion"}: texts, or lists of messages
  kPreference,        // {"chosen", "rejected", "prompt"?, "tools"?}: texts, or lists of messages
  kOpenAiPreference,  // {"input": {"messages"}, "preferred_output", "non_preferred_output"}
};

// Whether a row holds two answers, one preferred to the other.
bool IsPreference(RowFormat format);

// Kind of training data: examples to imitate, or pairs of answers.
enum class RowKind { kExamples, kPairs };

std::string_view NameOf(RowFormat format);

// The columns of a format, required ones first. `given` (data.columns) renames them in this order.
// Throws kInvalidArgument when `given` has more columns than the format, or fewer than it requires.
std::vector<std::string> ColumnsOf(RowFormat format, const std::vector<std::string>& given);

// Detects the format of the first rows from their columns' names, or from the contents of the given
// columns. Considers only formats of `kind`. Throws kInvalidArgument listing the existing columns.
RowFormat DetectFormat(const RowFile& rows, const std::vector<std::string>& columns,
                       RowKind kind = RowKind::kExamples);

}  // namespace tandem::training
