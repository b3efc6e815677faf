#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "server/jobs/unique_fd.h"

namespace tandem::server {

// Names one process of this machine for ever: a pid alone is soon another process.
struct ProcessIdentity {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot; field 22 of /proc/PID/stat
  std::string boot_id;
};

// nullopt if no such process is there, or only its remains.
std::optional<ProcessIdentity> IdentifyProcess(pid_t pid);
bool IsAlive(const ProcessIdentity& identity);

struct ExitStatus {
  enum class Kind {
    kCode,
    kSignal,
    kUnknown,  // it was not our child, so nobody told us
  };
  Kind kind = Kind::kUnknown;
  int value = 0;  // exit code or signal
};

// A job's process, started by this server or by the one before it. Owned by the supervisor thread.
//
// While a process works in a job's directory, DIR/run.lock is locked: the child inherits the
// descriptor (as number 3, and need not know of it). The lock begins before the process does and
// ends with it, so that not even a server killed between starting a child and writing down its pid
// can lead to two processes in one directory.
class ChildProcess {
 public:
  struct Command {
    std::filesystem::path program;
    std::vector<std::string> arguments;  // argv, the name included
    std::filesystem::path dir;           // holds run.lock
    std::filesystem::path log;           // standard output and error are appended here
    bool leads_group = true;             // false: it stays in ours, and ends with it
  };

  // Starts a process, in its own process group unless told otherwise, with no descriptor of ours
  // but those named above, default signal handling, and without the server's keys in its
  // environment. Throws kIo when the program cannot be started, kUnavailable when the system has no
  // room for it now, and kFailedPrecondition when another process holds run.lock.
  static ChildProcess Spawn(const Command& command);

  // The process that works in `dir`, whoever started it: the one `recorded` names if that one
  // lives, else whoever holds run.lock. nullopt if nobody works there.
  static std::optional<ChildProcess> Find(const std::filesystem::path& dir,
                                          const std::optional<ProcessIdentity>& recorded);

  // One that has ended, nobody knows how.
  static ChildProcess Ended();

  // nullopt while it runs; then always the same. Never waits.
  std::optional<ExitStatus> Poll();

  // Asks for an orderly end (SIGTERM, to the process alone).
  void Terminate();
  // Ends the whole process group at once.
  void Kill();

  // nullopt where another process holds the lock but cannot be seen (another pid namespace).
  const std::optional<ProcessIdentity>& identity() const { return identity_; }
  // Becomes readable when the process ends; -1 where the system has no such thing.
  int poll_fd() const { return pidfd_.get(); }

 private:
  ChildProcess() = default;
  explicit ChildProcess(std::optional<ProcessIdentity> identity);
  void Signal(int signal_number);

  std::optional<ProcessIdentity> identity_;
  std::filesystem::path lock_path_;  // where there is no identity
  UniqueFd pidfd_;
  std::optional<ExitStatus> exit_;
};

}  // namespace tandem::server
