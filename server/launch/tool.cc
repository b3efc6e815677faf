#include "server/launch/tool.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <system_error>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "server/jobs/clean_environment.h"
#include "server/jobs/unique_fd.h"

namespace tandem::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMaxOutputBytes = 1 << 20;

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

Pipe MakePipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kUnavailable,
                "could not make a pipe: " + std::generic_category().message(errno));
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void DoNotBlock(const UniqueFd& fd) {
  TANDEM_CHECK(::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK) == 0);
}

// The tools that log in elsewhere may need the keys of a cloud for that.
EnvironmentReader ReaderOf(std::string_view tool) {
  constexpr std::string_view kLogIn[] = {"kubectl", "ssh", "scp"};
  return std::find(std::begin(kLogIn), std::end(kLogIn), tool) != std::end(kLogIn)
             ? EnvironmentReader::kTool
             : EnvironmentReader::kScheduler;
}

// Owns the attributes and file actions of posix_spawn.
class ToolSpawn {
 public:
  ToolSpawn() {
    TANDEM_CHECK(::posix_spawnattr_init(&attributes_) == 0);
    TANDEM_CHECK(::posix_spawn_file_actions_init(&actions_) == 0);
    sigset_t all;
    sigset_t none;
    ::sigfillset(&all);
    ::sigemptyset(&none);
    TANDEM_CHECK(::posix_spawnattr_setsigdefault(&attributes_, &all) == 0);
    TANDEM_CHECK(::posix_spawnattr_setsigmask(&attributes_, &none) == 0);
    // A group of its own, so that a timeout ends the tool's helpers too.
    TANDEM_CHECK(::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF |
                                                              POSIX_SPAWN_SETSIGMASK |
                                                              POSIX_SPAWN_SETPGROUP) == 0);
  }
  ~ToolSpawn() {
    ::posix_spawnattr_destroy(&attributes_);
    ::posix_spawn_file_actions_destroy(&actions_);
  }
  ToolSpawn(const ToolSpawn&) = delete;
  ToolSpawn& operator=(const ToolSpawn&) = delete;

  void Connect(const UniqueFd& fd, int number) {
    TANDEM_CHECK(::posix_spawn_file_actions_adddup2(&actions_, fd.get(), number) == 0);
  }

  pid_t Start(const std::vector<std::string>& argv) {
    TANDEM_CHECK(::posix_spawn_file_actions_addclosefrom_np(&actions_, 3) == 0);
    std::vector<std::string> words = argv;
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    std::vector<char*> environment = CleanEnvironment(ReaderOf(argv[0]));
    pid_t pid = 0;
    const int failure = ::posix_spawnp(&pid, pointers[0], &actions_, &attributes_, pointers.data(),
                                       environment.data());
    if (failure == 0) return pid;
    const ErrorCode code = failure == ENOENT                        ? ErrorCode::kNotFound
                           : failure == EAGAIN || failure == ENOMEM ? ErrorCode::kUnavailable
                                                                    : ErrorCode::kIo;
    throw Error(code, "could not start " + argv[0] + ": " +
                          (failure == ENOENT ? std::string("it is not installed or not in PATH")
                                             : std::generic_category().message(failure)));
  }

 private:
  posix_spawnattr_t attributes_{};
  posix_spawn_file_actions_t actions_{};
};

// A tool in progress. Its destructor ends what is left of it.
class RunningTool {
 public:
  explicit RunningTool(const std::vector<std::string>& argv)
      : in_(MakePipe()), out_(MakePipe()), error_(MakePipe()) {
    ToolSpawn spawn;
    // In this order no action overwrites a descriptor that a later one needs: all pipes have higher
    // numbers than 2, because the standard descriptors of a server are open.
    spawn.Connect(in_.read, 0);
    spawn.Connect(out_.write, 1);
    spawn.Connect(error_.write, 2);
    pid_ = spawn.Start(argv);
    in_.read = UniqueFd();
    out_.write = UniqueFd();
    error_.write = UniqueFd();
    DoNotBlock(in_.write);
    DoNotBlock(out_.read);
    DoNotBlock(error_.read);
  }
  ~RunningTool() {
    if (pid_ == 0) return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  RunningTool(const RunningTool&) = delete;
  RunningTool& operator=(const RunningTool&) = delete;

  // False: the time is over.
  bool Exchange(std::string_view input, Clock::time_point deadline, ToolResult& result) {
    while (out_.read || error_.read) {
      if (in_.write && input.empty()) in_.write = UniqueFd();
      std::array<pollfd, 3> fds = {{{out_.read.get(), POLLIN, 0},
                                    {error_.read.get(), POLLIN, 0},
                                    {in_.write.get(), POLLOUT, 0}}};
      if (!Wait(fds, deadline)) return false;
      if (fds[0].revents != 0) Read(out_.read, result.out);
      if (fds[1].revents != 0) Read(error_.read, result.error);
      if (fds[2].revents != 0) Write(input);
    }
    return true;
  }

  // False: the time is over. A tool may close its output and work on.
  bool Join(Clock::time_point deadline, ToolResult& result) {
    while (true) {
      int status = 0;
      const pid_t ended = ::waitpid(pid_, &status, WNOHANG);
      if (ended == pid_) {
        pid_ = 0;
        result.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        return true;
      }
      if (Clock::now() >= deadline) return false;
      ::poll(nullptr, 0, 2);
    }
  }

 private:
  static bool Wait(std::array<pollfd, 3>& fds, Clock::time_point deadline) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    return ::poll(fds.data(), fds.size(), static_cast<int>(left.count())) != 0;
  }
  static void Read(UniqueFd& fd, std::string& text) {
    std::array<char, 16384> buffer{};
    const ssize_t bytes = ::read(fd.get(), buffer.data(), buffer.size());
    if (bytes > 0) {
      // What exceeds the limit is read and dropped, so that the tool can end.
      const size_t room = kMaxOutputBytes - std::min(kMaxOutputBytes, text.size());
      text.append(buffer.data(), std::min(room, static_cast<size_t>(bytes)));
    } else if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) {
      fd = UniqueFd();
    }
  }
  void Write(std::string_view& input) {
    const ssize_t bytes = ::write(in_.write.get(), input.data(), input.size());
    if (bytes > 0) input.remove_prefix(static_cast<size_t>(bytes));
    if (bytes < 0 && errno != EAGAIN && errno != EINTR) in_.write = UniqueFd();
  }

  Pipe in_;
  Pipe out_;
  Pipe error_;
  pid_t pid_ = 0;
};

}  // namespace

std::string ToolResult::Reason() const {
  const std::string& text = error.empty() ? out : error;
  const std::string line = text.substr(0, text.find('\n'));
  return line.empty() ? "exit code " + std::to_string(code) : line.substr(0, 500);
}

ToolResult RunTool(const std::vector<std::string>& argv, std::string_view input,
                   std::chrono::milliseconds timeout) {
  TANDEM_CHECK(!argv.empty());
  const Clock::time_point deadline = Clock::now() + timeout;
  // A tool that ends without reading its input must not end us.
  ::signal(SIGPIPE, SIG_IGN);
  RunningTool tool(argv);
  ToolResult result;
  if (tool.Exchange(input, deadline, result) && tool.Join(deadline, result)) return result;
  throw Error(ErrorCode::kUnavailable,
              argv[0] + " did not end within " + std::to_string(timeout.count()) + " ms");
}

}  // namespace tandem::server
