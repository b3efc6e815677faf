#include "server/launch/cluster_runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "server/jobs/exit_codes.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxStateBytes = 4096;
// A network file system may show DIR/exit.json later than the scheduler reports the end.
constexpr int kLooksForExitFile = 5;

// A small JSON object of the job's directory; null if it is absent or broken.
ordered_json ReadState(const std::filesystem::path& path) {
  std::string text;
  if (ErrorOf([&] { text = engine::ReadWholeFile(path, kMaxStateBytes); })) return nullptr;
  if (!IsBoundedJsonObject(text)) return nullptr;
  return ordered_json::parse(text, nullptr, false);
}

// The contents of cluster.json.
struct SubmittedRun {
  std::string cluster;
  std::string id;
};

std::optional<SubmittedRun> RecordedRun(const std::filesystem::path& dir) {
  const ordered_json state = ReadState(ClusterFile(dir));
  if (!state.is_object()) return std::nullopt;
  const auto text = [&](const char* name) {
    const auto value = state.find(name);
    return value != state.end() && value->is_string() ? value->get<std::string>() : "";
  };
  SubmittedRun run = {text("cluster"), text("id")};
  if (run.id.empty()) return std::nullopt;
  return run;
}

void RecordId(const std::filesystem::path& dir, std::string_view cluster, const std::string& id) {
  WriteJobFile(ClusterFile(dir), ordered_json({{"cluster", cluster}, {"id", id}}).dump() + "\n");
}

class ClusterProcess : public JobProcess {
 public:
  // `id`: the scheduler's; empty: the scheduler did not say whether there is a run.
  ClusterProcess(std::shared_ptr<ClusterView> view, JobStart job, std::string id)
      : view_(std::move(view)), job_(std::move(job)), id_(std::move(id)) {
    view_->Watch(job_.id);
    seen_ = view_->n_questions();
  }
  ~ClusterProcess() override { view_->Forget(job_.id); }

  std::optional<ExitStatus> Poll() override {
    if (exit_) return exit_;
    if (!id_.empty()) {
      if (std::optional<ExitStatus> written = ReadExitFile(job_.dir)) return End(*written);
    }
    const int64_t question = view_->Refresh();
    if (std::exchange(seen_, question) == question) return std::nullopt;
    const std::optional<std::vector<ClusterRun>> runs = view_->RunsOf(job_.id);
    if (!runs) {
      Report(Said::kNothing);
      return std::nullopt;
    }
    // An exit of an earlier run may be left here, so the scheduler is asked first.
    if (id_.empty() && !FindId(*runs)) return End(ReadExitFile(job_.dir).value_or(ExitStatus{}));
    return Look(*runs);
  }

  void Terminate() override {
    is_terminated_ = true;
    if (!exit_ && !id_.empty()) view_->cluster().Terminate(id_);
  }
  void Kill() override {
    is_killed_ = true;
    if (!exit_ && !id_.empty()) view_->cluster().Remove(id_);
  }

 private:
  enum class Said { kNothing, kWaiting, kRunning, kEnding, kGone };

  // Takes over a submission that nobody recorded. False: there is none.
  bool FindId(const std::vector<ClusterRun>& runs) {
    const ClusterRun* run = view_->LiveRun(runs, job_.id);
    if (run == nullptr) return false;
    RecordId(job_.dir, view_->cluster().name(), run->id);
    id_ = run->id;
    if (is_terminated_) view_->cluster().Terminate(id_);
    return true;
  }

  std::optional<ExitStatus> Look(const std::vector<ClusterRun>& runs) {
    if (is_killed_) view_->cluster().Remove(id_);  // again, in case the scheduler was away
    const auto run = std::find_if(runs.begin(), runs.end(),
                                  [&](const ClusterRun& each) { return each.id == id_; });
    if (run != runs.end()) {
      Report(run->state == ClusterRun::State::kWaiting   ? Said::kWaiting
             : run->state == ClusterRun::State::kRunning ? Said::kRunning
                                                         : Said::kEnding);
      n_gone_ = 0;
      return std::nullopt;
    }
    Report(Said::kGone);
    if (++n_gone_ >= kLooksForExitFile || is_killed_) return End(ExitStatus{});
    return std::nullopt;
  }

  // One line in the job's log for every change.
  void Report(Said said) {
    if (std::exchange(reported_, said) == said) return;
    const std::string name(view_->cluster().name());
    if (said == Said::kWaiting) {
      AppendLogLine(job_.log, "tandem: waiting in the queue of " + name + " as " + id_);
    } else if (said == Said::kRunning) {
      AppendLogLine(job_.log, "tandem: running on " + name + " as " + id_);
    } else if (said == Said::kNothing) {
      spdlog::warn("cluster does not answer cluster={} job={}", name, job_.id);
    }
  }

  std::optional<ExitStatus> End(const ExitStatus& exit) {
    if (!id_.empty()) {
      view_->cluster().Remove(id_);
      view_->MarkEnded(id_);
    }
    std::error_code ignored;
    std::filesystem::remove(ClusterFile(job_.dir), ignored);
    exit_ = exit;
    return exit_;
  }

  const std::shared_ptr<ClusterView> view_;
  const JobStart job_;
  std::string id_;
  std::optional<ExitStatus> exit_;
  int64_t seen_ = 0;  // the last question that was looked at
  Said reported_ = Said::kGone;
  int n_gone_ = 0;
  bool is_terminated_ = false;
  bool is_killed_ = false;
};

// Blocks the signals that end a job, and reads them from a descriptor.
class EndSignals {
 public:
  EndSignals() {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::sigaddset(&signals, SIGINT);
    ::sigaddset(&signals, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &signals, &old_);
    fd_ = UniqueFd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw Error(ErrorCode::kIo, "could not create a signalfd");
  }
  ~EndSignals() { ::pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  EndSignals(const EndSignals&) = delete;
  EndSignals& operator=(const EndSignals&) = delete;

  // Waits for a signal or for `longest`. Returns whether the job must end.
  bool Wait(std::chrono::milliseconds longest) {
    pollfd fd = {fd_.get(), POLLIN, 0};
    ::poll(&fd, 1, static_cast<int>(longest.count()));
    bool must_end = false;
    signalfd_siginfo info{};
    while (::read(fd_.get(), &info, sizeof info) == sizeof info) {
      must_end = must_end || info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT;
    }
    return must_end;
  }

 private:
  sigset_t old_{};
  UniqueFd fd_;
};

}  // namespace

std::filesystem::path ClusterFile(const std::filesystem::path& dir) { return dir / "cluster.json"; }
std::filesystem::path ExitFile(const std::filesystem::path& dir) { return dir / "exit.json"; }

std::optional<ExitStatus> ReadExitFile(const std::filesystem::path& dir) {
  const ordered_json state = ReadState(ExitFile(dir));
  if (!state.is_object()) return std::nullopt;
  ExitStatus exit;
  for (const auto& [name, kind] : {std::pair("code", ExitStatus::Kind::kCode),
                                   std::pair("signal", ExitStatus::Kind::kSignal)}) {
    const auto value = state.find(name);
    if (value == state.end() || !value->is_number_integer()) continue;
    exit = {kind, static_cast<int>(std::clamp<int64_t>(value->get<int64_t>(), 0, 255))};
  }
  return exit;
}

std::unique_ptr<JobProcess> ClusterRunner::Start(const JobStart& job) {
  std::error_code ignored;
  std::filesystem::remove(ExitFile(job.dir), ignored);  // of an earlier run
  Cluster& cluster = view_->cluster();
  const std::string id = cluster.Submit(job);
  RecordId(job.dir, cluster.name(), id);
  AppendLogLine(job.log, "tandem: submitted to " + std::string(cluster.name()) + " as " + id);
  return std::make_unique<ClusterProcess>(view_, job, id);
}

std::unique_ptr<JobProcess> ClusterRunner::Find(const JobStart& job,
                                                const std::optional<ProcessIdentity>&) {
  Cluster& cluster = view_->cluster();
  if (const std::optional<SubmittedRun> run = RecordedRun(job.dir)) {
    if (run->cluster != cluster.name()) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "job " + job.id + " runs on " + run->cluster + " as " + run->id +
                      ", but jobs-on names " + std::string(cluster.name()) +
                      ": start the server with the earlier jobs-on, or remove " +
                      ClusterFile(job.dir).string() + " after that run has ended");
    }
    return std::make_unique<ClusterProcess>(view_, job, run->id);
  }
  // A server may have died between the submission and its record.
  std::vector<ClusterRun> runs;
  if (ErrorOf({ErrorCode::kUnavailable}, [&] { runs = cluster.List({job.id}); })) {
    return std::make_unique<ClusterProcess>(view_, job, "");
  }
  const ClusterRun* run = view_->LiveRun(runs, job.id);
  if (run == nullptr) return nullptr;
  RecordId(job.dir, cluster.name(), run->id);
  return std::make_unique<ClusterProcess>(view_, job, run->id);
}

int RunClusterJob(const JobStart& job, const std::filesystem::path& program) {
  EndSignals signals;
  std::error_code ignored;
  std::filesystem::remove(ExitFile(job.dir), ignored);  // the scheduler may start a job again
  ExitStatus exit;
  if (const std::optional<Error> error = ErrorOf([&] {
        LocalJobRunner runner(program);
        const std::unique_ptr<JobProcess> child = runner.Start(job);
        std::optional<ExitStatus> ended = child->Poll();
        while (!ended) {
          constexpr std::chrono::milliseconds kLongestWait{1000};
          if (signals.Wait(kLongestWait)) child->Terminate();
          ended = child->Poll();
        }
        exit = *ended;
      })) {
    AppendLogLine(job.log, std::string("tandem: ") + error->what());
    exit = {ExitStatus::Kind::kCode,
            error->code() == ErrorCode::kFailedPrecondition ? kExitInUse : kExitIo};
  }
  const bool by_signal = exit.kind == ExitStatus::Kind::kSignal;
  WriteJobFile(ExitFile(job.dir),
               ordered_json({{by_signal ? "signal" : "code", exit.value}}).dump() + "\n");
  return by_signal ? 128 + exit.value : exit.value;
}

}  // namespace tandem::server
