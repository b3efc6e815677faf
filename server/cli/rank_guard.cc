#include "server/cli/rank_guard.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "engine/base/error.h"
#include "server/jobs/exit_codes.h"

namespace tandem::server {
namespace {

volatile std::sig_atomic_t guarded_pid = 0;

void ForwardToRank(int signal) {
  const int saved = errno;
  if (guarded_pid > 0) kill(guarded_pid, signal);
  errno = saved;
}

constexpr int kForwarded[] = {SIGTERM, SIGINT, SIGUSR1};

}  // namespace

std::optional<int> GuardRank(int rank) {
  // A signal between fork and the handlers would end the parent alone.
  sigset_t signals;
  sigset_t before;
  sigemptyset(&signals);
  for (const int signal : kForwarded) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw Error(ErrorCode::kUnavailable, std::string("fork: ") + std::strerror(errno));
  }
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(kExitTryAgain);
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return std::nullopt;
  }
  guarded_pid = child;
  struct sigaction action {};
  action.sa_handler = ForwardToRank;
  for (const int signal : kForwarded) sigaction(signal, &action, nullptr);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return kExitFailed;
  }
  guarded_pid = 0;
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  std::fprintf(stderr,
               "tandem: rank %d died (%s); all ranks end, start the same command again to resume\n",
               rank, strsignal(WTERMSIG(status)));
  return kExitTryAgain;
}

}  // namespace tandem::server
