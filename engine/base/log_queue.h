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

// Lines on their way to a descriptor, normally standard error. Push never waits: a thread of the
// queue writes, and lines beyond the bound are dropped and counted. Once the reader catches up, a
// line says how many were dropped. Any thread may push.
//
// A child of fork has no such thread: its lines are written at once, or dropped where that would
// block.
class LogQueue {
 public:
  struct Options {
    int fd = 2;                          // borrowed
    size_t max_bytes = size_t{1} << 20;  // of lines that wait; allocated once
    // How long the destructor waits for a reader of what is left.
    std::chrono::milliseconds last_words{1000};
    // The line that reports drops, with its line feed.
    std::function<std::string(uint64_t n_dropped)> report = {};
  };
  explicit LogQueue(Options options);
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  // Adds a whole line, its line feed included. Never blocks, allocates nothing.
  void Push(std::string_view line);
  // Waits until everything pushed so far is written, or the time is over: then false.
  bool Flush(std::chrono::milliseconds timeout);
  uint64_t n_dropped() const;

 private:
  enum class Kind { kPlain, kSocket };

  void OpenForWriting();
  void Run();
  // False: the descriptor takes nothing, and the time to wait for it is over.
  bool WriteAll(std::string_view text);
  ssize_t WriteSome(std::string_view text) const;
  bool IsLate() const;
  void Report();

  const Options options_;
  const pid_t owner_;
  int fd_;  // options_.fd, or a non-blocking opening of the same pipe or terminal
  bool owns_fd_ = false;
  Kind kind_ = Kind::kPlain;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::string waiting_;
  bool is_writing_ = false;
  bool is_closing_ = false;
  std::chrono::steady_clock::time_point deadline_;  // valid with is_closing_
  uint64_t n_dropped_ = 0;
  uint64_t n_reported_ = 0;  // of those
  std::unique_ptr<std::thread> thread_;
};

}  // namespace tandem
