#include "training/data/json_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "training/data/text_bytes.h"
#include "training/data/text_kind.h"

namespace tandem::training {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

}  // namespace

JsonRows::JsonRows(std::shared_ptr<const void> file, std::string_view text, std::string name)
    : ScannedRows(std::move(file), text, std::move(name)) {
  RefuseOtherKinds(text, this->name(), "JSON");
  Cursor begin;
  if (text.starts_with(kUtf8Mark)) begin.offset = kUtf8Mark.size();
  const size_t first = text.find_first_not_of(kJsonSpace, begin.offset);
  if (first == std::string_view::npos) {
    throw Error(ErrorCode::kDataLoss, this->name() + ": the file is empty");
  }
  is_array_ = text[first] == '[';
  if (is_array_) {
    begin.line += std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(first), '\n');
    begin.offset = first + 1;
  }
  Index(begin);
  if (size() == 0) throw Error(ErrorCode::kDataLoss, this->name() + ": the file has no rows");
}

std::shared_ptr<const JsonRows> JsonRows::Open(const std::filesystem::path& path) {
  auto [file, text] = OpenTextBytes(path);
  return std::shared_ptr<const JsonRows>(new JsonRows(std::move(file), text, path.string()));
}

std::shared_ptr<const JsonRows> JsonRows::Of(std::string_view text, const std::string& name) {
  return std::shared_ptr<const JsonRows>(new JsonRows(nullptr, text, name));
}

bool JsonRows::Next(Cursor* at, Row* row) const {
  return is_array_ ? NextElement(at, row) : NextLine(at, row);
}

// Skips lines of white space.
bool JsonRows::NextLine(Cursor* at, Row* row) const {
  const std::string_view all = text();
  while (at->offset < all.size()) {
    const size_t end = std::min(all.find('\n', at->offset), all.size());
    const std::string_view line = all.substr(at->offset, end - at->offset);
    const int64_t number = at->line++;
    at->offset = end + 1;
    if (line.find_first_not_of(kJsonSpace) == std::string_view::npos) continue;
    *row = {line, number};
    return true;
  }
  return false;
}

// Finds the elements of the outermost array by counting brackets and skipping strings. Read detects
// invalid JSON later.
bool JsonRows::NextElement(Cursor* at, Row* row) const {
  const std::string_view all = text();
  size_t i = at->offset;
  while (i < all.size() && (kJsonSpace.find(all[i]) != std::string_view::npos || all[i] == ',')) {
    at->line += all[i++] == '\n' ? 1 : 0;
  }
  at->offset = i;
  if (i == all.size() || all[i] == ']') return false;
  const size_t begin = i;
  const int64_t line = at->line;
  int64_t depth = 0;
  bool in_string = false;
  for (; i < all.size(); ++i) {
    const char c = all[i];
    if (c == '\n') ++at->line;
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      // A brace that nothing opened belongs to the element, so every element has a character.
      if (depth > 0) {
        --depth;
      } else if (c == ']') {
        break;
      }
    } else if (c == ',' && depth == 0) {
      break;
    }
  }
  i = std::min(i, all.size());
  *row = {all.substr(begin, i - begin), line};
  at->offset = i;
  return true;
}

nlohmann::ordered_json JsonRows::Read(int64_t i) const {
  const Row row = Find(i);
  if (row.text.size() > kMaxRowBytes) {
    throw Error(ErrorCode::kInvalidArgument, "has " + std::to_string(row.text.size()) +
                                                 " bytes, the limit is " +
                                                 std::to_string(kMaxRowBytes));
  }
  nlohmann::ordered_json json =
      engine::ParseUntrustedJson(row.text, "JSON", engine::JsonLimits{.keep_wide_integers = true});
  if (!json.is_object()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string("must be a JSON object, got ") + json.type_name());
  }
  return json;
}

}  // namespace tandem::training
