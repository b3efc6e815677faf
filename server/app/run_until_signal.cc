#include <unistd.h>

#include <csignal>

#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/app/service_notify.h"

namespace tandem::server {

void BlockServerSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal_number);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails the write, not the process
}

void RunUntilSignal(App& app) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal_number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal_number);
  for (;;) {
    int received = 0;
    if (sigwait(&signals, &received) != 0) continue;
    if (received == SIGHUP) {
      NotifyReloading();
      app.Reload();
      NotifyService("READY=1");
      continue;
    }
    spdlog::info("stopping signal={}", received);
    NotifyService("STOPPING=1");
    // No thread waits for signals any more: the next one ends the process in its handler.
    std::signal(SIGTERM, [](int) { _exit(1); });
    std::signal(SIGINT, [](int) { _exit(1); });
    sigset_t ending;
    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
    app.Stop();
    return;
  }
}

}  // namespace tandem::server
