#pragma once

#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "engine/io/posix_file.h"

namespace tandem::server {

// Turns Ctrl-C into a stop request for the work at hand. Blocks SIGINT, SIGTERM and SIGHUP in the
// calling thread, so make it before any other thread. Without work at hand, and for a second
// SIGINT, it restores the terminal and ends the process with 128 + the signal, as a shell reports
// it.
class Interrupts {
 public:
  Interrupts();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // While it lives, SIGINT requests a stop.
  class Work {
   public:
    explicit Work(Interrupts& interrupts);
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    std::stop_token token() const { return source_.get_token(); }
    bool is_stopped() const { return source_.stop_requested(); }

   private:
    Interrupts& interrupts_;
    std::stop_source source_;
  };

 private:
  void Run();
  void OnSignal(int signal_number);

  engine::FileDescriptor signals_;
  engine::FileDescriptor end_;
  std::mutex mutex_;  // guards work_
  std::optional<std::stop_source> work_;
  std::thread thread_;
};

}  // namespace tandem::server
