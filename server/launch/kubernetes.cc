#include "server/launch/kubernetes.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

// Before the id of the job, in the label `instance`.
constexpr std::string_view kInstancePrefix = "tandem-";

// A line of KubernetesCluster::List. nullopt: the run has ended, or the line is broken.
std::optional<ClusterRun> RunOfLine(std::string_view line) {
  std::array<std::string_view, 5> fields;
  for (std::string_view& field : fields) {
    const size_t end = std::min(line.find('|'), line.size());
    field = line.substr(0, end);
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  const auto& [name, instance, ready, deleted, conditions] = fields;
  if (name.empty() || !instance.starts_with(kInstancePrefix)) return std::nullopt;
  if (conditions.find("Complete") != std::string_view::npos ||
      conditions.find("Failed") != std::string_view::npos) {
    return std::nullopt;
  }
  ClusterRun run = {std::string(instance.substr(kInstancePrefix.size())), std::string(name)};
  if (!ready.empty() && ready != "0") run.state = ClusterRun::State::kRunning;
  if (!deleted.empty()) run.state = ClusterRun::State::kEnding;
  return run;
}

std::string WithoutKind(const std::string& name) {
  const std::string line = name.substr(0, name.find_first_of(" \n"));
  const size_t slash = line.rfind('/');
  return slash == std::string::npos ? line : line.substr(slash + 1);
}

}  // namespace

KubernetesOptions ParseKubernetesOptions(const std::vector<std::string>& words) {
  std::map<std::string, std::string> values;
  for (const std::string& word : words) {
    CheckToolOption(word, {}, "jobs-option");
    const size_t sign = word.find('=');
    const std::string name = word.substr(0, sign);
    const std::string value = sign == std::string::npos ? "" : word.substr(sign + 1);
    constexpr std::string_view kNames[] = {"--image", "--claim",        "--mount", "--namespace",
                                           "--queue", "--token-secret", "--cpu",   "--memory"};
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "jobs-option " + Quoted(name) +
                      " is not known for kubernetes; there are --image, --claim, --mount, "
                      "--namespace, --queue, --token-secret, --cpu and --memory");
    }
    if (value.empty())
      throw Error(ErrorCode::kInvalidArgument, "jobs-option " + name + " is empty");
    if (!values.emplace(name, value).second) {
      throw Error(ErrorCode::kInvalidArgument, "jobs-option " + name + " is given twice");
    }
  }
  for (const char* name : {"--image", "--claim", "--mount"}) {
    if (!values.contains(name)) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string("jobs-on kubernetes needs jobs-option ") + name + "=…");
    }
  }
  KubernetesOptions options;
  options.image = values["--image"];
  options.claim = values["--claim"];
  options.mount = values["--mount"];
  options.name_space = values["--namespace"];
  options.queue = values["--queue"];
  options.token_secret = values["--token-secret"];
  options.cpu = values["--cpu"];
  options.memory = values["--memory"];
  if (!options.mount.is_absolute()) {
    throw Error(ErrorCode::kInvalidArgument, "jobs-option --mount must be an absolute path");
  }
  return options;
}

std::string KubernetesCluster::Manifest(const JobStart& job) const {
  const std::string dir = job.dir.string();
  if (dir.find("$(") != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "Kubernetes would replace $( in " + Quoted(dir));
  }
  const std::string instance = std::string(kInstancePrefix) + job.id;
  ordered_json labels = {{"app.kubernetes.io/part-of", "tandem"},
                         {"app.kubernetes.io/instance", instance}};
  ordered_json container = {{"name", "job"},
                            {"image", options_.image},
                            {"command", {options_.program.string()}},
                            {"args", {"launch", "job", "--dir", dir, "--verb", job.verb}},
                            {"securityContext",
                             {{"allowPrivilegeEscalation", false},
                              {"readOnlyRootFilesystem", true},
                              {"capabilities", {{"drop", {"ALL"}}}}}},
                            {"volumeMounts",
                             {{{"name", "jobs"}, {"mountPath", options_.mount.string()}},
                              {{"name", "scratch"}, {"mountPath", "/tmp"}}}}};
  if (!options_.cpu.empty()) container["resources"]["requests"]["cpu"] = options_.cpu;
  if (!options_.memory.empty()) {
    container["resources"]["requests"]["memory"] = options_.memory;
    container["resources"]["limits"]["memory"] = options_.memory;
  }
  ordered_json volumes = ordered_json::array();
  volumes.push_back({{"name", "jobs"}, {"persistentVolumeClaim", {{"claimName", options_.claim}}}});
  volumes.push_back({{"name", "scratch"}, {"emptyDir", ordered_json::object()}});
  if (!options_.token_secret.empty()) {
    volumes.push_back({{"name", "token"}, {"secret", {{"secretName", options_.token_secret}}}});
    container["volumeMounts"].push_back(
        {{"name", "token"}, {"mountPath", "/run/secrets/huggingface"}, {"readOnly", true}});
    container["env"] = ordered_json::array(
        {{{"name", "HF_TOKEN_PATH"}, {"value", "/run/secrets/huggingface/token"}}});
  }
  ordered_json pod = {{"restartPolicy", "Never"},
                      {"terminationGracePeriodSeconds", 300},
                      {"securityContext",
                       {{"runAsNonRoot", true},
                        {"runAsUser", 10001},
                        {"runAsGroup", 10001},
                        {"fsGroup", 10001},
                        {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
                      {"containers", ordered_json::array({container})},
                      {"volumes", volumes}};
  ordered_json metadata = {{"generateName", instance + "-"}, {"labels", labels}};
  if (!options_.queue.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = options_.queue;
  ordered_json spec = {{"backoffLimit", 0},
                       {"ttlSecondsAfterFinished", 86400},
                       {"template", {{"metadata", {{"labels", labels}}}, {"spec", pod}}}};
  if (!options_.queue.empty()) spec["suspend"] = true;  // until Kueue admits it
  return ordered_json(
             {{"apiVersion", "batch/v1"}, {"kind", "Job"}, {"metadata", metadata}, {"spec", spec}})
      .dump(2);
}

std::vector<std::string> KubernetesCluster::Kubectl(std::vector<std::string> words) const {
  std::vector<std::string> argv = {"kubectl"};
  if (!options_.name_space.empty()) argv.push_back("--namespace=" + options_.name_space);
  argv.insert(argv.end(), words.begin(), words.end());
  return argv;
}

std::string KubernetesCluster::Submit(const JobStart& job) {
  const ToolResult done =
      RunTool(Kubectl({"create", "--filename=-", "--output=name"}), Manifest(job), kSubmissionTime);
  const std::string id = WithoutKind(done.out);
  if (done.code != 0 || id.empty()) {
    throw Error(ErrorCode::kUnavailable, "kubectl could not create the job: " + done.Reason());
  }
  return id;
}

// The fields of a line: name, instance, ready pods, time of the deletion, types of the conditions.
std::vector<ClusterRun> KubernetesCluster::List(const std::vector<std::string>& jobs) {
  std::string instances;
  for (const std::string& job : jobs) {
    instances += (instances.empty() ? "" : ",") + std::string(kInstancePrefix) + job;
  }
  const ToolResult done = RunTool(
      Kubectl({"get", "jobs", "--selector=app.kubernetes.io/instance in (" + instances + ")",
               "--output=jsonpath={range .items[*]}{.metadata.name}|"
               "{.metadata.labels.app\\.kubernetes\\.io/instance}|{.status.ready}|"
               "{.metadata.deletionTimestamp}|{.status.conditions[*].type}{\"\\n\"}{end}"}),
      {}, kQuestionTime);
  if (done.code != 0) throw Error(ErrorCode::kUnavailable, "kubectl failed: " + done.Reason());
  std::vector<ClusterRun> runs;
  std::istringstream lines(done.out);
  for (std::string line; std::getline(lines, line);) {
    if (const std::optional<ClusterRun> run = RunOfLine(line)) runs.push_back(*run);
  }
  return runs;
}

void KubernetesCluster::Delete(std::vector<std::string> words) const {
  std::vector<std::string> all = {"delete", "--ignore-not-found", "--wait=false"};
  all.insert(all.end(), words.begin(), words.end());
  const std::optional<Error> fault = ErrorOf([&] {
    const ToolResult done = RunTool(Kubectl(std::move(all)), {}, kQuestionTime);
    if (done.code != 0) spdlog::warn("kubectl delete failed reason=\"{}\"", done.Reason());
  });
  if (fault) spdlog::warn("kubectl delete failed error=\"{}\"", fault->what());
}

// The object stays until its pods have ended: they write a checkpoint first.
void KubernetesCluster::Terminate(const std::string& id) {
  Delete({"--cascade=foreground", "job", id});
}

void KubernetesCluster::Remove(const std::string& id) {
  Delete({"--cascade=foreground", "job", id});
  Delete({"--grace-period=1", "pods", "--selector=job-name=" + id});
}

}  // namespace tandem::server
