#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace tandem {

// Queue of log lines for a descriptor, normally standard error. Push never waits: the queue's own
// thread writes, and lines beyond the bound are dropped and counted. After the reader catches up, a
// line reports the number dropped. Any thread may push.
//
// A forked child has no such thread: Push writes at once, or drops the line when that would block.
class LogQueue {
 public:
  struct Options {
    int fd = 2;                          // borrowed
    size_t max_bytes = size_t{1} << 20;  // of waiting lines; allocated at start
    // Limit of the destructor's wait for the reader.
    std::chrono::milliseconds last_words{1000};
    // Returns the line that reports drops, with its line feed.
    std::function<std::string(uint64_t n_dropped)> report = {};
    // Calls its argument, which writes, on the queue's thread. A display on the same terminal makes
    // room for the lines. Empty: the queue writes at once.
    std::function<void(const std::function<void()>& write)> around_write = {};
  };
  explicit LogQueue(Options options);
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // Adds a whole line with its line feed. Never blocks and never allocates.
  void Push(std::string_view line);
  // Waits until every line pushed so far is written. Returns false on timeout.
  bool Flush(std::chrono::milliseconds timeout);
  uint64_t n_dropped() const;

 private:
  enum class Kind {
    kPlain,     // never blocks
    kSocket,    // a flag per call keeps it from blocking
    kMayBlock,  // a pipe or terminal that could not be opened again
  };

  void OpenForWriting();
  void Run();
  // Returns false when the descriptor still blocks after the deadline of closing.
  bool WriteAll(std::string_view text);
  ssize_t WriteSome(std::string_view text) const;
  bool IsLate() const;
  void Report();

  const Options options_;
  const pid_t owner_;
  int fd_;  // options_.fd, or its pipe or terminal opened again without blocking
  bool owns_fd_ = false;
  Kind kind_ = Kind::kPlain;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::string waiting_;
  bool is_writing_ = false;
  bool is_closing_ = false;
  std::chrono::steady_clock::time_point deadline_;  // valid with is_closing_
  uint64_t n_dropped_ = 0;
  uint64_t n_reported_ = 0;  // part of n_dropped_ already reported
  std::unique_ptr<std::thread> thread_;
};

}  // namespace tandem
