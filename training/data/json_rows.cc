#include "training/data/json_rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/json.h"
#include "training/data/text_kind.h"

namespace tandem::training {
namespace {

constexpr int64_t kStride = 32;
constexpr std::string_view kJsonSpace = " \t\r\n";
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

}  // namespace

JsonRows::JsonRows(std::shared_ptr<const engine::MappedFile> file, std::string_view text,
                   std::string name)
    : file_(std::move(file)), text_(text), name_(std::move(name)) {
  RefuseOtherKinds(text_, name_, "JSON");
  if (text_.starts_with(kUtf8Mark)) begin_.offset = kUtf8Mark.size();
  const size_t first = text_.find_first_not_of(kJsonSpace, begin_.offset);
  if (first == std::string_view::npos) {
    throw Error(ErrorCode::kDataLoss, name_ + ": the file is empty");
  }
  is_array_ = text_[first] == '[';
  if (is_array_) {
    begin_.line +=
        std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(first), '\n');
    begin_.offset = first + 1;
  }
  Index();
}

std::shared_ptr<const JsonRows> JsonRows::Open(const std::filesystem::path& path) {
  auto file = engine::MappedFile::Open(path);
  const std::span<const std::byte> bytes = file->bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::shared_ptr<const JsonRows>(new JsonRows(std::move(file), text, path.string()));
}

std::shared_ptr<const JsonRows> JsonRows::Of(std::string_view text, const std::string& name) {
  return std::shared_ptr<const JsonRows>(new JsonRows(nullptr, text, name));
}

void JsonRows::Index() {
  Cursor at = begin_;
  Row row;
  while (true) {
    const Cursor before = at;
    if (!Next(&at, &row)) break;
    if (n_rows_ % kStride == 0) places_.push_back(before);
    ++n_rows_;
  }
  if (n_rows_ == 0) throw Error(ErrorCode::kDataLoss, name_ + ": the file has no rows");
}

bool JsonRows::Next(Cursor* at, Row* row) const {
  return is_array_ ? NextElement(at, row) : NextLine(at, row);
}

// Skips lines of white space.
bool JsonRows::NextLine(Cursor* at, Row* row) const {
  while (at->offset < text_.size()) {
    const size_t end = std::min(text_.find('\n', at->offset), text_.size());
    const std::string_view line = text_.substr(at->offset, end - at->offset);
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
  size_t i = at->offset;
  while (i < text_.size() &&
         (kJsonSpace.find(text_[i]) != std::string_view::npos || text_[i] == ',')) {
    at->line += text_[i++] == '\n' ? 1 : 0;
  }
  at->offset = i;
  if (i == text_.size() || text_[i] == ']') return false;
  const size_t begin = i;
  const int64_t line = at->line;
  int64_t depth = 0;
  bool in_string = false;
  for (; i < text_.size(); ++i) {
    const char c = text_[i];
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
  i = std::min(i, text_.size());
  *row = {text_.substr(begin, i - begin), line};
  at->offset = i;
  return true;
}

JsonRows::Row JsonRows::Find(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < n_rows_);
  Cursor at = places_[static_cast<size_t>(i / kStride)];
  Row row;
  for (int64_t skipped = 0; skipped <= i % kStride; ++skipped) TANDEM_CHECK(Next(&at, &row));
  return row;
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

std::string JsonRows::Where(int64_t i) const { return "line " + std::to_string(Find(i).line); }

}  // namespace tandem::training
