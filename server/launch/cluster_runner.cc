#include "server/launch/cluster_runner.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "server/jobs/exit_codes.h"
#include "server/jobs/job_files.h"

namespace tandem::server {
namespace {

using Clock = std::chrono::steady_clock;
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

std::string RecordedId(const std::filesystem::path& dir) {
  const ordered_json state = ReadState(ClusterFile(dir));
  const auto id = state.is_object() ? state.find("id") : state.end();
  return id != state.end() && id->is_string() ? id->get<std::string>() : "";
}

void RecordId(const std::filesystem::path& dir, std::string_view cluster, const std::string& id) {
  WriteJobFile(ClusterFile(dir), ordered_json({{"cluster", cluster}, {"id", id}}).dump() + "\n");
}

class ClusterProcess : public JobProcess {
 public:
  ClusterProcess(std::shared_ptr<Cluster> cluster, std::chrono::milliseconds interval, JobStart job,
                 std::string id)
      : cluster_(std::move(cluster)),
        interval_(interval),
        job_(std::move(job)),
        id_(std::move(id)) {}

  std::optional<ExitStatus> Poll() override {
    if (exit_) return exit_;
    if (std::optional<ExitStatus> written = ReadExitFile(job_.dir)) return End(*written);
    if (next_question_ && Clock::now() < *next_question_) return std::nullopt;
    next_question_ = Clock::now() + interval_;
    if (is_killed_) cluster_->Remove(id_);  // again, in case the scheduler was away
    const Cluster::State state = cluster_->Ask(id_);
    Report(state);
    if (state != Cluster::State::kGone) {
      n_gone_ = 0;
    } else if (++n_gone_ >= kLooksForExitFile || is_killed_) {
      return End(ExitStatus{});
    }
    return std::nullopt;
  }

  void Terminate() override {
    if (!exit_) cluster_->Terminate(id_);
  }
  void Kill() override {
    if (exit_) return;
    is_killed_ = true;
    cluster_->Remove(id_);
    next_question_.reset();
  }

 private:
  // One line in the job's log for every change.
  void Report(Cluster::State state) {
    if (std::exchange(reported_, state) == state) return;
    const std::string name(cluster_->name());
    if (state == Cluster::State::kWaiting) {
      AppendLogLine(job_.log, "tandem: waiting in the queue of " + name + " as " + id_);
    } else if (state == Cluster::State::kRunning) {
      AppendLogLine(job_.log, "tandem: running on " + name + " as " + id_);
    } else if (state == Cluster::State::kUnknown) {
      spdlog::warn("cluster does not answer cluster={} job={}", name, job_.id);
    }
  }

  std::optional<ExitStatus> End(const ExitStatus& exit) {
    cluster_->Remove(id_);
    std::error_code ignored;
    std::filesystem::remove(ClusterFile(job_.dir), ignored);
    exit_ = exit;
    return exit_;
  }

  const std::shared_ptr<Cluster> cluster_;
  const std::chrono::milliseconds interval_;
  const JobStart job_;
  const std::string id_;
  std::optional<ExitStatus> exit_;
  std::optional<Clock::time_point> next_question_;
  Cluster::State reported_ = Cluster::State::kGone;
  int n_gone_ = 0;
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
  const std::string id = cluster_->Submit(job);
  RecordId(job.dir, cluster_->name(), id);
  AppendLogLine(job.log, "tandem: submitted to " + std::string(cluster_->name()) + " as " + id);
  return std::make_unique<ClusterProcess>(cluster_, interval_, job, id);
}

std::unique_ptr<JobProcess> ClusterRunner::Find(const JobStart& job,
                                                const std::optional<ProcessIdentity>&) {
  std::string id = RecordedId(job.dir);
  if (id.empty()) {
    // A server may have died between the submission and its record.
    id = cluster_->Find(job);
    if (id.empty()) return nullptr;
    RecordId(job.dir, cluster_->name(), id);
  }
  return std::make_unique<ClusterProcess>(cluster_, interval_, job, id);
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
