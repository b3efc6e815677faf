#include "server/batches/batch_results.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <span>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/io/crc32c.h"
#include "server/batches/batch_id.h"

namespace tandem::server {
namespace {

constexpr size_t kCrcDigits = 8;
// The CRC, a letter, six numbers of at most 19 digits, and what separates them.
constexpr int64_t kMaxHeadBytes = 160;
constexpr int64_t kCopiedBytes = 1 << 20;  // at a time

engine::FileDescriptor OpenForAppending(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) engine::ThrowSystemError("create", path, errno);
  return engine::FileDescriptor(fd);
}

std::string CrcOf(std::string_view bytes) {
  char digits[kCrcDigits + 1];
  std::snprintf(digits, sizeof digits, "%08x",
                engine::Crc32c(0, std::as_bytes(std::span(bytes.data(), bytes.size()))));
  return digits;
}

std::string RecordOf(const BatchResults::Result& result) {
  std::string rest = " " + std::to_string(result.line) + (result.is_error ? " e" : " o");
  for (const int64_t n :
       {result.usage.input_tokens, result.usage.cached_tokens, result.usage.output_tokens,
        result.usage.reasoning_tokens, static_cast<int64_t>(result.json.size())}) {
    rest += " " + std::to_string(n);
  }
  rest += "\n" + result.json + "\n";
  return CrcOf(rest) + rest;
}

// Reads " 12" at the front of `text` and removes it. nullopt for anything else.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  if (!text.starts_with(' ')) return std::nullopt;
  int64_t number = 0;
  const auto [end, fault] = std::from_chars(text.data() + 1, text.data() + text.size(), number);
  if (fault != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

struct Head {
  int64_t line = 0;
  bool is_error = false;
  std::array<int64_t, 5> numbers{};  // tokens in, cached, out, reasoning; bytes
};

std::optional<Head> ParseHead(std::string_view text) {
  Head head;
  const std::optional<int64_t> line = TakeNumber(text);
  if (!line || (!text.starts_with(" o") && !text.starts_with(" e"))) return std::nullopt;
  head.line = *line;
  head.is_error = text[1] == 'e';
  text.remove_prefix(2);
  for (int64_t& number : head.numbers) {
    const std::optional<int64_t> found = TakeNumber(text);
    if (!found) return std::nullopt;
    number = *found;
  }
  return text.empty() ? std::optional(head) : std::nullopt;
}

}  // namespace

BatchResults::BatchResults(std::filesystem::path file, int64_t n_lines, const Check& check)
    : path_(std::move(file)), places_(static_cast<size_t>(n_lines)) {
  counts_.total = n_lines;
  if (check) check();
  file_ = OpenForAppending(path_);
  Recover(check);
}

void BatchResults::Recover(const Check& check) {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) engine::ThrowSystemError("read", path_, errno);
  while (TakeRecord(status.st_size)) {
  }
  if (check) {
    MoveToOurFile(check);
  } else if (end_ < status.st_size && ::ftruncate(file_.get(), end_) != 0) {
    engine::ThrowSystemError("write", path_, errno);
  }
  SyncDirectory(path_.parent_path());
}

void BatchResults::MoveToOurFile(const Check& check) {
  // A name of its own: another replica may copy the file at the same time.
  const std::filesystem::path next = NewBatchId(path_.string() + ".next-");
  std::error_code ignored;
  engine::FileDescriptor ours = OpenForAppending(next);
  UndoOnFailure(
      [&] {
        std::vector<char> piece(static_cast<size_t>(std::min(end_, kCopiedBytes)));
        for (int64_t at = 0; at < end_; at += static_cast<int64_t>(piece.size())) {
          piece.resize(static_cast<size_t>(std::min(end_ - at, kCopiedBytes)));
          const auto bytes = std::as_writable_bytes(std::span(piece));
          engine::ReadAllAt(file_, bytes, at, path_);
          engine::WriteAllAt(ours, bytes, at, next);
        }
        engine::Sync(ours, next);
        check();
        std::filesystem::rename(next, path_, ignored);
        if (ignored) engine::ThrowSystemError("rename to", path_, ignored.value());
      },
      [&] { std::filesystem::remove(next, ignored); });
  file_ = std::move(ours);
}

bool BatchResults::TakeRecord(int64_t file_bytes) {
  const auto read = [&](int64_t offset, int64_t bytes) {
    std::string text(static_cast<size_t>(bytes), '\0');
    engine::ReadAllAt(file_, std::as_writable_bytes(std::span(text)), offset, path_);
    return text;
  };
  const std::string front = read(end_, std::min(kMaxHeadBytes, file_bytes - end_));
  const size_t head_end = front.find('\n');
  if (head_end == std::string::npos || head_end < kCrcDigits) return false;
  const auto head = ParseHead(std::string_view(front).substr(kCrcDigits, head_end - kCrcDigits));
  if (!head || head->line >= n_lines() || head->numbers[4] == 0) return false;
  const Place place{.offset = end_ + static_cast<int64_t>(head_end) + 1,
                    .bytes = head->numbers[4],
                    .is_error = head->is_error};
  if (place.bytes >= file_bytes - place.offset) return false;  // the final line end counts
  const int64_t after = place.offset + place.bytes + 1;
  const std::string record = read(end_, after - end_);
  const std::string_view checked = std::string_view(record).substr(kCrcDigits);
  if (record.substr(0, kCrcDigits) != CrcOf(checked)) return false;
  Result result{.line = head->line,
                .is_error = head->is_error,
                .usage = {head->numbers[0], head->numbers[1], head->numbers[2], head->numbers[3]},
                .json = {}};
  Count(result, place, after);
  return true;
}

void BatchResults::Count(const Result& result, const Place& place, int64_t end) {
  end_ = end;
  if (Has(result.line)) return;
  places_[static_cast<size_t>(result.line)] = place;
  ++(result.is_error ? counts_.failed : counts_.completed);
  usage_.input_tokens += result.usage.input_tokens;
  usage_.cached_tokens += result.usage.cached_tokens;
  usage_.output_tokens += result.usage.output_tokens;
  usage_.reasoning_tokens += result.usage.reasoning_tokens;
}

void BatchResults::Append(const Result& result) {
  TANDEM_CHECK(!Has(result.line) && !result.json.empty());
  const std::string record = RecordOf(result);
  const auto size = static_cast<int64_t>(record.size());
  UndoOnFailure(
      [&] { engine::WriteAllAt(file_, std::as_bytes(std::span(record)), end_, path_); },
      // The next record would overwrite a torn one; a shorter file also gives its space back.
      [&] { static_cast<void>(::ftruncate(file_.get(), end_) == 0); });
  Count(result,
        {.offset = end_ + size - 1 - static_cast<int64_t>(result.json.size()),
         .bytes = static_cast<int64_t>(result.json.size()),
         .is_error = result.is_error},
        end_ + size);
}

void BatchResults::Sync() { engine::Sync(file_, path_); }

std::string BatchResults::Read(int64_t line) const {
  const Place& place = places_[static_cast<size_t>(line)];
  std::string text(static_cast<size_t>(place.bytes), '\0');
  engine::ReadAllAt(file_, std::as_writable_bytes(std::span(text)), place.offset, path_);
  return text;
}

}  // namespace tandem::server
