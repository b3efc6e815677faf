#include "convert/journal.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <string_view>

#include "engine/io/atomic_write.h"
#include "engine/io/crc32c.h"

namespace tandem::convert {
namespace {

constexpr size_t kMaxJournalBytes = size_t{1} << 30;
constexpr size_t kChecksumDigits = 8;

std::string KeyOf(const std::string& file, int64_t tensor) {
  return file + "/" + std::to_string(tensor);
}

std::string ChecksumOf(std::string_view key) {
  char digits[kChecksumDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x", engine::Crc32c(0, std::as_bytes(std::span(key))));
  return digits;
}

std::string LineOf(const std::string& key) { return ChecksumOf(key) + " " + key + "\n"; }

}  // namespace

Journal::Journal(std::filesystem::path path) : path_(std::move(path)) {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = engine::ReadWholeFile(path_, kMaxJournalBytes);
  std::string_view left = text;
  for (size_t end = left.find('\n'); end != left.npos; end = left.find('\n')) {
    const std::string_view line = left.substr(0, end);
    left.remove_prefix(end + 1);
    if (line.size() <= kChecksumDigits + 1) continue;
    const std::string_view key = line.substr(kChecksumDigits + 1);
    if (line.substr(0, kChecksumDigits) == ChecksumOf(key)) entries_.emplace(key);
  }
}

bool Journal::Has(const std::string& file, int64_t tensor) const {
  return entries_.count(KeyOf(file, tensor)) != 0;
}

void Journal::Open() {
  file_ =
      engine::FileDescriptor(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file_.get() < 0) engine::ThrowSystemError("create", path_, errno);
  engine::SyncPath(engine::ParentOf(path_));
}

void Journal::Add(std::span<const Entry> entries) {
  if (file_.get() < 0) Open();
  std::string lines = "\n";  // behind half a line of a writer that was killed
  for (const Entry& entry : entries) lines += LineOf(KeyOf(entry.file, entry.tensor));
  engine::WriteAll(file_, std::as_bytes(std::span(lines)), path_);
  engine::Sync(file_, path_);
}

void Journal::Drop(const std::string& file) {
  const auto is_of_file = [&](const std::string& key) { return key.starts_with(file + "/"); };
  if (std::erase_if(entries_, is_of_file) == 0) return;
  std::string lines;
  for (const std::string& key : entries_) lines += LineOf(key);
  file_ = {};
  engine::WriteFileAtomically(path_, lines);
}

}  // namespace tandem::convert
