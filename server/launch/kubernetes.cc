#include "server/launch/kubernetes.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "server/launch/shell_words.h"
#include "server/launch/tool.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

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
  const std::string instance = "tandem-" + job.id;
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
      RunTool(Kubectl({"create", "--filename=-", "--output=name"}), Manifest(job));
  const std::string id = WithoutKind(done.out);
  if (done.code != 0 || id.empty()) {
    throw Error(ErrorCode::kUnavailable, "kubectl could not create the job: " + done.Reason());
  }
  return id;
}

std::string KubernetesCluster::Find(const JobStart& job) {
  const ToolResult done = RunTool(Kubectl(
      {"get", "jobs", "--selector=app.kubernetes.io/instance=tandem-" + job.id, "--output=name"}));
  if (done.code != 0) throw Error(ErrorCode::kUnavailable, "kubectl failed: " + done.Reason());
  return WithoutKind(done.out);
}

Cluster::State KubernetesCluster::Ask(const std::string& id) {
  State answer = State::kUnknown;
  const std::optional<Error> fault = ErrorOf([&] { answer = AskOnce(id); });
  if (fault) spdlog::debug("kubectl failed error=\"{}\"", fault->what());
  return answer;
}

Cluster::State KubernetesCluster::AskOnce(const std::string& id) const {
  const ToolResult done = RunTool(
      Kubectl({"get", "job", id, "--ignore-not-found",
               "--output=jsonpath={.metadata.name}|{.status.ready}|{.status.conditions[*].type}"}));
  if (done.code != 0) return State::kUnknown;
  if (done.out.empty()) return State::kGone;
  const size_t first = done.out.find('|');
  const size_t second = done.out.find('|', first + 1);
  if (second == std::string::npos) return State::kUnknown;
  const std::string ready = done.out.substr(first + 1, second - first - 1);
  const std::string conditions = done.out.substr(second + 1);
  if (conditions.find("Complete") != std::string::npos ||
      conditions.find("Failed") != std::string::npos) {
    return State::kGone;
  }
  return ready.empty() || ready == "0" ? State::kWaiting : State::kRunning;
}

void KubernetesCluster::Delete(std::vector<std::string> words) const {
  std::vector<std::string> all = {"delete", "--ignore-not-found", "--wait=false"};
  all.insert(all.end(), words.begin(), words.end());
  const std::optional<Error> fault = ErrorOf([&] {
    const ToolResult done = RunTool(Kubectl(std::move(all)));
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
