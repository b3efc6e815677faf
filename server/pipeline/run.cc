#include "server/pipeline/run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "server/jobs/process_lock.h"
#include "server/pipeline/job_run.h"
#include "server/pipeline/state.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Record = PipelineRecord;
using State = PipelineJobEnd::State;
using Action = PlannedJob::Action;

constexpr int64_t kStepsPerJob = 1000;  // resolution of the reported progress

// Names of the jobs that `only` or `from` exclude.
std::set<std::string> LeftOut(const PipelineSpec& spec, const PipelineOptions& options) {
  std::set<std::string> out;
  const std::string& wanted = options.only.empty() ? options.from : options.only;
  if (wanted.empty()) return out;
  if (spec.Find(wanted) == nullptr) {
    std::vector<const char*> names;
    for (const PipelineJob& job : spec.jobs) names.push_back(job.name.c_str());
    throw Error(ErrorCode::kInvalidArgument, "the pipeline has no job " + Quoted(wanted) +
                                                 "; did you mean " + NearestName(wanted, names) +
                                                 "?");
  }
  for (const PipelineJob& job : spec.jobs) {
    if (job.name == wanted) {
      if (options.only.empty()) break;
    } else {
      out.insert(job.name);
    }
  }
  return out;
}

// A job is unchanged if this value is: its own spec, the stamps of its inputs, and the fingerprints
// of the jobs it needs.
std::string Fingerprint(const PipelineJob& job, const PipelineOrder& order,
                        const PipelineState& state) {
  std::vector<std::string> parts = {job.kind, order.identity, StampOf(order.inputs)};
  for (const std::string& need : job.needs) {
    const Record* record = state.Find(need);
    parts.push_back(need + " " + (record == nullptr ? "" : record->fingerprint));
  }
  return FingerprintOf(parts);
}

// The "dir" output is left out: opening a run's directory changes it.
std::string StampOfOutputs(const std::map<std::string, std::string>& outputs) {
  std::vector<fs::path> paths;
  for (const auto& [what, path] : outputs) {
    if (what != "dir") paths.emplace_back(path);
  }
  return StampOf(paths);
}

bool IsDone(const Record* record, const std::string& fingerprint) {
  return record != nullptr && record->status == Record::Status::kDone &&
         record->fingerprint == fingerprint && record->stamp == StampOfOutputs(record->outputs);
}

std::string Seconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", seconds);
  return text;
}

fs::path Old(const fs::path& path) { return path.string() + ".old"; }

constexpr const char* kConversionMark = "convert-";  // prefix of a conversion's process directory

class PipelineRunner {
 public:
  PipelineRunner(const PipelineSpec& spec, const PipelineOptions& options,
                 const JobContext& context)
      : spec_(spec), options_(options), context_(context), dir_(fs::absolute(options.dir)) {}

  PipelineOutcome Go() {
    const std::set<std::string> left_out = LeftOut(spec_, options_);
    CheckAll();
    MakeDirectories(dir_ / "jobs");
    const UniqueFd lock =
        LockForThisProcess(dir_ / "pipeline.lock", "pipeline directory " + dir_.string(),
                           "wait until it ends, or choose another --dir", WithoutLocks::kContinue);
    engine::RemoveStaleTemporaries(dir_);
    state_ = PipelineState::Open(dir_, spec_.name);
    for (size_t i = 0; i < spec_.jobs.size(); ++i) {
      outcome_.jobs.emplace_back();
      outcome_.jobs[i].name = spec_.jobs[i].name;
      outcome_.jobs[i].kind = spec_.jobs[i].kind;
    }
    for (size_t i = 0; i < spec_.jobs.size(); ++i) {
      index_ = i;
      if (left_out.contains(spec_.jobs[i].name)) {
        TakeAsDone(spec_.jobs[i]);
      } else if (!RunJob(spec_.jobs[i], outcome_.jobs[i])) {
        break;
      }
    }
    return std::move(outcome_);
  }

 private:
  // Checks all jobs in advance: a fault in the last one must not appear after hours of work.
  void CheckAll() const {
    PipelineOutputs expected;
    for (const PipelineJob& job : spec_.jobs) {
      expected[job.name] = MakeOrder(spec_, job, dir_, expected, options_.find, true).outputs;
    }
  }

  void Say(const std::string& kind, const std::string& message, double fraction, double value = 0) {
    if (!context_.report) return;
    const auto n = static_cast<int64_t>(spec_.jobs.size());
    const auto at = static_cast<int64_t>((static_cast<double>(index_) + fraction) *
                                         static_cast<double>(kStepsPerJob));
    context_.report({kind, at, n * kStepsPerJob, value, message});
  }

  void TakeAsDone(const PipelineJob& job) {
    const Record* record = state_.Find(job.name);
    if (record == nullptr || record->status != Record::Status::kDone) return;
    outputs_[job.name] = record->outputs;
  }

  void CheckNeeds(const PipelineJob& job) const {
    for (const std::string& need : job.needs) {
      if (outputs_.contains(need)) continue;
      throw Error(ErrorCode::kFailedPrecondition,
                  "job " + job.name + " needs " + need + ", which is not done in " + dir_.string() +
                      ": run it first, or run all jobs without --only and --from");
    }
  }

  // Returns false if the pipeline must end here.
  bool RunJob(const PipelineJob& job, PipelineJobEnd& end) {
    if (context_.stop.stop_requested()) return Stopped(end);
    CheckNeeds(job);
    const PipelineOrder order = MakeOrder(spec_, job, dir_, outputs_, options_.find, false);
    const std::string fingerprint = Fingerprint(job, order, state_);
    const Record* before = state_.Find(job.name);
    const bool is_load = job.kind == "load";
    if (IsDone(before, fingerprint) &&
        (!is_load ||
         (!options_.is_servers_job && IsServed(order.spec_json, options_.keys, context_.stop)))) {
      outputs_[job.name] = end.outputs = before->outputs;
      end.state = State::kUnchanged;
      end.result_json = before->result_json;
      Say("message", job.name + ": unchanged, already done", 1);
      return true;
    }
    const bool supports_resume = before != nullptr && before->fingerprint == fingerprint &&
                                 before->status != Record::Status::kDone;
    Record record = supports_resume ? *before : Record{};
    record.served_id = before == nullptr ? "" : before->served_id;
    if (!supports_resume) Begin(job, order, record);
    record.fingerprint = fingerprint;
    record.status = Record::Status::kRunning;
    record.error.clear();
    state_.Set(job.name, record);
    Say("message",
        job.name + ": " + (supports_resume ? "resumes" : "starts") + " (" + job.kind + ")", 0);
    const Clock::time_point begin = Clock::now();
    const JobRunEnd run = is_load ? Load(job, order, record) : Process(job, order, fingerprint);
    record.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    end.seconds = record.seconds;
    return Finish(job, order, run, std::move(record), end);
  }

  bool Stopped(PipelineJobEnd& end) {
    end.state = State::kStopped;
    outcome_.stopped = true;
    return false;
  }

  bool Finish(const PipelineJob& job, const PipelineOrder& order, const JobRunEnd& run,
              Record record, PipelineJobEnd& end) {
    switch (run.state) {
      case JobRunEnd::State::kStopped:
        state_.Set(job.name, std::move(record));
        Say("message", job.name + ": stopped; the same command resumes it", 0);
        return Stopped(end);
      case JobRunEnd::State::kFailed:
        record.status = Record::Status::kFailed;
        record.error = run.error;
        end.state = State::kFailed;
        outcome_.fault = Error(run.code, "job " + job.name + " failed: " + run.error);
        state_.Set(job.name, std::move(record));
        return false;
      case JobRunEnd::State::kSucceeded:
        break;
    }
    record.status = Record::Status::kDone;
    record.outputs = OutputsOf(job, order, run.result_json);
    record.stamp = StampOfOutputs(record.outputs);
    record.result_json = run.result_json;
    end.state = State::kDone;
    end.outputs = outputs_[job.name] = record.outputs;
    end.result_json = run.result_json;
    state_.Set(job.name, std::move(record));
    // Only training keeps its `.old` copy: repeating it costs hours, other outputs can be rebuilt.
    if (!job.kind.starts_with("train.")) {
      fs::remove_all(Old(order.places.job));
      if (!order.places.out.empty()) fs::remove_all(Old(order.places.out));
    }
    // A checkpoint event: a restart loses nothing before this point.
    Say("checkpoint", job.name + ": done in " + Seconds(end.seconds), 1);
    return true;
  }

  // Prepares the job's directories for a run from the beginning; earlier contents move to NAME.old.
  void Begin(const PipelineJob& job, const PipelineOrder& order, Record& record) {
    const Record* before = state_.Find(job.name);
    const fs::path& job_dir = order.places.job;
    const fs::path& out = order.places.out;
    if (before != nullptr) EndJobProcess(ProcessDir(job, before->fingerprint, before->job_dir));
    const fs::path own = dir_ / "jobs";
    for (const fs::path& path : {job_dir, out}) {
      if (path.empty() || !fs::exists(fs::symlink_status(path))) continue;
      if (path.parent_path() == own || state_.IsOurs(path)) {
        fs::remove_all(Old(path));
        fs::rename(path, Old(path));
      } else if (!(path == out && job.Text("overwrite") == "true")) {
        throw Error(ErrorCode::kAlreadyExists, "job " + job.name + ": " + path.string() +
                                                   " already exists, and this pipeline did not "
                                                   "create it: set another `out`, or move it away");
      }
    }
    if (before != nullptr) Say("message", job.name + ": has changed and runs again", 0);
    record.job_dir = job_dir.string();
    record.out = out.string();
  }

  // A conversion recognises its own unfinished work by the name of its process directory, so the
  // name holds the fingerprint.
  static fs::path ProcessDir(const PipelineJob& job, const std::string& fingerprint,
                             const fs::path& job_dir) {
    return job.kind == "convert" ? job_dir / (kConversionMark + fingerprint.substr(0, 16))
                                 : job_dir;
  }

  JobRunEnd Process(const PipelineJob& job, const PipelineOrder& order,
                    const std::string& fingerprint) {
    const fs::path dir = ProcessDir(job, fingerprint, order.places.job);
    MakeDirectories(dir);
    if (!order.places.out.empty()) MakeDirectories(order.places.out.parent_path());
    engine::WriteFileAtomically(dir / "spec.json", order.spec_json + "\n");
    const JobRun run{.program = options_.program,
                     .verb = FindPipelineKind(job.kind)->verb,
                     .dir = dir,
                     .leads_group = !options_.is_servers_job,
                     .max_restarts = options_.max_restarts};
    double fraction = 0;
    std::string last;
    return RunJobProcess(run, context_.stop, [&](const ProgressEvent& event) {
      if (event.total_steps > 0) {
        fraction = std::clamp(
            static_cast<double>(event.step) / static_cast<double>(event.total_steps), 0.0, 1.0);
      }
      // Consecutive events with the same message count as one.
      if (std::exchange(last, event.message) == event.message) return;
      Say(event.kind, job.name + ": " + event.message, fraction, event.value);
    });
  }

  // Runs in this process: a load only sends requests, so a child process would isolate nothing.
  JobRunEnd Load(const PipelineJob& job, const PipelineOrder& order, Record& record) {
    if (options_.is_servers_job) {
      outcome_.loads.push_back(order.spec_json);
      const auto id = nlohmann::json::parse(order.spec_json)["id"];
      return {JobRunEnd::State::kSucceeded, nlohmann::json{{"model", id}}.dump(), {}, ""};
    }
    std::string result;
    const auto error = ErrorOf([&] { result = LoadHere(job, order, record); });
    if (!error) return {JobRunEnd::State::kSucceeded, result, {}, ""};
    if (error->code() == ErrorCode::kCancelled) return {JobRunEnd::State::kStopped, "", {}, ""};
    return {JobRunEnd::State::kFailed, "", error->code(), error->what()};
  }

  // Returns the job's result as JSON.
  std::string LoadHere(const PipelineJob& job, const PipelineOrder& order, Record& record) {
    const std::string id = nlohmann::json::parse(order.spec_json)["id"].get<std::string>();
    const bool is_ours = record.served_id == id;
    record.served_id = id;
    state_.Set(job.name, record);
    const ServedModelReply reply = LoadIntoServer(
        order.spec_json, options_.keys, is_ours, context_.stop,
        [&](const std::string& line) { Say("message", job.name + ": " + line, 0.5); });
    const nlohmann::ordered_json result = {{"model", reply.id}, {"text", reply.text}};
    if (!reply.text.empty()) {
      MakeDirectories(order.places.job);
      engine::WriteFileAtomically(order.places.job / "text.txt", reply.text + "\n");
    }
    return result.dump();
  }

  const PipelineSpec& spec_;
  const PipelineOptions& options_;
  const JobContext& context_;
  const fs::path dir_;
  PipelineState state_;
  PipelineOutputs outputs_;
  PipelineOutcome outcome_;
  size_t index_ = 0;  // of the running job in spec_.jobs
};

}  // namespace

const char* NameOf(State state) {
  switch (state) {
    case State::kDone:
      return "done";
    case State::kUnchanged:
      return "unchanged";
    case State::kFailed:
      return "failed";
    case State::kStopped:
      return "stopped";
    case State::kNotRun:
      return "not_run";
  }
  return "";
}

const char* Describe(Action action) {
  switch (action) {
    case Action::kRun:
      return "runs";
    case Action::kGoOn:
      return "resumes";
    case Action::kRunAnew:
      return "has changed, runs again";
    case Action::kFollow:
      return "runs if a job it needs has changed";
    case Action::kKeep:
      return "unchanged";
    case Action::kLeaveOut:
      return "skipped";
  }
  return "";
}

PipelineOutcome RunPipeline(const PipelineSpec& spec, const PipelineOptions& options,
                            const JobContext& context) {
  return PipelineRunner(spec, options, context).Go();
}

std::vector<PlannedJob> PlanPipeline(const PipelineSpec& spec, const PipelineOptions& options) {
  const fs::path dir = fs::absolute(options.dir);
  const std::set<std::string> left_out = LeftOut(spec, options);
  const PipelineState state = PipelineState::Open(dir, spec.name);
  PipelineOutputs outputs;
  std::set<std::string> changing;
  std::vector<PlannedJob> plan;
  for (const PipelineJob& job : spec.jobs) {
    PlannedJob planned;
    planned.name = job.name;
    planned.kind = job.kind;
    planned.needs = job.needs;
    planned.outputs = MakeOrder(spec, job, dir, outputs, options.find, true).outputs;
    const Record* record = state.Find(job.name);
    const bool follows = std::any_of(job.needs.begin(), job.needs.end(),
                                     [&](const std::string& n) { return changing.contains(n); });
    if (left_out.contains(job.name)) {
      planned.action = Action::kLeaveOut;
    } else if (record == nullptr) {
      planned.action = Action::kRun;
    } else if (follows) {
      planned.action = Action::kFollow;
    } else {
      const PipelineOrder order = MakeOrder(spec, job, dir, outputs, options.find, false);
      const std::string fingerprint = Fingerprint(job, order, state);
      planned.action =
          IsDone(record, fingerprint) ? Action::kKeep
          : record->fingerprint != fingerprint || record->status == Record::Status::kDone
              ? Action::kRunAnew
              : Action::kGoOn;
    }
    if (planned.action == Action::kKeep || planned.action == Action::kLeaveOut) {
      if (record != nullptr) planned.outputs = record->outputs;
    } else {
      changing.insert(job.name);
    }
    outputs[job.name] = planned.outputs;
    plan.push_back(std::move(planned));
  }
  return plan;
}

std::vector<fs::path> UnfinishedConversions(const fs::path& dir) {
  std::vector<fs::path> specs;
  std::error_code absent;
  for (const fs::directory_entry& job : fs::directory_iterator(dir / "jobs", absent)) {
    if (!job.is_directory()) continue;
    for (const fs::directory_entry& process : fs::directory_iterator(job.path())) {
      const fs::path& path = process.path();
      if (!path.filename().string().starts_with(kConversionMark)) continue;
      if (!fs::exists(path / "spec.json") || fs::exists(path / "result.json")) continue;
      specs.push_back(path / "spec.json");
    }
  }
  return specs;
}

}  // namespace tandem::server
