#include "server/terminal/edit_buffer.h"

#include <utility>
#include <vector>

#include "engine/tokenizer/text/unicode.h"
#include "server/terminal/display_width.h"

namespace tandem::server {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n'; }

std::vector<size_t> ClusterEnds(std::string_view line) {
  std::vector<size_t> ends;
  size_t end = 0;
  engine::ForEachGrapheme(line, [&](std::string_view cluster) {
    end += cluster.size();
    ends.push_back(end);
  });
  return ends;
}

}  // namespace

void EditBuffer::Set(std::string text) {
  text_ = std::move(text);
  cursor_ = text_.size();
}

void EditBuffer::Insert(std::string_view text) {
  // The killed text may be inserted, so `text` may belong to this object.
  const std::string copy(text);
  text_.insert(cursor_, copy);
  cursor_ += copy.size();
}

size_t EditBuffer::LineBegin(size_t at) const {
  const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
  return newline == std::string::npos ? 0 : newline + 1;
}

size_t EditBuffer::LineEnd(size_t at) const {
  const size_t newline = text_.find('\n', at);
  return newline == std::string::npos ? text_.size() : newline;
}

size_t EditBuffer::Before(size_t at) const {
  const size_t begin = LineBegin(at);
  if (begin == at) return at == 0 ? 0 : at - 1;  // over the line break
  size_t before = begin;
  for (const size_t end : ClusterEnds(std::string_view(text_).substr(begin, at - begin))) {
    if (begin + end < at) before = begin + end;
  }
  return before;
}

size_t EditBuffer::After(size_t at) const {
  if (at == text_.size()) return at;
  const size_t end = LineEnd(at);
  if (end == at) return at + 1;
  return at + ClusterEnds(std::string_view(text_).substr(at, end - at)).front();
}

size_t EditBuffer::WordBefore(size_t at) const {
  while (at > 0 && IsSpace(text_[at - 1])) --at;
  while (at > 0 && !IsSpace(text_[at - 1])) --at;
  return at;
}

size_t EditBuffer::WordAfter(size_t at) const {
  while (at < text_.size() && IsSpace(text_[at])) ++at;
  while (at < text_.size() && !IsSpace(text_[at])) ++at;
  return at;
}

size_t EditBuffer::AtColumn(size_t begin, int64_t column) const {
  const std::string_view line = std::string_view(text_).substr(begin, LineEnd(begin) - begin);
  size_t at = 0;
  for (const size_t end : ClusterEnds(line)) {
    if (DisplayWidth(line.substr(0, end)) > column) break;
    at = end;
  }
  return begin + at;
}

bool EditBuffer::MoveUp() {
  const size_t begin = LineBegin(cursor_);
  if (begin == 0) return false;
  const int64_t column = DisplayWidth(std::string_view(text_).substr(begin, cursor_ - begin));
  cursor_ = AtColumn(LineBegin(begin - 1), column);
  return true;
}

bool EditBuffer::MoveDown() {
  const size_t end = LineEnd(cursor_);
  if (end == text_.size()) return false;
  const size_t begin = LineBegin(cursor_);
  const int64_t column = DisplayWidth(std::string_view(text_).substr(begin, cursor_ - begin));
  cursor_ = AtColumn(end + 1, column);
  return true;
}

void EditBuffer::KillToEnd() {
  const size_t end = LineEnd(cursor_);
  Kill(cursor_, end == cursor_ ? After(cursor_) : end);
}

void EditBuffer::KillToBegin() {
  const size_t begin = LineBegin(cursor_);
  Kill(begin == cursor_ ? Before(cursor_) : begin, cursor_);
}

void EditBuffer::Erase(size_t begin, size_t end) {
  text_.erase(begin, end - begin);
  cursor_ = begin;
}

void EditBuffer::Kill(size_t begin, size_t end) {
  if (begin == end) return;
  killed_ = text_.substr(begin, end - begin);
  Erase(begin, end);
}

}  // namespace tandem::server
