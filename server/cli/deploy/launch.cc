#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/kernels/kernels.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"
#include "server/jobs/running_job.h"
#include "server/launch/cluster_runner.h"
#include "server/launch/launch_manifest.h"
#include "server/launch/launch_plan.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"
#include "training/dist/mpi_transport.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

struct LaunchFlags {
  LaunchPlan plan;
  ManifestOptions manifest;
  std::string kind = "mpijob";
  std::vector<std::string> options;
  std::string hosts;
  std::string command;
  std::string context;
  std::string tpu_type;
  std::string project;
  std::string zone;
  bool copy = false;
  bool submit = false;
  std::string job_dir;
  std::string job_verb;
};

int RunJob(const LaunchFlags& flags) {
  const fs::path dir = fs::absolute(flags.job_dir).lexically_normal();
  if (!fs::is_directory(dir)) {
    throw Error(ErrorCode::kNotFound, "no directory " + Quoted(dir.string()));
  }
  return RunClusterJob({dir.filename().string(), flags.job_verb, dir, LogFile(dir)},
                       "/proc/self/exe");
}

std::string HashOfProgram() {
  const fs::path path = "/proc/self/exe";
  struct stat status {};
  const engine::FileDescriptor file = engine::OpenRegularFile(path, status);
  engine::Sha256 hash;
  std::vector<std::byte> piece(1 << 20);
  for (int64_t offset = 0; offset < status.st_size;) {
    const auto left = static_cast<size_t>(status.st_size - offset);
    const std::span<std::byte> bytes = std::span(piece).first(std::min(piece.size(), left));
    engine::ReadAllAt(file, bytes, offset, path);
    hash.Update(bytes);
    offset += static_cast<int64_t>(bytes.size());
  }
  return engine::ToHex(hash.Finish());
}

HostProbe OwnProbe() {
  return {VersionLine(), HashOfProgram(), std::string(engine::Kernels().key)};
}

// Replaces this process, so that signals and the exit code are the launcher's.
[[noreturn]] void BecomeTool(const std::vector<std::string>& words) {
  std::vector<std::string> copies = words;
  std::vector<char*> argv;
  for (std::string& word : copies) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::fflush(stdout);
  ::execvp(argv[0], argv.data());
  throw Error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
              "could not start " + words[0] + ": " + std::generic_category().message(errno));
}

int PrintOrBecome(const LaunchFlags& flags, const std::vector<std::string>& words) {
  if (flags.submit) BecomeTool(words);
  std::printf("%s\n", ShellWords(words).c_str());
  return kExitDone;
}

// Prints the text, or gives it to a tool of the site on its standard input.
int PrintOrSubmit(const LaunchFlags& flags, const std::string& text,
                  const std::vector<std::string>& tool) {
  if (!flags.submit) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kExitDone;
  }
  const ToolResult done = RunTool(tool, text);
  std::fwrite(done.out.data(), 1, done.out.size(), stdout);
  if (done.code != 0) throw Error(ErrorCode::kIo, tool[0] + " failed: " + done.Reason());
  return kExitDone;
}

int LaunchLocal(const LaunchFlags& flags) {
  CheckLaunchPlan(flags.plan);
  return PrintOrBecome(flags, LocalWords(flags.plan));
}

// The program, the plug-in that it loads for MPI, and the spec.
std::vector<std::string> FilesToCopy(const LaunchPlan& plan) {
  std::vector<std::string> files = {plan.program};
  for (const fs::path& plugin : training::MpiPluginPathsOf(plan.program)) {
    if (fs::is_regular_file(plugin)) {
      files.push_back(plugin);
      break;  // the program takes the first one
    }
  }
  files.push_back(plan.spec);
  return files;
}

int LaunchSsh(LaunchFlags flags) {
  constexpr size_t kMaxHostsBytes = 1 << 20;
  const std::vector<std::string> hosts = ParseHosts(
      fs::is_regular_file(flags.hosts) ? engine::ReadWholeFile(flags.hosts, kMaxHostsBytes)
                                       : flags.hosts);
  flags.plan.nodes = static_cast<int64_t>(hosts.size());
  flags.plan.program =
      fs::absolute(flags.plan.program == "tandem" ? fs::read_symlink("/proc/self/exe")
                                                  : fs::path(flags.plan.program));
  flags.plan.spec = fs::absolute(flags.plan.spec);
  flags.plan.dir = fs::absolute(flags.plan.dir).lexically_normal();
  CheckLaunchPlan(flags.plan);
  if (flags.submit) {
    if (flags.copy) CopyToHosts(hosts, FilesToCopy(flags.plan));
    CheckHosts(hosts, flags.plan.program, OwnProbe());
  }
  return PrintOrBecome(flags, MpirunWords(flags.plan, hosts));
}

int LaunchSlurm(const LaunchFlags& flags) {
  return PrintOrSubmit(flags, SbatchScript(flags.plan, flags.options), {"sbatch", "--parsable"});
}

int LaunchKubernetes(LaunchFlags flags) {
  if (!flags.command.empty()) ReadXpkCommand(flags.command, flags.plan);
  if (flags.plan.spec.empty()) throw Error(ErrorCode::kInvalidArgument, "give a spec");
  const std::pair<const char*, const std::string&> unused[] = {
      {"--tpu-type", flags.tpu_type}, {"--project", flags.project}, {"--zone", flags.zone}};
  for (const auto& [name, value] : unused) {
    if (!value.empty()) std::fprintf(stderr, "tandem: %s has no effect here\n", name);
  }
  const std::map<std::string, ManifestKind> kinds = {{"job", ManifestKind::kJob},
                                                     {"jobset", ManifestKind::kJobSet},
                                                     {"mpijob", ManifestKind::kMpiJob},
                                                     {"trainjob", ManifestKind::kTrainJob}};
  flags.manifest.kind = kinds.at(flags.kind);
  if (flags.plan.program == "tandem") flags.plan.program = "/usr/bin/tandem";
  std::vector<std::string> kubectl = {"kubectl"};
  if (!flags.context.empty()) kubectl.push_back("--context=" + flags.context);
  kubectl.insert(kubectl.end(), {"create", "--filename=-"});
  return PrintOrSubmit(flags, LaunchManifest(flags.plan, flags.manifest), kubectl);
}

// `program`: the default in words.
void AddRunFlags(CLI::App& verb, LaunchFlags& flags, bool needs_spec, const char* program) {
  auto* spec = verb.add_option("spec", flags.plan.spec, "training spec, as the machines find it");
  if (needs_spec) spec->required();
  verb.add_option("overrides", flags.plan.overrides, "key=value words that override the spec");
  verb.add_option("--program", flags.plan.program, "this program on the machines")
      ->type_name("PATH")
      ->default_str(program);
  verb.add_option("--token-file", flags.plan.token_file,
                  "file on the machines with the hub's token")
      ->type_name("FILE");
  verb.add_flag("--submit", flags.submit, "start it; without this flag, print what would start");
}

CLI::App& AddTarget(CLI::App& command, const char* name, const char* description,
                    const std::shared_ptr<LaunchFlags>& flags, int (*run)(LaunchFlags),
                    int& exit_code) {
  CLI::App& verb = *command.add_subcommand(name, description);
  verb.callback([flags, run, &exit_code] { exit_code = run(*flags); });
  return verb;
}

void AddKubernetesFlags(CLI::App& verb, LaunchFlags& flags) {
  verb.add_option("--kind", flags.kind, "kind of object")
      ->check(CLI::IsMember({"job", "jobset", "mpijob", "trainjob"}))
      ->capture_default_str();
  verb.add_option("--image,--docker-image", flags.manifest.image, "image of the trainer")
      ->type_name("IMAGE")
      ->required();
  verb.add_option("--name,--workload", flags.plan.name, "name of the object")
      ->type_name("NAME")
      ->capture_default_str();
  verb.add_option("--nodes,--num-slices", flags.plan.nodes, "worker pods")->capture_default_str();
  verb.add_option("--ranks-per-node", flags.plan.ranks_per_node, "processes of a pod")
      ->capture_default_str();
  verb.add_option("--namespace", flags.manifest.name_space, "namespace of the object")
      ->type_name("NAME");
  verb.add_option("--queue", flags.manifest.queue, "queue of Kueue, which starts the object")
      ->type_name("NAME");
  verb.add_option("--claim", flags.manifest.claim, "volume claim with data and results")
      ->type_name("NAME");
  verb.add_option("--mount", flags.manifest.mount, "where the pods have that volume")
      ->type_name("PATH");
  verb.add_option("--cpu", flags.manifest.cpu, "processors of a pod")->type_name("N");
  verb.add_option("--memory", flags.manifest.memory, "memory of a pod, such as 64Gi")
      ->type_name("SIZE");
  verb.add_option("--token-secret", flags.manifest.token_secret,
                  "secret whose key `token` is the hub's token")
      ->type_name("NAME");
  verb.add_option("--runtime", flags.manifest.runtime, "training runtime of a trainjob")
      ->type_name("NAME")
      ->capture_default_str();
  verb.add_option("--cluster", flags.context, "context of kubectl")->type_name("NAME");
  verb.add_option("--command", flags.command, "what to run, in the words of XPK")
      ->type_name("TEXT");
  verb.add_option("--tpu-type", flags.tpu_type, "accepted for XPK's scripts, without effect")
      ->type_name("NAME");
  verb.add_option("--project", flags.project, "accepted for XPK's scripts, without effect")
      ->type_name("NAME");
  verb.add_option("--zone", flags.zone, "accepted for XPK's scripts, without effect")
      ->type_name("NAME");
}

}  // namespace

void AddLaunch(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<LaunchFlags>();
  command.require_subcommand(1);

  CLI::App& local = AddTarget(
      command, "local", "run a training spec on the processes of this machine", flags,
      [](LaunchFlags now) { return LaunchLocal(now); }, exit_code);
  AddRunFlags(local, *flags, true, "tandem");
  local.add_option("--ranks", flags->plan.ranks_per_node, "processes")->capture_default_str();

  CLI::App& ssh = AddTarget(command, "ssh", "run a training spec on hosts that ssh reaches", flags,
                            LaunchSsh, exit_code);
  AddRunFlags(ssh, *flags, true, "the path of this program");
  ssh.add_option("--hosts", flags->hosts, "file with a host per line, or names with commas")
      ->required()
      ->type_name("FILE");
  ssh.add_option("--ranks-per-node", flags->plan.ranks_per_node, "processes of a host")
      ->capture_default_str();
  ssh.add_option("--dir", flags->plan.dir, "directory here for the output of each rank")
      ->type_name("DIR")
      ->default_str("the working directory");
  ssh.add_flag("--sync", flags->copy,
               "copy the program, its plug-in for MPI and the spec to the hosts first");

  CLI::App& slurm = AddTarget(
      command, "slurm", "write or submit a batch script of Slurm", flags,
      [](LaunchFlags now) { return LaunchSlurm(now); }, exit_code);
  AddRunFlags(slurm, *flags, true, "tandem");
  slurm.add_option("--name", flags->plan.name, "name of the job")
      ->type_name("NAME")
      ->capture_default_str();
  slurm.add_option("--nodes", flags->plan.nodes, "machines")->capture_default_str();
  slurm.add_option("--ranks-per-node", flags->plan.ranks_per_node, "processes of a machine")
      ->capture_default_str();
  slurm.add_option("--dir", flags->plan.dir, "directory of the job's log")
      ->type_name("DIR")
      ->default_str("the working directory");
  slurm
      .add_option("--option", flags->options,
                  "option of sbatch, such as --option=--partition=long; repeatable")
      ->type_name("OPTION");

  CLI::App& kubernetes = AddTarget(command, "k8s", "write or submit an object of Kubernetes", flags,
                                   LaunchKubernetes, exit_code);
  AddRunFlags(kubernetes, *flags, false, "/usr/bin/tandem");
  AddKubernetesFlags(kubernetes, *flags);

  CLI::App& probe = *command.add_subcommand(
      "probe", "print version, hash and kernels of this program; launch ssh compares them");
  probe.callback([&exit_code] {
    std::printf("%s\n", HostProbeJson(OwnProbe()).c_str());
    exit_code = kExitDone;
  });

  CLI::App& job = *command.add_subcommand(
      "job", "run a server's job on a machine of a cluster; the scheduler calls this");
  job.add_option("--dir", flags->job_dir, "directory of the job")->required()->type_name("DIR");
  job.add_option("--verb", flags->job_verb, "verb that does the work")
      ->required()
      ->check(CLI::IsMember({"train", "convert", "pipeline"}));
  job.callback([flags, &exit_code] { exit_code = RunJob(*flags); });
}

}  // namespace tandem::server
