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

// The server's access to the files of a job's directory. Files written by a child are untrusted:
// every read is bounded, links and pipes are refused, and no content makes a function throw. Any
// thread, unless a class says otherwise.

// Longer lines are split for readers of the log, and skipped in events.jsonl.
inline constexpr size_t kMaxLineBytes = 64 * 1024;
inline constexpr size_t kMaxResultBytes = 1024 * 1024;

// Throws "could not <what> <path>: <errno's text>" as kIo, or as kUnavailable (reason
// insufficient_storage) if the disk is full.
[[noreturn]] void ThrowIo(const char* what, const std::filesystem::path& path, int error_number);

// Writes atomically: temporary name, fsync, rename, fsync of the directory. Throws as ThrowIo.
void WriteJobFile(const std::filesystem::path& path, std::string_view text);
// Appends one line to a log that a child may append to as well. Ignores failures, because a full
// disk must not stop the bookkeeping.
void AppendLogLine(const std::filesystem::path& path, const std::string& line);

// Removes the unfinished files of a job's processes, in `dir` and below: names with ".tmp-", and
// names that begin with ".trash-". Does not follow links; ignores failures.
void RemoveUnfinished(const std::filesystem::path& dir);

// Marks the directory of a job whose model was deleted: the model is not published again.
inline constexpr const char* kModelDeletedFile = "model_deleted";

// Holds a URL in the directory of a training job: the run keeps its checkpoints there too.
inline constexpr const char* kMirrorFile = "mirror";

// Whether a file system without locks (Lustre, some NFS mounts) is an error.
enum class WithoutLocks {
  kRefuse,    // throws kUnsupported
  kContinue,  // opens the file unlocked, and warns once per process (files_not_locked)
};

// Locks `path` (flock), creating it if needed; nullopt if another open file holds the lock. Throws
// kIo.
std::optional<UniqueFd> TryLockFile(const std::filesystem::path& path,
                                    WithoutLocks without = WithoutLocks::kRefuse);

// The size of a regular file; 0 if it does not exist.
int64_t FileBytes(const std::filesystem::path& path);

// Replaces invalid UTF-8 by U+FFFD, so that JSON can carry any line.
std::string ValidUtf8(std::string_view bytes);

struct LogLine {
  int64_t offset = 0;  // bytes from the start of the file
  std::string text;    // without its newline; valid UTF-8
};

struct LogChunk {
  std::vector<LogLine> lines;
  int64_t next_offset = 0;  // start of the next read
  bool at_end = false;      // no further line exists yet
};

// Reads whole lines from `offset`: about `max_bytes`, and at least one line if one exists. An
// unterminated last line is included only if `writer_is_gone`. A line longer than kMaxLineBytes is
// split.
LogChunk ReadLogLines(const std::filesystem::path& path, int64_t offset, size_t max_bytes,
                      bool writer_is_gone);

// The last few lines joined into one, for an error message; empty if there is no log.
std::string LastLogLines(const std::filesystem::path& path);

// Follows events.jsonl. One thread.
class EventTail {
 public:
  EventTail(std::filesystem::path path, int64_t offset) : path_(std::move(path)), offset_(offset) {}

  // Reads one bounded piece and calls `on_event` for each well-formed event in it. Returns true if
  // the file holds more.
  bool Read(const std::function<void(const ProgressEvent&)>& on_event);

  // The first unread byte.
  int64_t offset() const { return offset_; }

 private:
  std::filesystem::path path_;
  int64_t offset_;
  bool skipping_ = false;  // inside an overlong line
};

// Whether the text is a JSON object of at most 64 levels.
bool IsBoundedJsonObject(std::string_view text);

// Parses one line of events.jsonl; nullopt for anything else.
std::optional<ProgressEvent> ParseProgressEvent(std::string_view line);

// The content of result.json.
struct JobResult {
  enum class State { kMissing, kInvalid, kSucceeded, kFailed, kCancelled };
  State state = State::kMissing;
  JobError error;           // of kFailed; for kInvalid: the fault of the file
  std::string result_json;  // of kSucceeded: the object without "status" and "error"
};
JobResult ReadJobResult(const std::filesystem::path& path);

}  // namespace tandem::server
