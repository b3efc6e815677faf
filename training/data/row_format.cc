#include "training/data/row_format.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kRowsLookedAt = 20;
constexpr size_t kColumnsNamed = 12;

struct FormatColumns {
  RowFormat format;
  std::string_view name;
  size_t needed;
  std::vector<std::string> columns;
};

const std::vector<FormatColumns>& Formats() {
  static const std::vector<FormatColumns> formats = {
      {RowFormat::kMessages, "messages", 1, {"messages", "tools"}},
      {RowFormat::kShareGpt, "sharegpt", 1, {"conversations", "system", "tools"}},
      {RowFormat::kPromptCompletion, "prompt_completion", 2, {"prompt", "completion", "tools"}},
      {RowFormat::kInstruction, "alpaca", 2, {"instruction", "output", "input", "system"}},
      {RowFormat::kText, "text", 1, {"text"}},
      {RowFormat::kOpenAiPreference,
       "openai_preference",
       3,
       {"input", "preferred_output", "non_preferred_output"}},
      {RowFormat::kPreference, "preference", 2, {"chosen", "rejected", "prompt", "tools"}},
  };
  return formats;
}

const FormatColumns& Find(RowFormat format) {
  for (const FormatColumns& known : Formats()) {
    if (known.format == format) return known;
  }
  throw Error(ErrorCode::kInternal, "a format without columns");
}

std::optional<RowFormat> FormatOf(const Json& row, RowKind kind) {
  for (const FormatColumns& known : Formats()) {
    if (IsPreference(known.format) != (kind == RowKind::kPairs)) continue;
    const auto needed = known.columns.begin() + static_cast<std::ptrdiff_t>(known.needed);
    if (std::all_of(known.columns.begin(), needed,
                    [&](const std::string& column) { return row.contains(column); })) {
      return known.format;
    }
  }
  return std::nullopt;
}

// Detects the format from the contents of the columns that the user named.
std::optional<RowFormat> FormatOf(const Json& row, const std::vector<std::string>& columns,
                                  RowKind kind) {
  if (!row.contains(columns[0])) return std::nullopt;
  const Json& first = row.at(columns[0]);
  if (kind == RowKind::kPairs) {
    return first.is_object() ? RowFormat::kOpenAiPreference : RowFormat::kPreference;
  }
  if (columns.size() == 2) return RowFormat::kPromptCompletion;
  if (columns.size() == 3) return RowFormat::kInstruction;
  if (first.is_string()) return RowFormat::kText;
  if (!first.is_array() || first.empty() || !first.front().is_object()) return std::nullopt;
  if (first.front().contains("from")) return RowFormat::kShareGpt;
  return RowFormat::kMessages;
}

}  // namespace

bool IsPreference(RowFormat format) {
  return format == RowFormat::kPreference || format == RowFormat::kOpenAiPreference;
}

std::string_view NameOf(RowFormat format) {
  if (format == RowFormat::kAuto) return "auto";
  return format == RowFormat::kPlain ? "plain" : Find(format).name;
}

std::vector<std::string> ColumnsOf(RowFormat format, const std::vector<std::string>& given) {
  const FormatColumns& known = Find(format);
  if (given.empty()) return known.columns;
  if (given.size() > known.columns.size() || given.size() < known.needed) {
    std::string names;
    for (const std::string& column : known.columns) {
      names.append(names.empty() ? "" : ", ").append(column);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "data.columns: the format " + std::string(known.name) + " has the columns " +
                    names + ", and needs the first " + std::to_string(known.needed) + "; got " +
                    std::to_string(given.size()));
  }
  std::vector<std::string> columns = given;
  // Alpaca's usual order is instruction, input, output.
  if (format == RowFormat::kInstruction && columns.size() > 2) std::swap(columns[1], columns[2]);
  // Names for optional columns that the user did not give: their default names, unless a given name
  // already uses them.
  for (size_t i = given.size(); i < known.columns.size(); ++i) {
    const bool is_taken = std::find(given.begin(), given.end(), known.columns[i]) != given.end();
    columns.push_back(is_taken ? std::string() : known.columns[i]);
  }
  return columns;
}

RowFormat DetectFormat(const RowFile& rows, const std::vector<std::string>& columns, RowKind kind) {
  if (rows.size() == 0) throw Error(ErrorCode::kDataLoss, rows.name() + ": the file has no rows");
  std::string seen;
  std::string fault;
  for (int64_t i = 0; i < std::min(rows.size(), kRowsLookedAt); ++i) {
    Json row;
    // The check of all rows reports every bad row.
    if (const auto error = ErrorOf([&] { row = rows.Read(i); })) {
      if (fault.empty()) fault = rows.Where(i) + ": " + error->what();
      continue;
    }
    const auto format = columns.empty() ? FormatOf(row, kind) : FormatOf(row, columns, kind);
    if (format) return *format;
    if (kind == RowKind::kExamples && (row.contains("chosen") || FormatOf(row, RowKind::kPairs))) {
      throw Error(ErrorCode::kInvalidArgument,
                  rows.name() + ": preference rows (chosen, rejected) need kind train.dpo");
    }
    if (seen.empty()) {
      size_t n = 0;
      for (const auto& [name, value] : row.items()) {
        if (++n > kColumnsNamed) break;
        seen.append(seen.empty() ? "" : ", ").append(Quoted(name, 40));
      }
    }
  }
  if (seen.empty() && !fault.empty()) {
    throw Error(ErrorCode::kDataLoss, rows.name() + ": no row can be read; " + fault);
  }
  const std::string wanted = kind == RowKind::kPairs ? "format of pairs" : "format";
  throw Error(ErrorCode::kInvalidArgument, rows.name() + ": the columns " + seen +
                                               " match no known " + wanted +
                                               "; set data.format and data.columns");
}

}  // namespace tandem::training
