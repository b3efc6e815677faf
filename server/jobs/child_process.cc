#include "server/jobs/child_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <iterator>
#include <memory>
#include <string_view>
#include <system_error>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "server/jobs/clean_environment.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

constexpr int kLockFd = 3;  // number of run.lock's descriptor in the child

// Calls the kernel directly: <sys/pidfd.h> of glibc 2.36 declares its functions without C linkage.
int OpenPidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }
void SignalPidfd(int pidfd, int signal_number) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal_number, nullptr, 0);
}

// Files of /proc report no size, so this reads to the end; all of them are short.
std::string ReadProcFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

const std::string& BootId() {
  static const std::string id = [] {
    std::string text = ReadProcFile("/proc/sys/kernel/random/boot_id");
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }();
  return id;
}

struct ProcStat {
  char state = 0;
  uint64_t start_ticks = 0;
};

// Format (proc(5)): "pid (comm) state ppid …". comm may contain parentheses, so fields are counted
// from the last one.
std::optional<ProcStat> ReadProcStat(pid_t pid) {
  const std::string text = ReadProcFile("/proc/" + std::to_string(pid) + "/stat");
  size_t at = text.rfind(')');
  if (at == std::string::npos || at + 2 >= text.size()) return std::nullopt;
  at += 2;
  ProcStat stat;
  stat.state = text[at];
  for (int field = 3; field < 22; ++field) {
    at = text.find(' ', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  const auto [end, error] =
      std::from_chars(text.data() + at, text.data() + text.size(), stat.start_ticks);
  if (error != std::errc()) return std::nullopt;
  return stat;
}

bool SameFile(const std::string& link, const struct stat& wanted) {
  struct stat status {};
  return ::stat(link.c_str(), &status) == 0 && status.st_dev == wanted.st_dev &&
         status.st_ino == wanted.st_ino;
}

// A process that has `lock` open as descriptor 3, as every child of ours does. Prefers a group
// leader, because the other holders are its helpers.
std::optional<ProcessIdentity> FindLockHolder(const std::filesystem::path& lock) {
  struct stat wanted {};
  if (::stat(lock.c_str(), &wanted) != 0) return std::nullopt;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), &::closedir);
  if (!proc) return std::nullopt;
  std::optional<ProcessIdentity> helper;
  while (const dirent* entry = ::readdir(proc.get())) {
    const std::string_view name = entry->d_name;
    pid_t pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size() || pid == ::getpid()) continue;
    const std::string link = "/proc/" + std::string(name) + "/fd/" + std::to_string(kLockFd);
    if (!SameFile(link, wanted)) continue;
    const auto identity = IdentifyProcess(pid);
    if (identity && ::getpgid(pid) == pid) return identity;
    if (identity) helper = identity;
  }
  return helper;
}

// Owns the attributes and file actions of posix_spawn.
class SpawnSettings {
 public:
  SpawnSettings() {
    TANDEM_CHECK(::posix_spawnattr_init(&attributes_) == 0);
    TANDEM_CHECK(::posix_spawn_file_actions_init(&actions_) == 0);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  posix_spawnattr_t* attributes() { return &attributes_; }
  posix_spawn_file_actions_t* actions() { return &actions_; }

 private:
  posix_spawnattr_t attributes_;
  posix_spawn_file_actions_t actions_;
};

}  // namespace

std::optional<ProcessIdentity> IdentifyProcess(pid_t pid) {
  const auto stat = ReadProcStat(pid);
  if (!stat || stat->state == 'Z' || stat->state == 'X') return std::nullopt;
  return ProcessIdentity{pid, stat->start_ticks, BootId()};
}

bool IsAlive(const ProcessIdentity& identity) {
  if (identity.boot_id != BootId()) return false;
  const auto now = IdentifyProcess(identity.pid);
  return now && now->start_ticks == identity.start_ticks;
}

ChildProcess::ChildProcess(std::optional<ProcessIdentity> identity)
    : identity_(std::move(identity)) {
  // Can fail on an old kernel or in a sandbox; then only Poll notices the end.
  if (identity_) pidfd_ = UniqueFd(OpenPidfd(identity_->pid));
}

ChildProcess ChildProcess::Spawn(const Command& command) {
  const std::filesystem::path lock_path = command.dir / "run.lock";
  const std::optional<UniqueFd> lock = TryLockFile(lock_path, WithoutLocks::kContinue);
  if (!lock) {
    throw Error(ErrorCode::kFailedPrecondition,
                "another process uses " + command.dir.string() + " (it holds run.lock)");
  }

  SpawnSettings settings;
  sigset_t all;
  sigset_t none;
  ::sigfillset(&all);
  ::sigemptyset(&none);
  TANDEM_CHECK(::posix_spawnattr_setsigdefault(settings.attributes(), &all) == 0);
  TANDEM_CHECK(::posix_spawnattr_setsigmask(settings.attributes(), &none) == 0);
  // A session of its own also makes it a process group.
  const int flags = POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK |
                    (command.leads_group ? POSIX_SPAWN_SETSID : 0);
  TANDEM_CHECK(::posix_spawnattr_setflags(settings.attributes(), static_cast<short>(flags)) == 0);
  posix_spawn_file_actions_t* actions = settings.actions();
  // The lock first: the actions below may overwrite its own descriptor number.
  TANDEM_CHECK(::posix_spawn_file_actions_adddup2(actions, lock->get(), kLockFd) == 0);
  TANDEM_CHECK(::posix_spawn_file_actions_addopen(actions, 0, "/dev/null", O_RDONLY, 0) == 0);
  TANDEM_CHECK(::posix_spawn_file_actions_addopen(actions, 1, command.log.c_str(),
                                                  O_WRONLY | O_CREAT | O_APPEND, 0600) == 0);
  TANDEM_CHECK(::posix_spawn_file_actions_adddup2(actions, 1, 2) == 0);
  // Some libraries open sockets without close-on-exec. A job that inherits a client's socket would
  // keep that connection open.
  TANDEM_CHECK(::posix_spawn_file_actions_addclosefrom_np(actions, kLockFd + 1) == 0);

  std::vector<std::string> arguments = command.arguments;
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<char*> environment = CleanEnvironment(EnvironmentReader::kJob);

  pid_t pid = 0;
  const int error_number = ::posix_spawn(&pid, command.program.c_str(), actions,
                                         settings.attributes(), argv.data(), environment.data());
  if (error_number != 0) {
    const bool no_room = error_number == EAGAIN || error_number == ENOMEM;
    throw Error(no_room ? ErrorCode::kUnavailable : ErrorCode::kIo,
                "could not start " + command.program.string() + ": " +
                    std::generic_category().message(error_number));
  }
  // The process may have ended already; until Poll reaps it, /proc still shows its start time.
  const auto stat = ReadProcStat(pid);
  return ChildProcess(ProcessIdentity{pid, stat ? stat->start_ticks : 0, BootId()});
}

std::optional<ChildProcess> ChildProcess::Find(const std::filesystem::path& dir,
                                               const std::optional<ProcessIdentity>& recorded) {
  if (recorded && IsAlive(*recorded)) return ChildProcess(recorded);
  const std::filesystem::path lock_path = dir / "run.lock";
  if (TryLockFile(lock_path, WithoutLocks::kContinue)) return std::nullopt;
  ChildProcess child(FindLockHolder(lock_path));
  child.lock_path_ = lock_path;
  return child;
}

ChildProcess ChildProcess::Ended() {
  ChildProcess child;
  child.exit_ = ExitStatus{};
  return child;
}

std::optional<ExitStatus> ChildProcess::Poll() {
  if (exit_) return exit_;
  if (!identity_) {
    if (TryLockFile(lock_path_, WithoutLocks::kContinue)) exit_ = ExitStatus{};
    return exit_;
  }
  // Only our own child can be waited for, and only while the pid still belongs to it.
  const auto stat = ReadProcStat(identity_->pid);
  if (!stat || stat->start_ticks != identity_->start_ticks) return exit_ = ExitStatus{};
  siginfo_t info{};
  const int waited =
      ::waitid(P_PID, static_cast<id_t>(identity_->pid), &info, WEXITED | WNOHANG | WNOWAIT);
  if (waited == 0 && info.si_pid == identity_->pid) {
    // The helpers of the job end with it. The signal precedes waitpid: until the zombie is reaped,
    // no other group can have this number.
    ::kill(-identity_->pid, SIGKILL);
    int status = 0;
    ::waitpid(identity_->pid, &status, 0);
    exit_ = WIFSIGNALED(status) ? ExitStatus{ExitStatus::Kind::kSignal, WTERMSIG(status)}
                                : ExitStatus{ExitStatus::Kind::kCode, WEXITSTATUS(status)};
  } else if (waited < 0 && (stat->state == 'Z' || stat->state == 'X')) {
    exit_ = ExitStatus{};
  }
  return exit_;
}

void ChildProcess::Terminate() { Signal(SIGTERM); }

void ChildProcess::Kill() {
  if (exit_ || !identity_) return;
  // A group outlives its leader. While the leader exists, even as a zombie, no other process group
  // can have its number.
  const auto stat = ReadProcStat(identity_->pid);
  if (stat && stat->start_ticks == identity_->start_ticks) ::kill(-identity_->pid, SIGKILL);
  Signal(SIGKILL);
}

void ChildProcess::Signal(int signal_number) {
  if (exit_ || !identity_) return;
  if (pidfd_) {
    SignalPidfd(pidfd_.get(), signal_number);
  } else if (IsAlive(*identity_)) {
    ::kill(identity_->pid, signal_number);
  }
}

}  // namespace tandem::server
