#include "server/jobs/job_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/utf8.h"
#include "engine/io/json.h"
#include "server/database/disk_full.h"

namespace tandem::server {
namespace {

// The sorted kind: the ordered one searches linearly, so many names would cost O(n²).
using nlohmann::json;

constexpr size_t kEventPieceBytes = 256 * 1024;
constexpr size_t kErrorTailBytes = 4096;
constexpr size_t kErrorTailLines = 5;
constexpr size_t kMaxErrorText = 2000;

// O_NONBLOCK: a pipe in place of the file must not block the supervisor.
UniqueFd OpenForReading(const std::filesystem::path& path, struct stat& status) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return UniqueFd();
  return file;
}

std::string ReadAt(int fd, int64_t offset, size_t max_bytes) {
  std::string bytes(max_bytes, '\0');
  size_t filled = 0;
  while (filled < max_bytes) {
    const ssize_t n = ::pread(fd, bytes.data() + filled, max_bytes - filled,
                              static_cast<off_t>(offset + static_cast<int64_t>(filled)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    filled += static_cast<size_t>(n);
  }
  bytes.resize(filled);
  return bytes;
}

bool WriteFully(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// The largest prefix length up to `bytes` that does not split a UTF-8 character.
size_t CutBeforeCharacter(std::string_view text, size_t bytes) {
  if (bytes >= text.size()) return text.size();
  size_t cut = bytes;
  for (int i = 0; i < 3 && cut > 1 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80; ++i) {
    --cut;
  }
  return cut;
}

// Returns 0 for anything other than an unsigned integer.
int64_t CountOf(const json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_unsigned()) return 0;
  const auto value = it->get<uint64_t>();
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return static_cast<int64_t>(std::min(value, kMax));
}

std::string TextOf(const json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return "";
  const auto& text = it->get_ref<const std::string&>();
  return text.substr(0, CutBeforeCharacter(text, kMaxErrorText));
}

// Returns a discarded value for anything other than an object of bounded depth.
json ParseBoundedObject(std::string_view text) {
  json value;
  ErrorOf([&] { value = engine::ParseUntrustedJson(text, "JSON"); });
  return value.is_object() ? value : json(json::value_t::discarded);
}

bool HasNoLocks(int error_number) {
  return error_number == ENOSYS || error_number == EOPNOTSUPP || error_number == ENOLCK;
}

void WarnOfNoLocks(const std::filesystem::path& path, int error_number) {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  spdlog::warn(
      "files_not_locked path={} reason=\"{}\" advice=\"let one process at a time work here\"",
      path.string(), std::generic_category().message(error_number));
}

JobResult Invalid(const std::filesystem::path& path, const std::string& why) {
  JobResult result;
  result.state = JobResult::State::kInvalid;
  result.error = {path.filename().string() + " of the job " + why, "bad_result"};
  return result;
}

// Names that a process leaves when it is killed while it writes, replaces or deletes.
bool IsUnfinished(const std::string& name) {
  return name.find(".tmp-") != std::string::npos || name.starts_with(".trash-");
}

}  // namespace

void ThrowIo(const char* what, const std::filesystem::path& path, int error_number) {
  if (IsDiskFull(error_number)) ThrowDiskFull();
  throw Error(ErrorCode::kIo, std::string("could not ") + what + " " + path.string() + ": " +
                                  std::generic_category().message(error_number));
}

void WriteJobFile(const std::filesystem::path& path, std::string_view text) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  {
    const UniqueFd file(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) ThrowIo("create", temporary, errno);
    if (!WriteFully(file.get(), text) || ::fsync(file.get()) != 0) {
      const int error_number = errno;
      ::unlink(temporary.c_str());
      ThrowIo("write", temporary, error_number);
    }
  }
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error_number = errno;
    ::unlink(temporary.c_str());
    ThrowIo("rename to", path, error_number);
  }
  SyncDirectory(path.parent_path());
}

void AppendLogLine(const std::filesystem::path& path, const std::string& line) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (file) WriteFully(file.get(), line + "\n");
}

void RemoveUnfinished(const std::filesystem::path& dir) {
  std::vector<std::filesystem::path> found;
  std::error_code ignored;
  std::filesystem::recursive_directory_iterator entry(dir, ignored);
  for (; !ignored && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(ignored)) {
    if (!IsUnfinished(entry->path().filename().string())) continue;
    found.push_back(entry->path());
    entry.disable_recursion_pending();
  }
  for (const std::filesystem::path& path : found) std::filesystem::remove_all(path, ignored);
}

std::optional<UniqueFd> TryLockFile(const std::filesystem::path& path, WithoutLocks without) {
  UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) ThrowIo("open", path, errno);
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    const int error_number = errno;
    if (error_number == EWOULDBLOCK) return std::nullopt;
    if (HasNoLocks(error_number) && without == WithoutLocks::kContinue) {
      WarnOfNoLocks(path, error_number);
      break;
    }
    if (HasNoLocks(error_number)) {
      throw Error(ErrorCode::kUnsupported, "could not lock " + path.string() +
                                               ": its file system has no locks (flock): " +
                                               std::generic_category().message(error_number));
    }
    if (error_number != EINTR) ThrowIo("lock", path, error_number);
  }
  return file;
}

int64_t FileBytes(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  return status.st_size;
}

std::string ValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const size_t length = WholeCharacterBytes(bytes);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      bytes.remove_prefix(1);
    } else {
      out.append(bytes.substr(0, length));
      bytes.remove_prefix(length);
    }
  }
  return out;
}

LogChunk ReadLogLines(const std::filesystem::path& path, int64_t offset, size_t max_bytes,
                      bool writer_is_gone) {
  LogChunk chunk;
  chunk.next_offset = offset;
  chunk.at_end = true;
  struct stat status {};
  const UniqueFd file = OpenForReading(path, status);
  if (!file || offset >= status.st_size) return chunk;

  // At least one byte more than the longest line, so that its newline is read for any `max_bytes`.
  const size_t want = std::clamp<size_t>(max_bytes, kMaxLineBytes + 1, size_t{16} * 1024 * 1024);
  const std::string bytes = ReadAt(file.get(), offset, want);
  const bool read_everything = bytes.size() < want;
  size_t begin = 0;
  while (begin < bytes.size() && (chunk.lines.empty() || begin < max_bytes)) {
    const std::string_view rest = std::string_view(bytes).substr(begin);
    size_t length = rest.find('\n');
    size_t consumed = length + 1;
    if (length == std::string_view::npos || length > kMaxLineBytes) {
      const bool too_long = rest.size() > kMaxLineBytes;
      if (!too_long && !(writer_is_gone && read_everything)) break;
      length = consumed = too_long ? CutBeforeCharacter(rest, kMaxLineBytes) : rest.size();
    }
    chunk.lines.push_back(
        {offset + static_cast<int64_t>(begin), ValidUtf8(rest.substr(0, length))});
    begin += consumed;
  }
  chunk.next_offset = offset + static_cast<int64_t>(begin);
  // An unfinished line waits for its writer, so the reader is at the end.
  chunk.at_end =
      read_everything && (begin == bytes.size() || bytes.find('\n', begin) == std::string::npos);
  return chunk;
}

std::string LastLogLines(const std::filesystem::path& path) {
  struct stat status {};
  const UniqueFd file = OpenForReading(path, status);
  if (!file) return "";
  const int64_t begin = std::max<int64_t>(0, status.st_size - int64_t{kErrorTailBytes});
  const std::string bytes = ReadAt(file.get(), begin, kErrorTailBytes);

  std::vector<std::string> lines;
  size_t end = bytes.size();
  while (lines.size() < kErrorTailLines && end > 0) {
    const size_t newline = bytes.rfind('\n', end - 1);
    const size_t start = newline == std::string::npos ? 0 : newline + 1;
    std::string line = ValidUtf8(std::string_view(bytes).substr(start, end - start));
    for (char& c : line) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = ' ';
    }
    if (line.find_first_not_of(' ') != std::string::npos) lines.push_back(std::move(line));
    if (newline == std::string::npos) break;
    end = newline;
  }
  std::string out;
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    if (!out.empty()) out += " | ";
    out += *line;
  }
  return out.substr(0, CutBeforeCharacter(out, kMaxErrorText));
}

bool EventTail::Read(const std::function<void(const ProgressEvent&)>& on_event) {
  struct stat status {};
  const UniqueFd file = OpenForReading(path_, status);
  if (!file) return false;
  // A power loss truncated the file: reading it again repeats only known events.
  if (offset_ > status.st_size) offset_ = 0;
  if (offset_ == status.st_size) return false;
  const std::string bytes = ReadAt(file.get(), offset_, kEventPieceBytes);

  size_t begin = 0;
  for (size_t newline; (newline = bytes.find('\n', begin)) != std::string::npos;
       begin = newline + 1) {
    const std::string_view line = std::string_view(bytes).substr(begin, newline - begin);
    if (!std::exchange(skipping_, false) && line.size() <= kMaxLineBytes) {
      if (const auto event = ParseProgressEvent(line)) on_event(*event);
    }
  }
  if (bytes.size() - begin > kMaxLineBytes) {
    skipping_ = true;
    begin = bytes.size();
  }
  offset_ += static_cast<int64_t>(begin);
  return bytes.size() == kEventPieceBytes;
}

bool IsBoundedJsonObject(std::string_view text) { return !ParseBoundedObject(text).is_discarded(); }

std::optional<ProgressEvent> ParseProgressEvent(std::string_view line) {
  const json object = ParseBoundedObject(line);
  if (object.is_discarded()) return std::nullopt;
  ProgressEvent event;
  event.kind = TextOf(object, "kind");
  if (event.kind.empty()) return std::nullopt;
  event.step = CountOf(object, "step");
  event.total_steps = CountOf(object, "total_steps");
  if (const auto value = object.find("value"); value != object.end() && value->is_number()) {
    event.value = value->get<double>();
  }
  event.message = TextOf(object, "message");
  return event;
}

JobResult ReadJobResult(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 && errno == ENOENT) return {};
  const UniqueFd file = OpenForReading(path, status);
  if (!file) return Invalid(path, "cannot be read");
  if (status.st_size > int64_t{kMaxResultBytes}) {
    return Invalid(path, "has " + std::to_string(status.st_size) + " bytes, more than " +
                             std::to_string(kMaxResultBytes));
  }
  const std::string text = ReadAt(file.get(), 0, kMaxResultBytes);
  json object = ParseBoundedObject(text);
  if (object.is_discarded()) return Invalid(path, "is not a JSON object");

  JobResult result;
  const std::string state = TextOf(object, "status");
  if (state == "succeeded") {
    result.state = JobResult::State::kSucceeded;
    object.erase("status");
    object.erase("error");
    result.result_json = object.dump();
  } else if (state == "cancelled") {
    result.state = JobResult::State::kCancelled;
  } else if (state == "failed") {
    result.state = JobResult::State::kFailed;
    const auto error = object.find("error");
    if (error != object.end() && error->is_object()) {
      result.error = {TextOf(*error, "message"), TextOf(*error, "code")};
    }
    if (result.error.message.empty()) result.error.message = "the job failed without a message";
    if (result.error.code.empty()) result.error.code = "failed";
  } else {
    return Invalid(
        path, "has an unknown status '" + state.substr(0, CutBeforeCharacter(state, 40)) + "'");
  }
  return result;
}

}  // namespace tandem::server
