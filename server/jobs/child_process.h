#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/unique_fd.h"

namespace tandem::server {

// Identifies one process of this machine uniquely; the kernel reuses a pid alone.
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot; field 22 of /proc/PID/stat
  std::string boot_id;
};

// nullopt if there is no such process, or only a zombie.
std::optional<ProcessIdentity> IdentifyProcess(pid_t pid);
bool IsAlive(const ProcessIdentity& identity);

struct ExitStatus {
  enum class Kind {
    kCode,
    kSignal,
    kUnknown,  // the process was not our child, so its exit status is lost
  };
  Kind kind = Kind::kUnknown;
  int value = 0;  // exit code or signal
};

// A job's process, started by this server or by an earlier one. Owned by the supervisor thread.
//
// DIR/run.lock is locked while a process works in DIR: the child inherits the descriptor as number
// 3 and may ignore it. The lock is taken before the process starts and ends with it. So two
// processes never work in one directory, even if the server dies between starting a child and
// recording its pid.
class ChildProcess {
 public:
  struct Command {
    std::filesystem::path program;
    std::vector<std::string> arguments;  // argv, including argv[0]
    std::filesystem::path dir;           // holds run.lock
    std::filesystem::path log;           // standard output and error are appended here
    bool leads_group = true;             // false: the process stays in our group and ends with it
  };

  // Starts a process, by default in its own session and process group. It gets default signal
  // handling, no other descriptors of ours, and an environment without the server's keys. Throws
  // kIo if the program cannot be started, kUnavailable if the system lacks resources for it, and
  // kFailedPrecondition if another process holds run.lock.
  static ChildProcess Spawn(const Command& command);

  // The process that works in `dir`: the `recorded` one if it lives, otherwise the holder of
  // run.lock. nullopt if no process works there.
  static std::optional<ChildProcess> Find(const std::filesystem::path& dir,
                                          const std::optional<ProcessIdentity>& recorded);

  // A process that ended with an unknown status.
  static ChildProcess Ended();

  // nullopt while the process runs; afterwards always the same value. Never blocks.
  std::optional<ExitStatus> Poll();

  // Sends SIGTERM to the process, not to its group.
  void Terminate();
  // Sends SIGKILL to the whole process group.
  void Kill();

  // nullopt if another process holds the lock but is invisible (another pid namespace).
  const std::optional<ProcessIdentity>& identity() const { return identity_; }
  // Becomes readable when the process ends; -1 if pidfd is unavailable.
  int poll_fd() const { return pidfd_.get(); }

 private:
  ChildProcess() = default;
  explicit ChildProcess(std::optional<ProcessIdentity> identity);
  void Signal(int signal_number);

  std::optional<ProcessIdentity> identity_;
  std::filesystem::path lock_path_;  // used if identity_ is unset
  UniqueFd pidfd_;
  std::optional<ExitStatus> exit_;
};

}  // namespace tandem::server
