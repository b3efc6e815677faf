#include "server/launch/launch_plan.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "server/deploy/secret_scan.h"
#include "server/jobs/job_files.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxRanks = 65536;
// Of a batch job whose ranks were killed, for example for want of memory.
constexpr int kMostRestartsOfKilled = 10;

// ssh asks nothing, and a word that begins with a dash is refused before.
const std::vector<std::string> kSsh = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=15"};

bool IsLaunchName(std::string_view text) {
  return !text.empty() && text.size() <= 40 && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

void CheckWord(std::string_view word, std::string_view what) {
  const bool has_control = std::any_of(word.begin(), word.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (word.empty() || has_control || word.front() == '-') {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " must be one plain word, got " + Quoted(word));
  }
  std::vector<std::string> secrets = SecretsInLine(word);
  // MaxText's own argument, whatever its value looks like.
  if (word.starts_with("hf_access_token=")) secrets = {"access token of the Hugging Face hub"};
  if (!secrets.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " holds a secret (" + secrets[0] +
                    "), which every user of the machine could read: leave the word out. The hub's "
                    "token comes from --token-file or --token-secret");
  }
}

// A value of an #SBATCH line: the line has no quoting that all versions read alike.
void CheckDirective(std::string_view value, std::string_view what) {
  if (value.find_first_of(" \t\"'\\#") != std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(what) + " cannot stand in an #SBATCH line: " + Quoted(value));
  }
}

}  // namespace

std::vector<std::string> LaunchPlan::TrainWords() const {
  std::vector<std::string> words = {program, "train", spec};
  words.insert(words.end(), overrides.begin(), overrides.end());
  return words;
}

void CheckLaunchPlan(const LaunchPlan& plan) {
  if (!IsLaunchName(plan.name)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--name must be 1 to 40 lower-case letters, digits and inner dashes, got " +
                    Quoted(plan.name));
  }
  if (plan.nodes < 1 || plan.ranks_per_node < 1 || plan.nodes > kMaxRanks ||
      plan.ranks_per_node > kMaxRanks || plan.ranks() > kMaxRanks) {
    throw Error(ErrorCode::kInvalidArgument,
                "nodes times ranks per node must be from 1 to " + std::to_string(kMaxRanks));
  }
  CheckWord(plan.program, "--program");
  CheckWord(plan.spec, "the spec");
  for (const std::string& word : plan.overrides) {
    CheckWord(word, "an override");
    if (word.find('=') == std::string::npos) {
      throw Error(ErrorCode::kInvalidArgument,
                  "an override must be key=value, got " + Quoted(word));
    }
  }
}

std::vector<std::string> MpirunWords(const LaunchPlan& plan,
                                     const std::vector<std::string>& hosts) {
  std::vector<std::string> words;
  if (plan.ranks() > 1 || !hosts.empty()) {
    // A rank has threads for all of its processors. Open MPI would bind it to one core or socket.
    words = {"mpirun", "--bind-to", "none", "-n", std::to_string(plan.ranks())};
    if (!hosts.empty()) {
      std::string list;
      for (const std::string& host : hosts) {
        list += (list.empty() ? "" : ",") + host + ":" + std::to_string(plan.ranks_per_node);
      }
      words.insert(words.end(), {"--host", list, "--mca", "plm_rsh_args", "-o BatchMode=yes",
                                 "--output-filename", (plan.dir / "ranks").string()});
    }
    if (!plan.token_file.empty()) {
      words.insert(words.end(), {"-x", "HF_TOKEN_PATH=" + plan.token_file});
    }
  }
  const std::vector<std::string> train = plan.TrainWords();
  words.insert(words.end(), train.begin(), train.end());
  return words;
}

std::vector<std::string> LocalWords(const LaunchPlan& plan) {
  std::vector<std::string> words = MpirunWords(plan, {});
  if (plan.ranks() == 1 && !plan.token_file.empty()) {
    words.insert(words.begin(), {"env", "HF_TOKEN_PATH=" + plan.token_file});
  }
  return words;
}

std::string SbatchScript(const LaunchPlan& plan, const std::vector<std::string>& options) {
  CheckLaunchPlan(plan);
  const std::string log = (plan.dir / (plan.name + "-%j.log")).string();
  CheckDirective(log, "--dir");
  std::string script = "#!/bin/sh\n";
  const auto directive = [&](const std::string& option) {
    CheckDirective(option, "an option of sbatch");
    script += "#SBATCH " + option + "\n";
  };
  directive("--job-name=" + plan.name);
  directive("--nodes=" + std::to_string(plan.nodes));
  directive("--ntasks=" + std::to_string(plan.ranks()));
  directive("--ntasks-per-node=" + std::to_string(plan.ranks_per_node));
  directive("--output=" + log);
  directive("--open-mode=append");
  directive("--requeue");
  directive("--signal=B:TERM@120");
  for (const std::string& option : options) {
    CheckToolOption(
        option,
        {"--job-name", "--nodes", "--ntasks", "--ntasks-per-node", "--output", "--open-mode",
         "--requeue", "--no-requeue", "--signal", "--wrap", "--array", "--parsable"},
        "--option");
    directive(option);
  }
  script += "\n";
  if (!plan.token_file.empty()) {
    script += "export HF_TOKEN_PATH=" + ShellWord(plan.token_file) + "\n";
  }
  script +=
      "# Since version 22.05 srun takes the number of processors from this variable alone.\n"
      "if [ -n \"${SLURM_CPUS_PER_TASK:-}\" ]; then\n"
      "  export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n"
      "fi\n"
      "# The ranks get SIGTERM, write a checkpoint and end with 75. srun itself would kill them.\n"
      "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' TERM\n"
      "srun --mpi=pmix --kill-on-bad-exit=1 " +
      ShellWords(plan.TrainWords()) +
      " &\n"
      "ranks=$!\n"
      "wait \"$ranks\"\n"
      "code=$?\n"
      "while kill -0 \"$ranks\" 2>/dev/null; do\n"
      "  wait \"$ranks\"\n"
      "  code=$?\n"
      "done\n"
      "# After 75 the job is queued again and resumes. If a rank dies, srun kills the others and "
      "reports 137;\n"
      "# then the number of restarts is limited. A job that was cancelled is not RUNNING any "
      "more.\n"
      "if [ \"$code\" -eq 75 ] || { [ \"$code\" -eq 137 ] && [ \"${SLURM_RESTART_COUNT:-0}\" -lt " +
      std::to_string(kMostRestartsOfKilled) +
      " ]; }; then\n"
      "  if [ \"$(squeue --noheader --jobs=\"$SLURM_JOB_ID\" --format=%T)\" = RUNNING ]; then\n"
      "    scontrol requeue \"$SLURM_JOB_ID\"\n"
      "  fi\n"
      "fi\n"
      "exit \"$code\"\n";
  return script;
}

std::vector<std::string> ParseHosts(std::string_view text) {
  std::vector<std::string> hosts;
  while (!text.empty()) {
    const size_t end = text.find_first_of("\n,");
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    line = line.substr(0, line.find('#'));
    const size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) continue;
    line.remove_prefix(begin);
    const std::string host(line.substr(0, line.find_first_of(" \t\r")));
    const bool is_plain = std::all_of(host.begin(), host.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '-' || c == '_' || c == '@';
    });
    if (!is_plain || host.front() == '-' || host.size() > 255) {
      throw Error(ErrorCode::kInvalidArgument, "no name of a host: " + Quoted(host));
    }
    if (std::find(hosts.begin(), hosts.end(), host) != hosts.end()) {
      throw Error(ErrorCode::kInvalidArgument, "the host " + host + " is given twice");
    }
    hosts.push_back(host);
  }
  if (hosts.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no host: give --hosts");
  return hosts;
}

std::string HostProbeJson(const HostProbe& probe) {
  return ordered_json(
             {{"version", probe.version}, {"sha256", probe.sha256}, {"kernels", probe.kernels}})
      .dump();
}

namespace {

// What differs in the answer of a host; empty: nothing.
std::string DifferenceOf(const std::string& answer, const HostProbe& own) {
  if (!IsBoundedJsonObject(answer)) return "it answers no probe";
  const ordered_json wanted = ordered_json::parse(HostProbeJson(own));
  const ordered_json found = ordered_json::parse(answer);
  std::string fault;
  for (const auto& [name, value] : wanted.items()) {
    const auto other = found.find(name);
    const std::string text =
        other != found.end() && other->is_string() ? other->get<std::string>() : "nothing";
    if (text == value.get<std::string>()) continue;
    fault += (fault.empty() ? "" : ", ") + std::string(name) + " is " + Quoted(text, 64) +
             " and not " + value.get<std::string>();
  }
  return fault;
}

// The fault of a host; empty: it runs the program as `own` says.
std::string FaultOfHost(const std::string& host, const std::string& program, const HostProbe& own) {
  std::vector<std::string> argv = kSsh;
  // The remote side runs a shell, so the program's path is one quoted word.
  argv.insert(argv.end(), {host, "--", ShellWord(program) + " launch probe"});
  ToolResult done;
  // A host that hangs must not hide the others.
  if (const auto error = ErrorOf({ErrorCode::kUnavailable}, [&] { done = RunTool(argv); })) {
    return "could not run " + program + ": " + error->what();
  }
  if (done.code != 0) return "could not run " + program + ": " + done.Reason();
  return DifferenceOf(done.out, own);
}

}  // namespace

void CheckHosts(const std::vector<std::string>& hosts, const std::string& program,
                const HostProbe& own) {
  std::string faults;
  for (const std::string& host : hosts) {
    const std::string fault = FaultOfHost(host, program, own);
    if (!fault.empty()) faults += (faults.empty() ? "" : "\n") + host + ": " + fault;
  }
  if (!faults.empty()) throw Error(ErrorCode::kFailedPrecondition, faults);
}

namespace {

// Runs a command of a host's shell, or scp; throws kIo that names the host and the file.
void CopyStep(const std::vector<std::string>& argv, const std::string& host,
              const std::string& file) {
  const std::string what = "could not copy " + file + " to " + host + ": ";
  const auto name_host = [&](const Error& error) {
    return Error(error.code(), what + error.what());
  };
  const ToolResult done =
      WithContext(name_host, [&] { return RunTool(argv, {}, std::chrono::minutes(10)); });
  if (done.code != 0) throw Error(ErrorCode::kIo, what + done.Reason());
}

std::vector<std::string> OnHost(const std::string& host, const std::vector<std::string>& words) {
  std::vector<std::string> argv = kSsh;
  argv.insert(argv.end(), {host, "--", ShellWords(words)});
  return argv;
}

}  // namespace

// Writes beside the file and renames: a host may be this machine, and may run the old program.
void CopyToHosts(const std::vector<std::string>& hosts, const std::vector<std::string>& files) {
  for (const std::string& host : hosts) {
    for (const std::string& file : files) {
      const std::string fresh = file + ".tandem-new";
      const std::string dir = std::filesystem::path(file).parent_path();
      CopyStep(OnHost(host, {"mkdir", "-p", "--", dir}), host, file);
      CopyStep({"scp", "-p", "-o", "BatchMode=yes", "--", file, host + ":" + fresh}, host, file);
      CopyStep(OnHost(host, {"mv", "-f", "--", fresh, file}), host, file);
    }
  }
}

}  // namespace tandem::server
