#include "server/cli/job_child.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/thread_name.h"
#include "engine/base/unix_time.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/jobs/process_lock.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

volatile std::sig_atomic_t stop_write_end = -1;

void WakeWatcher(char byte) {
  const int saved = errno;
  [[maybe_unused]] const ssize_t written = write(stop_write_end, &byte, 1);
  errno = saved;
}

fs::path ResultFile(const fs::path& dir) { return dir / "result.json"; }

std::string_view NameOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_spec";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kFailedPrecondition:
      return "diverged";
    case ErrorCode::kUnavailable:
    case ErrorCode::kResourceExhausted:
      return "out_of_memory";
    case ErrorCode::kDataLoss:
      return "bad_data";
    case ErrorCode::kIo:
      return "io_error";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    default:
      return "failed";
  }
}

}  // namespace

struct StopOnSignal::OldHandlers {
  struct sigaction term {};
  struct sigaction interrupt {};
  struct sigaction user {};
};

StopOnSignal::StopOnSignal() : old_(std::make_unique<OldHandlers>()) {
  if (pipe2(ends_.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::kUnavailable, std::string("pipe: ") + std::strerror(errno));
  }
  stop_write_end = ends_[1];
  struct sigaction action {};
  action.sa_handler = [](int) { WakeWatcher('s'); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &old_->term);
  sigaction(SIGINT, &action, &old_->interrupt);
  sigaction(SIGUSR1, &action, &old_->user);
  watcher_ = std::thread([this] {
    NameThisThread("tandem-signals");
    char byte = 0;
    while (read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    if (byte == 's') stop_.request_stop();
  });
}

StopOnSignal::~StopOnSignal() {
  sigaction(SIGTERM, &old_->term, nullptr);
  sigaction(SIGINT, &old_->interrupt, nullptr);
  sigaction(SIGUSR1, &old_->user, nullptr);
  WakeWatcher('e');
  watcher_.join();
  stop_write_end = -1;
  close(ends_[0]);
  close(ends_[1]);
}

void LowerPriority(int64_t memory_max_bytes) {
  const sched_param parameters{};
  sched_setscheduler(0, SCHED_IDLE, &parameters);
  // Linux shares the processor among sessions first (autogroup). An idle process of a busy session
  // would take that session's whole share, so the job's own session gets the smallest one.
  if (getsid(0) == getpid()) std::ofstream("/proc/self/autogroup") << "19\n";
  std::ofstream("/proc/self/oom_score_adj") << "1000\n";
  if (memory_max_bytes <= 0) return;
  const auto bytes = static_cast<rlim_t>(memory_max_bytes);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) {
    throw Error(ErrorCode::kUnavailable, std::string("setrlimit: ") + std::strerror(errno));
  }
}

EventLog::EventLog(const fs::path& dir, const ShownProgress* shown)
    : path_(dir / "events.jsonl"), shown_(shown) {
  // An earlier run that was killed, or a power loss, may have left half a line.
  std::ifstream old(path_, std::ios::binary | std::ios::ate);
  bool has_half_line = false;
  if (old && old.tellg() > 0) {
    old.seekg(-1, std::ios::end);
    has_half_line = old.get() != '\n';
  }
  file_.open(path_, std::ios::app);
  if (has_half_line) file_ << '\n' << std::flush;
}

void EventLog::Write(const ProgressEvent& event) {
  file_.clear();  // after a full disk, write again once there is room
  ordered_json line = {{"unix_ms", UnixNowMs()}, {"kind", event.kind},
                       {"step", event.step},     {"total_steps", event.total_steps},
                       {"value", event.value},   {"message", event.message}};
  if (event.bytes_per_s > 0) {
    line["mb_per_s"] = std::round(event.bytes_per_s / 1e5) / 10;
    line["seconds_left"] = std::round(event.seconds_left * 10) / 10;
  }
  file_ << line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << '\n' << std::flush;
  // Step lines have no prefix, so that tools for MaxText's log recognise them.
  const std::string prefix = event.kind == "step" ? "" : event.kind + ": ";
  Print([&] {
    std::printf("%s%s\n", prefix.c_str(), event.message.c_str());
    std::fflush(stdout);
  });
  if (event.kind == "checkpoint") Sync();
}

void EventLog::Print(const std::function<void()>& print) const {
  if (shown_ != nullptr) return shown_->Print(print);
  print();
}

// A run that resumes from the checkpoint does not report the earlier events again.
void EventLog::Sync() {
  if (const auto error = ErrorOf([&] { engine::SyncPath(path_); })) {
    Print([&] { std::printf("warning: %s\n", error->what()); });
  }
}

void WriteResult(const fs::path& dir, const ordered_json& result) {
  engine::WriteFileAtomically(ResultFile(dir), result.dump(2) + "\n");
}

void RemoveResult(const fs::path& dir) { fs::remove(ResultFile(dir)); }

OpenJob::OpenJob(const fs::path& dir, const ShownProgress* shown) : events_(dir, shown) {
  RemoveResult(dir);
  context_.dir = dir;
  context_.cache_dir = CacheDir();
  context_.stop = stop_.token();
  context_.report = [this](const ProgressEvent& event) { events_.Write(event); };
}

int EndInResult(const fs::path& dir, const std::string& memory_advice,
                const std::function<int()>& work) {
  const UniqueFd lock = LockRunDirectory(dir);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow fails the write, not the process
  int exit_code = 0;
  const std::optional<Error> error = Attempt([&] { exit_code = work(); });
  if (!error) return exit_code;
  const bool is_memory = error->reason() == "out_of_memory";
  const Error advised(error->code(), is_memory && !memory_advice.empty()
                                         ? std::string(error->what()) + "; " + memory_advice
                                         : error->what());
  const std::string_view code = is_memory ? "out_of_memory" : NameOf(error->code());
  const auto full_disk = ErrorOf([&] {
    WriteResult(dir,
                {{"status", "failed"}, {"error", {{"code", code}, {"message", advised.what()}}}});
  });
  // Most likely a full disk, which also ended the run. The exit code still reports the fault.
  if (full_disk) std::fprintf(stderr, "tandem: %s\n", full_disk->what());
  throw Error(is_memory ? advised : *error);
}

}  // namespace tandem::server
