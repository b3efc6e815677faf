#include "server/terminal/line_history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxFileBytes = size_t{64} << 20;
// Longer texts are not written: the file stays small.
constexpr size_t kMaxEntryBytes = size_t{32} << 10;

std::string LineOf(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A new or existing file of this user, which nobody else can read.
engine::FileDescriptor OpenPrivate(const fs::path& file) {
  engine::FileDescriptor opened(
      open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (opened.get() < 0) engine::ThrowSystemError("open", file, errno);
  struct stat status {};
  if (fstat(opened.get(), &status) != 0) engine::ThrowSystemError("inspect", file, errno);
  if (!S_ISREG(status.st_mode) || status.st_uid != geteuid()) {
    throw Error(ErrorCode::kPermissionDenied,
                file.string() + " is not a regular file of this user");
  }
  if ((status.st_mode & 077) != 0 && fchmod(opened.get(), 0600) != 0) {
    engine::ThrowSystemError("restrict", file, errno);
  }
  return opened;
}

void WriteText(const engine::FileDescriptor& file, const std::string& text, const fs::path& path) {
  engine::WriteAll(file, std::as_bytes(std::span(text)), path);
}

}  // namespace

LineHistory::LineHistory(fs::path file) : file_(std::move(file)) {
  if (file_.empty()) return;
  const auto error = ErrorOf([&] {
    std::error_code failed;
    if (fs::create_directories(file_.parent_path(), failed)) {
      fs::permissions(file_.parent_path(), fs::perms::owner_all, failed);
    }
    OpenPrivate(file_);
    Read();
  });
  if (!error) return;
  fault_ = error->what();
  file_.clear();
  entries_.clear();
}

void LineHistory::Read() {
  const std::string text = engine::ReadWholeFile(file_, kMaxFileBytes);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
    if (line.is_string()) entries_.push_back(line.get<std::string>());
    begin = end + 1;
  }
  if (entries_.size() <= kMaxEntries) return;
  const bool is_long = entries_.size() > 2 * kMaxEntries;
  entries_.erase(entries_.begin(), entries_.end() - static_cast<ptrdiff_t>(kMaxEntries));
  if (is_long) Rewrite();
}

// Another process may append between the read and this write: its entry is lost, which is harmless.
void LineHistory::Rewrite() {
  std::string text;
  for (const std::string& entry : entries_) text += LineOf(entry);
  const fs::path temporary = file_.string() + ".tmp-" + std::to_string(getpid());
  WriteText(OpenPrivate(temporary), text, temporary);
  fs::rename(temporary, file_);
}

void LineHistory::Add(const std::string& text) {
  if (text.empty() || (!entries_.empty() && entries_.back() == text)) return;
  entries_.push_back(text);
  if (entries_.size() > kMaxEntries) entries_.erase(entries_.begin());
  if (!file_.empty() && text.size() <= kMaxEntryBytes) Append(text);
}

void LineHistory::Append(const std::string& text) {
  // A full disk costs the entry, not the session.
  const auto error = ErrorOf([&] { WriteText(OpenPrivate(file_), LineOf(text), file_); });
  if (!error) return;
  fault_ = error->what();
  file_.clear();
}

fs::path DefaultHistoryFile() {
  if (const char* xdg = std::getenv("XDG_STATE_HOME"); xdg != nullptr && *xdg != '\0') {
    return fs::path(xdg) / "tandem" / "history";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return fs::path(home) / ".local" / "state" / "tandem" / "history";
  }
  return {};
}

}  // namespace tandem::server
