#include "convert/work/journal.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <string_view>

#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"

namespace tandem::convert {
namespace {

constexpr size_t kMaxJournalBytes = size_t{1} << 30;
constexpr size_t kChecksumDigits = 8;

std::string ChecksumOf(std::string_view text) {
  char digits[kChecksumDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x", engine::Crc32c(0, std::as_bytes(std::span(text))));
  return digits;
}

std::string LineOf(const std::string& file, int64_t tensor, const std::string& note) {
  std::string text = file + "/" + std::to_string(tensor);
  if (!note.empty()) text += " " + note;
  return ChecksumOf(text) + " " + text + "\n";
}

}  // namespace

Journal::Journal(std::filesystem::path path) : path_(std::move(path)) {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = engine::ReadWholeFile(path_, kMaxJournalBytes);
  std::string_view left = text;
  for (size_t end = left.find('\n'); end != left.npos; end = left.find('\n')) {
    Take(left.substr(0, end));
    left.remove_prefix(end + 1);
  }
}

void Journal::Take(std::string_view line) {
  if (line.size() <= kChecksumDigits + 1) return;
  const std::string_view text = line.substr(kChecksumDigits + 1);
  if (line.substr(0, kChecksumDigits) != ChecksumOf(text)) return;
  const std::string_view key = text.substr(0, text.find(' '));
  const size_t slash = key.rfind('/');
  if (slash == key.npos) return;
  int64_t tensor = 0;
  const char* end = key.data() + key.size();
  const auto number = std::from_chars(key.data() + slash + 1, end, tensor);
  if (number.ec != std::errc() || number.ptr != end) return;
  const std::string_view note = text.substr(std::min(text.size(), key.size() + 1));
  notes_.insert_or_assign({std::string(key.substr(0, slash)), tensor}, note);
}

const std::string* Journal::Find(const std::string& file, int64_t tensor) const {
  const auto found = notes_.find({file, tensor});
  return found == notes_.end() ? nullptr : &found->second;
}

void Journal::Open() {
  file_ =
      engine::FileDescriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file_.get() < 0) engine::ThrowSystemError("create", path_, errno);
  engine::SyncPath(engine::ParentOf(path_));
}

void Journal::Add(std::span<const Entry> entries) {
  if (file_.get() < 0) Open();
  std::string lines = "\n";  // ends a partial line left by a killed writer
  for (const Entry& entry : entries) lines += LineOf(entry.file, entry.tensor, entry.note);
  engine::WriteAll(file_, std::as_bytes(std::span(lines)), path_);
  engine::Sync(file_, path_);
}

void Journal::Drop(const std::string& file, int64_t from) {
  const auto is_dropped = [&](const auto& entry) {
    return entry.first.first == file && entry.first.second >= from;
  };
  if (std::erase_if(notes_, is_dropped) == 0) return;
  std::string lines;
  for (const auto& [key, note] : notes_) lines += LineOf(key.first, key.second, note);
  file_ = {};
  engine::WriteFileAtomically(path_, lines);
}

}  // namespace tandem::convert
