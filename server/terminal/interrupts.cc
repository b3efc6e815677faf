#include "server/terminal/interrupts.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "engine/base/error.h"
#include "engine/base/thread_name.h"
#include "server/terminal/terminal_mode.h"

namespace tandem::server {
namespace {

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal_number);
  return signals;
}

int NewSignalDescriptor() {
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

}  // namespace

Interrupts::Interrupts() : signals_(NewSignalDescriptor()), end_(eventfd(0, EFD_CLOEXEC)) {
  if (signals_.get() < 0 || end_.get() < 0) {
    throw Error(ErrorCode::kUnavailable, "no descriptor is left for signals");
  }
  thread_ = std::thread([this] {
    NameThisThread("tandem-signals");
    Run();
  });
}

Interrupts::~Interrupts() {
  eventfd_write(end_.get(), 1);
  thread_.join();
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

void Interrupts::Run() {
  for (;;) {
    std::array<pollfd, 2> waited{{{signals_.get(), POLLIN, 0}, {end_.get(), POLLIN, 0}}};
    if (poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) return;
    if (waited[1].revents != 0) return;
    if (waited[0].revents == 0) continue;
    signalfd_siginfo info{};
    if (read(signals_.get(), &info, sizeof info) == sizeof info) {
      OnSignal(static_cast<int>(info.ssi_signo));
    }
  }
}

void Interrupts::OnSignal(int signal_number) {
  const std::lock_guard lock(mutex_);
  if (signal_number == SIGINT && work_ && work_->request_stop()) return;
  RestoreTerminal();
  _exit(128 + signal_number);
}

Interrupts::Work::Work(Interrupts& interrupts) : interrupts_(interrupts) {
  const std::lock_guard lock(interrupts_.mutex_);
  interrupts_.work_ = source_;
}

Interrupts::Work::~Work() {
  const std::lock_guard lock(interrupts_.mutex_);
  interrupts_.work_.reset();
}

}  // namespace tandem::server
