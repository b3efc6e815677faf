#include "server/launch/slurm.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "server/jobs/job_files.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"

namespace tandem::server {
namespace {

// Before the id of the job: the name finds a submission that nobody recorded.
constexpr std::string_view kNamePrefix = "tandem-";

std::string SlurmName(const std::string& job) { return std::string(kNamePrefix) + job; }

std::string FirstWord(const std::string& text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\n"), text.size());
  return text.substr(begin, text.find_first_of(" \t\n;", begin) - begin);
}

bool IsNumber(const std::string& text) {
  return !text.empty() && text.size() <= 19 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

// nullopt: the run has ended.
std::optional<ClusterRun::State> StateOf(std::string_view state) {
  using State = ClusterRun::State;
  constexpr std::string_view kWaiting[] = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD",
                                           "SPECIAL_EXIT"};
  constexpr std::string_view kEnded[] = {"COMPLETED", "CANCELLED", "FAILED",
                                         "TIMEOUT",   "NODE_FAIL", "DEADLINE",
                                         "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY"};
  const auto is_one = [&](const auto& states) {
    return std::find(std::begin(states), std::end(states), state) != std::end(states);
  };
  if (is_one(kEnded)) return std::nullopt;
  if (state == "COMPLETING") return State::kEnding;
  return is_one(kWaiting) ? State::kWaiting : State::kRunning;
}

// A '%' begins a pattern in the names of Slurm's output files.
std::string OutputPath(const std::filesystem::path& path) {
  std::string out;
  for (const char c : path.string()) out += c == '%' ? std::string("%%") : std::string(1, c);
  return out;
}

// Runs scancel; the job may have ended meanwhile.
void Scancel(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "scancel");
  const std::optional<Error> fault = ErrorOf([&] {
    const ToolResult done = RunTool(arguments, {}, kQuestionTime);
    if (done.code != 0 && done.error.find("Invalid job id") == std::string::npos) {
      spdlog::debug("scancel failed reason=\"{}\"", done.Reason());
    }
  });
  if (fault) spdlog::warn("scancel failed error=\"{}\"", fault->what());
}

}  // namespace

SlurmCluster::SlurmCluster(SlurmOptions options) : options_(std::move(options)) {
  for (const std::string& option : options_.options) {
    CheckToolOption(option,
                    {"--job-name", "--output", "--error", "--open-mode", "--parsable", "--wrap",
                     "--array", "--chdir", "--wait", "--test-only", "--input", "--ntasks"},
                    "jobs-option");
  }
  if (!options_.program.is_absolute()) {
    throw Error(ErrorCode::kInvalidArgument,
                "jobs-program must be an absolute path, got " + Quoted(options_.program.string()));
  }
}

std::string SlurmCluster::Submit(const JobStart& job) {
  const std::filesystem::path script = job.dir / "slurm.sh";
  // exec: Slurm signals the process of the script, which is then the one that passes them on.
  WriteJobFile(script, "#!/bin/sh\nexec " +
                           ShellWords({options_.program.string(), "launch", "job", "--dir",
                                       job.dir.string(), "--verb", job.verb}) +
                           "\n");
  std::vector<std::string> argv = {"sbatch",
                                   "--parsable",
                                   "--job-name=" + SlurmName(job.id),
                                   "--ntasks=1",
                                   "--open-mode=append",
                                   "--output=" + OutputPath(job.dir / "slurm.out"),
                                   "--chdir=" + job.dir.string()};
  argv.insert(argv.end(), options_.options.begin(), options_.options.end());
  argv.push_back(script.string());
  const ToolResult done = RunTool(argv, {}, kSubmissionTime);
  const std::string id = FirstWord(done.out);
  if (done.code != 0 || !IsNumber(id)) {
    // The controller may be away; a wrong option fails in the same way, and restarts are counted.
    throw Error(ErrorCode::kUnavailable, "sbatch refused the job: " + done.Reason());
  }
  return id;
}

// Without --states, squeue lists jobs until their last process and its epilogue have ended.
std::vector<ClusterRun> SlurmCluster::List(const std::vector<std::string>& jobs) {
  std::string names;
  for (const std::string& job : jobs) names += (names.empty() ? "" : ",") + SlurmName(job);
  const ToolResult done =
      RunTool({"squeue", "--noheader", "--name=" + names, "--format=%i %T %j"}, {}, kQuestionTime);
  if (done.code != 0) throw Error(ErrorCode::kUnavailable, "squeue failed: " + done.Reason());
  std::vector<ClusterRun> runs;
  std::istringstream lines(done.out);
  for (std::string id, state, name; lines >> id >> state >> name;) {
    if (!IsNumber(id) || !name.starts_with(kNamePrefix)) continue;
    const std::optional<ClusterRun::State> known = StateOf(state);
    if (known) runs.push_back({name.substr(kNamePrefix.size()), id, *known});
  }
  return runs;
}

void SlurmCluster::Terminate(const std::string& id) {
  Scancel({"--state=PENDING", id});
  Scancel({"--batch", "--signal=TERM", id});
}

void SlurmCluster::Remove(const std::string& id) { Scancel({id}); }

}  // namespace tandem::server
