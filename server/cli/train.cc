#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread_name.h"
#include "engine/io/atomic_write.h"
#include "server/cli/model_options.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "training/run.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kExitTryAgain = 75;

struct TrainFlags {
  std::string spec;
  std::vector<std::string> overrides;
  std::string job_dir;
};

// Turns SIGTERM and SIGINT into a stop request for as long as it lives. Handlers may do almost
// nothing, so they write one byte into a pipe that a thread reads.
class StopOnSignal {
 public:
  StopOnSignal() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kUnavailable, std::string("pipe: ") + std::strerror(errno));
    }
    write_end = ends_[1];
    struct sigaction action {};
    action.sa_handler = [](int) { Wake('s'); };
    action.sa_flags = SA_RESTART;
    sigaction(SIGTERM, &action, &old_term_);
    sigaction(SIGINT, &action, &old_int_);
    watcher_ = std::thread([this] {
      NameThisThread("tandem-signals");
      char byte = 0;
      while (read(ends_[0], &byte, 1) < 0 && errno == EINTR) {
      }
      if (byte == 's') stop_.request_stop();
    });
  }

  ~StopOnSignal() {
    sigaction(SIGTERM, &old_term_, nullptr);
    sigaction(SIGINT, &old_int_, nullptr);
    Wake('e');
    watcher_.join();
    write_end = -1;
    close(ends_[0]);
    close(ends_[1]);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  std::stop_token token() const { return stop_.get_token(); }

 private:
  static void Wake(char byte) {
    const int saved = errno;
    [[maybe_unused]] const ssize_t written = write(write_end, &byte, 1);
    errno = saved;
  }

  static inline volatile std::sig_atomic_t write_end = -1;
  std::array<int, 2> ends_{};
  struct sigaction old_term_ {};
  struct sigaction old_int_ {};
  std::stop_source stop_;
  std::thread watcher_;
};

// A job gives way to everything else on the machine: idle scheduling class, first to go when memory
// runs out, and a ceiling of its own. What the system refuses is left as it is.
void LowerPriority(int64_t memory_max_bytes) {
  const sched_param parameters{};
  sched_setscheduler(0, SCHED_IDLE, &parameters);
  std::ofstream("/proc/self/oom_score_adj") << "1000\n";
  if (memory_max_bytes <= 0) return;
  const auto bytes = static_cast<rlim_t>(memory_max_bytes);
  const rlimit limit{bytes, bytes};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) {
    throw Error(ErrorCode::kUnavailable, std::string("setrlimit: ") + std::strerror(errno));
  }
}

int64_t UnixMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// events.jsonl for whoever watches the job, the same words on standard output for people.
class EventLog {
 public:
  explicit EventLog(const fs::path& dir) : file_(dir / "events.jsonl", std::ios::app) {}

  void Write(const ProgressEvent& event) {
    file_.clear();  // after a full disk, go on where there is room again
    file_ << ordered_json{{"unix_ms", UnixMs()},  {"kind", event.kind},
                          {"step", event.step},   {"total_steps", event.total_steps},
                          {"value", event.value}, {"message", event.message}}
                 .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
          << '\n'
          << std::flush;
    // Step lines are bare, so that tools written for MaxText's log find them.
    if (event.kind == "step") {
      std::printf("%s\n", event.message.c_str());
    } else {
      std::printf("%s: %s\n", event.kind.c_str(), event.message.c_str());
    }
    std::fflush(stdout);
  }

 private:
  std::ofstream file_;
};

// The last word of a job. A run that was stopped leaves none: exit code 75 says that it goes on
// from its checkpoint when it is started again.
fs::path ResultFile(const fs::path& dir) { return dir / "result.json"; }

void WriteResult(const fs::path& dir, const ordered_json& result) {
  engine::WriteFileAtomically(ResultFile(dir), result.dump(2) + "\n");
}

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
      return "out_of_memory";
    case ErrorCode::kDataLoss:
      return "bad_data";
    case ErrorCode::kIo:
      return "io_error";
    default:
      return "failed";
  }
}

int RunInDirectory(const training::TrainSpec& spec, const fs::path& dir) {
  if (spec.resources.lower_priority) LowerPriority(spec.resources.memory_max_bytes);
  fs::remove(ResultFile(dir));  // of an earlier run in this directory
  EventLog events(dir);
  const StopOnSignal stop;
  JobContext context;
  context.dir = dir;
  context.cache_dir = CacheDir();
  context.stop = stop.token();
  context.report = [&](const ProgressEvent& event) { events.Write(event); };

  const training::TrainOutcome outcome = training::RunTraining(spec, context);
  if (outcome.status == training::TrainOutcome::Status::kStopped) return kExitTryAgain;
  ordered_json result = {{"status", "succeeded"},
                         {"model_dir", outcome.model_dir.string()},
                         {"checkpoint", outcome.checkpoint.string()},
                         {"step", outcome.step},
                         {"loss", outcome.loss},
                         {"eval_loss", outcome.eval_loss},
                         {"best_eval_loss", outcome.best_eval_loss}};
  if (!outcome.adapter_dir.empty()) result["adapter_dir"] = outcome.adapter_dir.string();
  if (outcome.merged) result["merge"] = ordered_json::parse(MergeReportText(*outcome.merged));
  WriteResult(dir, result);
  return 0;
}

void MakeDirectory(const fs::path& dir) {
  std::error_code failed;
  fs::create_directories(dir, failed);
  if (failed) throw Error(ErrorCode::kIo, dir.string() + ": " + failed.message());
}

int TrainSpecFile(const TrainFlags& flags) {
  training::TrainSpec spec = training::LoadTrainSpec(flags.spec, flags.overrides);
  // Not for jobs: what a request names must lie below the server's own directory.
  FindSpecPaths(spec);
  MakeDirectory(spec.run_dir());
  return RunInDirectory(spec, spec.run_dir());
}

// The main of a job's process: whatever happens ends in result.json.
int TrainJob(const TrainFlags& flags) {
  const fs::path dir = flags.job_dir;
  const auto fail = [&](std::string_view code, const char* what) {
    WriteResult(dir, {{"status", "failed"}, {"error", {{"code", code}, {"message", what}}}});
  };
  try {
    const fs::path json = dir / "spec.json";
    training::TrainSpec spec =
        training::LoadTrainSpec(fs::exists(json) ? json : dir / "spec.yaml", flags.overrides);
    spec.resources.lower_priority = true;
    return RunInDirectory(spec, dir);
  } catch (const std::bad_alloc&) {
    fail("out_of_memory", "out of memory");
    throw Error(ErrorCode::kUnavailable, "out of memory");
  } catch (const Error& error) {
    fail(NameOf(error.code()), error.what());
    throw;
  } catch (const std::exception& error) {
    fail("failed", error.what());
    throw;
  }
}

}  // namespace

void AddTrain(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<TrainFlags>();
  command.add_option("spec", flags->spec, "training spec (YAML or JSON)");
  command.add_option("overrides", flags->overrides, "key=value words on top of the spec");
  command.add_option("--job", flags->job_dir,
                     "job directory: reads spec.json or spec.yaml there, writes events.jsonl and "
                     "result.json, and gives way to everything else");
  command.callback([flags, &exit_code] {
    if (!flags->job_dir.empty()) {
      // Without a spec argument the first positional word is an override.
      if (!flags->spec.empty()) {
        flags->overrides.insert(flags->overrides.begin(), flags->spec);
      }
      exit_code = TrainJob(*flags);
      return;
    }
    if (flags->spec.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "train: name a spec file, or --job DIR");
    }
    exit_code = TrainSpecFile(*flags);
  });
}

}  // namespace tandem::server
