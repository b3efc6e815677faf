#include "training/data/csv_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "training/data/text_bytes.h"
#include "training/data/text_kind.h"

namespace tandem::training {
namespace {

constexpr std::string_view kCsvByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kCsvSpace = " \t\r";

Error BadCsvRow(const std::string& what) { return {ErrorCode::kInvalidArgument, what}; }

}  // namespace

CsvRows::CsvRows(std::shared_ptr<const void> file, std::string_view text, std::string name)
    : ScannedRows(std::move(file), text, std::move(name)) {
  RefuseOtherKinds(text, this->name(), "CSV");
  Cursor at;
  if (text.starts_with(kCsvByteOrderMark)) at.offset = kCsvByteOrderMark.size();
  Row row;
  if (!Next(&at, &row)) throw Error(ErrorCode::kDataLoss, this->name() + ": the file is empty");
  ReadHeader(row);
  Index(at);
  if (size() == 0) {
    throw Error(ErrorCode::kDataLoss, this->name() + ": the file has a header and no rows");
  }
}

std::shared_ptr<const CsvRows> CsvRows::Open(const std::filesystem::path& path) {
  auto [file, text] = OpenTextBytes(path);
  return std::shared_ptr<const CsvRows>(new CsvRows(std::move(file), text, path.string()));
}

std::shared_ptr<const CsvRows> CsvRows::Of(std::string_view text, const std::string& name) {
  return std::shared_ptr<const CsvRows>(new CsvRows(nullptr, text, name));
}

void CsvRows::ReadHeader(const Row& row) {
  const auto fault = [&](const std::string& what) {
    return Error(ErrorCode::kDataLoss,
                 name() + ": line " + std::to_string(row.line) + ": the header " + what);
  };
  if (row.text.size() > kMaxCsvRowBytes) throw fault("is longer than a row may be");
  std::vector<Field> fields;
  if (const auto bad = ErrorOf([&] { fields = Split(row.text); })) throw fault(bad->what());
  std::set<std::string> seen;
  for (Field& field : fields) {
    if (!IsValidUtf8(field.value)) throw fault("is not valid UTF-8");
    if (field.value.find_first_not_of(kCsvSpace) == std::string::npos) {
      throw fault("has a column without a name, number " + std::to_string(columns_.size() + 1));
    }
    if (!seen.insert(field.value).second) {
      throw fault("names the column " + Quoted(field.value, 40) + " twice");
    }
    columns_.push_back(std::move(field.value));
  }
  if (columns_.size() > 1) return;
  for (const char separator : {';', '\t'}) {
    if (columns_[0].find(separator) == std::string::npos) continue;
    throw fault(std::string("separates its columns by ") +
                (separator == ';' ? "semicolons" : "tabs") + "; separate them by commas");
  }
}

// A quote opens a quoted part at the begin of a field only; elsewhere it is a character.
bool CsvRows::Next(Cursor* at, Row* row) const {
  const std::string_view all = text();
  while (at->offset < all.size()) {
    const size_t begin = at->offset;
    const int64_t line = at->line;
    bool is_quoted = false;
    bool is_field_begin = true;
    size_t i = begin;
    for (; i < all.size(); ++i) {
      const char c = all[i];
      if (c == '\n') {
        ++at->line;
        if (!is_quoted) break;
      } else if (c == '"' && is_quoted) {
        is_quoted = i + 1 < all.size() && all[i + 1] == '"';
        if (is_quoted) ++i;
      } else if (c == '"' && is_field_begin) {
        is_quoted = true;
      }
      is_field_begin = !is_quoted && c == ',';
    }
    at->offset = std::min(i + 1, all.size());
    std::string_view text = all.substr(begin, i - begin);
    if (!is_quoted && text.ends_with('\r')) text.remove_suffix(1);
    if (text.find_first_not_of(kCsvSpace) == std::string_view::npos) continue;
    *row = {text, line};
    return true;
  }
  return false;
}

std::vector<CsvRows::Field> CsvRows::Split(std::string_view row) {
  std::vector<Field> fields;
  size_t at = 0;
  for (;;) {
    if (fields.size() == kMaxCsvColumns) {
      throw BadCsvRow("has more than " + std::to_string(kMaxCsvColumns) + " fields");
    }
    Field& field = fields.emplace_back();
    if (at < row.size() && row[at] == '"') {
      field.is_quoted = true;
      for (++at;; ++at) {
        const size_t quote = row.find('"', at);
        if (quote == std::string_view::npos) {
          throw BadCsvRow("has a quote in field " + std::to_string(fields.size()) +
                          " that is not closed");
        }
        field.value += row.substr(at, quote - at);
        at = quote + 1;
        if (at == row.size() || row[at] != '"') break;
        field.value += '"';
      }
      if (at < row.size() && row[at] != ',') {
        throw BadCsvRow("has text after the closing quote of field " +
                        std::to_string(fields.size()));
      }
    } else {
      const size_t end = std::min(row.find(',', at), row.size());
      field.value = row.substr(at, end - at);
      at = end;
    }
    if (at == row.size()) return fields;
    ++at;  // the comma
  }
}

nlohmann::ordered_json CsvRows::Read(int64_t i) const {
  const Row row = Find(i);
  if (row.text.size() > kMaxCsvRowBytes) {
    throw BadCsvRow("has " + std::to_string(row.text.size()) + " bytes, the limit is " +
                    std::to_string(kMaxCsvRowBytes));
  }
  if (!IsValidUtf8(row.text)) throw BadCsvRow("is not valid UTF-8");
  std::vector<Field> fields = Split(row.text);
  if (fields.size() != columns_.size()) {
    throw BadCsvRow("has " + std::to_string(fields.size()) + " fields, the header has " +
                    std::to_string(columns_.size()));
  }
  auto json = nlohmann::ordered_json::object();
  for (size_t column = 0; column < fields.size(); ++column) {
    Field& field = fields[column];
    const bool is_null = field.value.empty() && !field.is_quoted;
    json[columns_[column]] =
        is_null ? nlohmann::ordered_json() : nlohmann::ordered_json(std::move(field.value));
  }
  return json;
}

}  // namespace tandem::training
