#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/job_context.h"
#include "server/jobs/job.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {

// The files of a job's directory, as the server reads and writes them. What a child wrote is
// foreign: every read is bounded, links and pipes are refused, and nothing here throws because of
// content. Any thread, except where a class says otherwise.

// Longer lines are cut for readers of the log, and skipped among the events.
inline constexpr size_t kMaxLineBytes = 64 * 1024;
inline constexpr size_t kMaxResultBytes = 1024 * 1024;

// "could not <what> <path>: <errno's text>" as kIo; kUnavailable (insufficient_storage) when the
// disk is full.
[[noreturn]] void ThrowIo(const char* what, const std::filesystem::path& path, int error_number);

// Temporary name, fsync, rename, fsync of the directory. Throws as ThrowIo.
void WriteJobFile(const std::filesystem::path& path, std::string_view text);
// Adds one line to a log that a child may be appending to as well; failures are ignored, since a
// full disk must not stop the bookkeeping.
void AppendLogLine(const std::filesystem::path& path, const std::string& line);

// Removes what the processes of a job have left unfinished: names with ".tmp-" in them, here and
// below. Links are not followed; failures are ignored.
void RemoveUnfinished(const std::filesystem::path& dir);

// In the directory of a job whose model has been deleted: it is not published again.
inline constexpr const char* kModelDeletedFile = "model_deleted";

// Locks `path`, creating it; nullopt if another open file holds the lock. Throws kIo.
std::optional<UniqueFd> TryLockFile(const std::filesystem::path& path);

// The size of a regular file; 0 if there is none.
int64_t FileBytes(const std::filesystem::path& path);

// Invalid UTF-8 becomes U+FFFD, so that any line can travel in JSON.
std::string ValidUtf8(std::string_view bytes);

struct LogLine {
  int64_t offset = 0;  // bytes from the beginning of the file
  std::string text;    // without its newline; valid UTF-8
};

struct LogChunk {
  std::vector<LogLine> lines;
  int64_t next_offset = 0;  // where to go on
  bool at_end = false;      // nothing beyond next_offset (yet)
};

// Whole lines from `offset`, about `max_bytes` of them and at least one if there is one. A line
// without its newline is given only where `writer_is_gone`; a line beyond kMaxLineBytes comes in
// pieces.
LogChunk ReadLogLines(const std::filesystem::path& path, int64_t offset, size_t max_bytes,
                      bool writer_is_gone);

// The last few lines in one, for an error message; empty if there is no log.
std::string LastLogLines(const std::filesystem::path& path);

// Follows events.jsonl. One thread.
class EventTail {
 public:
  EventTail(std::filesystem::path path, int64_t offset) : path_(std::move(path)), offset_(offset) {}

  // Reads one bounded piece and calls `on_event` for each well-formed event in it. True if there is
  // more to read at once.
  bool Read(const std::function<void(const ProgressEvent&)>& on_event);

  // The first byte not consumed yet.
  int64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  int64_t offset_;
  bool skipping_ = false;  // inside a line that is too long
};

// A JSON object, nested no deeper than 64.
bool IsBoundedJsonObject(std::string_view text);

// One line of events.jsonl; nullopt if it is anything else.
std::optional<ProgressEvent> ParseProgressEvent(std::string_view line);

// What result.json says.
struct JobResult {
  enum class State { kMissing, kInvalid, kSucceeded, kFailed, kCancelled };
  State state = State::kMissing;
  JobError error;           // of kFailed; of kInvalid: what is wrong with the file
  std::string result_json;  // of kSucceeded: the object less "status" and "error"
};
JobResult ReadJobResult(const std::filesystem::path& path);

}  // namespace tandem::server
