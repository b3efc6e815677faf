#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "training/data/row_file.h"

namespace tandem::training {

// What a row of columns says.
enum class RowFormat {
  kAuto,         // told from the first rows
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

// What a run learns from: examples to imitate, or pairs of answers.
enum class RowKind { kExamples, kPairs };

std::string_view NameOf(RowFormat format);

// The columns that a format reads, the ones it needs first. `given` (data.columns) renames them in
// this order; throws kInvalidArgument when there are more than the format has, or fewer than it
// needs.
std::vector<std::string> ColumnsOf(RowFormat format, const std::vector<std::string>& given);

// The format of the first rows: by the names of their columns, or by what the given columns hold.
// Throws kInvalidArgument naming the columns that are there. Only formats of `kind` are looked for.
RowFormat DetectFormat(const RowFile& rows, const std::vector<std::string>& columns,
                       RowKind kind = RowKind::kExamples);

}  // namespace tandem::training
