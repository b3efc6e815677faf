#include "engine/base/log_queue.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <utility>

#include "engine/base/thread_name.h"

namespace tandem {
namespace {

// Poll interval for a blocked descriptor. Short, so that Run notices closing soon.
constexpr int kPollMs = 20;

// Threads inherit the mask: only threads that wait for signals get them.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

LogQueue::LogQueue(Options options)
    : options_(std::move(options)), owner_(getpid()), fd_(options_.fd) {
  OpenForWriting();
  waiting_.reserve(options_.max_bytes);
  const AllSignalsBlocked blocked;
  thread_ = std::make_unique<std::thread>([this] {
    NameThisThread("tandem-log");
    Run();
  });
}

LogQueue::~LogQueue() {
  if (getpid() == owner_) {
    {
      const std::lock_guard lock(mutex_);
      is_closing_ = true;
      deadline_ = std::chrono::steady_clock::now() + options_.last_words;
    }
    changed_.notify_all();
    thread_->join();
  } else {
    static_cast<void>(thread_.release());  // belongs to the parent; not joinable here
  }
  if (owns_fd_) close(fd_);
}

// Writes must not block, but O_NONBLOCK would affect every program that shares the open file. So
// pipes and terminals are opened a second time. Where that fails, WriteSome asks for room before
// each write. Files never block, and sockets take a flag per call.
void LogQueue::OpenForWriting() {
  struct stat status {};
  if (fstat(options_.fd, &status) != 0) return;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::kSocket;
  if (!S_ISFIFO(status.st_mode) && !S_ISCHR(status.st_mode)) return;
  const std::string path = "/proc/self/fd/" + std::to_string(options_.fd);
  const int fd = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) {
    kind_ = Kind::kMayBlock;
    return;
  }
  fd_ = fd;
  owns_fd_ = true;
}

ssize_t LogQueue::WriteSome(std::string_view text) const {
  if (kind_ == Kind::kSocket) {
    return send(fd_, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (kind_ == Kind::kMayBlock) {
    // A pipe that is ready has room for PIPE_BUF bytes.
    pollfd asked{fd_, POLLOUT, 0};
    if (poll(&asked, 1, 0) == 0) {
      errno = EAGAIN;
      return -1;
    }
    text = text.substr(0, PIPE_BUF);
  }
  return write(fd_, text.data(), text.size());
}

void LogQueue::Push(std::string_view line) {
  if (getpid() != owner_) {
    WriteSome(line);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() + line.size() > options_.max_bytes) {
      ++n_dropped_;
      return;
    }
    waiting_.append(line);
  }
  changed_.notify_all();
}

bool LogQueue::Flush(std::chrono::milliseconds timeout) {
  if (getpid() != owner_) return true;
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, timeout, [&] { return waiting_.empty() && !is_writing_; });
}

uint64_t LogQueue::n_dropped() const {
  const std::lock_guard lock(mutex_);
  return n_dropped_;
}

void LogQueue::Run() {
  std::string text;
  text.reserve(options_.max_bytes);
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      is_writing_ = false;
      if (waiting_.empty()) changed_.notify_all();
      changed_.wait(lock, [&] { return is_closing_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      text.swap(waiting_);
      is_writing_ = true;
    }
    bool is_open = true;
    const auto write = [&] {
      is_open = WriteAll(text);
      if (is_open) Report();
    };
    if (options_.around_write) {
      options_.around_write(write);
    } else {
      write();
    }
    if (!is_open) return;
    text.clear();
  }
}

bool LogQueue::WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = WriteSome(text);
    if (n > 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (n < 0 && errno == EINTR) {
      continue;
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (IsLate()) return false;
      pollfd asked{fd_, POLLOUT, 0};
      poll(&asked, 1, kPollMs);
    } else {
      return true;  // drops the text: a closed pipe or a full disk
    }
  }
  return true;
}

bool LogQueue::IsLate() const {
  const std::lock_guard lock(mutex_);
  return is_closing_ && std::chrono::steady_clock::now() >= deadline_;
}

// Runs after the reader has taken every line that was not dropped.
void LogQueue::Report() {
  uint64_t n_new = 0;
  {
    const std::lock_guard lock(mutex_);
    n_new = n_dropped_ - std::exchange(n_reported_, n_dropped_);
  }
  if (n_new > 0 && options_.report) WriteAll(options_.report(n_new));
}

}  // namespace tandem
