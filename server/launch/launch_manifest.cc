#include "server/launch/launch_manifest.h"

#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTokenDir = "/run/secrets/huggingface";

ordered_json SecurityOf() {
  return {{"allowPrivilegeEscalation", false},
          {"readOnlyRootFilesystem", true},
          {"capabilities", {{"drop", ordered_json::array({"ALL"})}}}};
}

ordered_json VolumesOf(const ManifestOptions& options) {
  ordered_json volumes = ordered_json::array();
  volumes.push_back({{"name", "scratch"}, {"emptyDir", ordered_json::object()}});
  if (!options.claim.empty()) {
    volumes.push_back(
        {{"name", "data"}, {"persistentVolumeClaim", {{"claimName", options.claim}}}});
  }
  if (!options.token_secret.empty()) {
    volumes.push_back({{"name", "token"}, {"secret", {{"secretName", options.token_secret}}}});
  }
  return volumes;
}

ordered_json MountsOf(const ManifestOptions& options) {
  ordered_json mounts = ordered_json::array();
  mounts.push_back({{"name", "scratch"}, {"mountPath", "/tmp"}});
  if (!options.claim.empty()) {
    mounts.push_back({{"name", "data"}, {"mountPath", options.mount}});
  }
  if (!options.token_secret.empty()) {
    mounts.push_back({{"name", "token"}, {"mountPath", kTokenDir}, {"readOnly", true}});
  }
  return mounts;
}

ordered_json EnvironmentOf(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json env = ordered_json::array();
  const std::string token =
      !options.token_secret.empty() ? std::string(kTokenDir) + "/token" : plan.token_file;
  if (!token.empty()) env.push_back({{"name", "HF_TOKEN_PATH"}, {"value", token}});
  return env;
}

ordered_json ResourcesOf(const ManifestOptions& options) {
  ordered_json resources = ordered_json::object();
  if (!options.cpu.empty()) resources["requests"]["cpu"] = options.cpu;
  if (!options.memory.empty()) {
    resources["requests"]["memory"] = options.memory;
    resources["limits"]["memory"] = options.memory;
  }
  return resources;
}

ordered_json ContainerOf(const LaunchPlan& plan, const ManifestOptions& options, const char* name,
                         const std::vector<std::string>& words) {
  ordered_json container = {{"name", name}, {"image", options.image}};
  if (!words.empty()) container["command"] = words;
  container["env"] = EnvironmentOf(plan, options);
  container["resources"] = ResourcesOf(options);
  container["securityContext"] = SecurityOf();
  container["volumeMounts"] = MountsOf(options);
  return container;
}

ordered_json PodOf(const ManifestOptions& options, const ordered_json& container) {
  return {{"restartPolicy", "Never"},
          {"terminationGracePeriodSeconds", 300},
          {"securityContext",
           {{"runAsNonRoot", true},
            {"runAsUser", 10001},
            {"runAsGroup", 10001},
            {"fsGroup", 10001},
            {"seccompProfile", {{"type", "RuntimeDefault"}}}}},
          {"containers", ordered_json::array({container})},
          {"volumes", VolumesOf(options)}};
}

ordered_json TemplateOf(const LaunchPlan& plan, const ManifestOptions& options,
                        const char* container, const std::vector<std::string>& words) {
  return {{"metadata", {{"labels", {{"app.kubernetes.io/instance", plan.name}}}}},
          {"spec", PodOf(options, ContainerOf(plan, options, container, words))}};
}

ordered_json JobSpecOf(const LaunchPlan& plan, const ManifestOptions& options) {
  return {{"parallelism", 1},
          {"completions", 1},
          {"backoffLimit", 3},
          {"template", TemplateOf(plan, options, "trainer", MpirunWords(plan, {}))}};
}

ordered_json SpecOfJob(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json spec = JobSpecOf(plan, options);
  spec["ttlSecondsAfterFinished"] = 86400;
  if (!options.queue.empty()) spec["suspend"] = true;
  return spec;
}

ordered_json SpecOfJobSet(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json spec = {
      {"ttlSecondsAfterFinished", 86400},
      {"failurePolicy", {{"maxRestarts", 3}}},
      {"replicatedJobs",
       ordered_json::array({{{"name", "trainer"},
                             {"replicas", 1},
                             {"template", {{"spec", JobSpecOf(plan, options)}}}}})}};
  if (!options.queue.empty()) spec["suspend"] = true;
  return spec;
}

ordered_json SpecOfMpiJob(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json policy = {
      {"cleanPodPolicy", "Running"}, {"ttlSecondsAfterFinished", 86400}, {"backoffLimit", 3}};
  if (!options.queue.empty()) policy["suspend"] = true;
  return {
      {"slotsPerWorker", plan.ranks_per_node},
      {"sshAuthMountPath", "/data/.ssh"},
      {"mpiImplementation", "OpenMPI"},
      {"runPolicy", policy},
      {"mpiReplicaSpecs",
       {{"Launcher",
         {{"replicas", 1},
          {"restartPolicy", "OnFailure"},
          {"template", TemplateOf(plan, options, "launcher", MpirunWords(plan, {}))}}},
        {"Worker",
         {{"replicas", plan.nodes},
          {"restartPolicy", "Never"},
          {"template", TemplateOf(plan, options, "worker",
                                  {"/usr/sbin/sshd", "-De", "-f", "/data/.ssh/sshd_config"})}}}}}};
}

ordered_json SpecOfTrainJob(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json trainer = {{"image", options.image},
                          {"command", MpirunWords(plan, {})},
                          {"numNodes", plan.nodes},
                          {"numProcPerNode", plan.ranks_per_node},
                          {"env", EnvironmentOf(plan, options)},
                          {"resourcesPerNode", ResourcesOf(options)}};
  ordered_json spec = {{"runtimeRef",
                        {{"apiGroup", "trainer.kubeflow.org"},
                         {"kind", "ClusterTrainingRuntime"},
                         {"name", options.runtime}}},
                       {"trainer", trainer}};
  if (!options.claim.empty() || !options.token_secret.empty()) {
    ordered_json jobs = ordered_json::array();
    for (const char* name : {"launcher", "node"}) {
      const ordered_json pod = {
          {"volumes", VolumesOf(options)},
          {"containers",
           ordered_json::array({{{"name", "node"}, {"volumeMounts", MountsOf(options)}}})}};
      jobs.push_back({{"name", name}, {"template", {{"spec", {{"template", {{"spec", pod}}}}}}}});
    }
    spec["runtimePatches"] = ordered_json::array(
        {{{"manager", "tandem"},
          {"trainingRuntimeSpec", {{"template", {{"spec", {{"replicatedJobs", jobs}}}}}}}}});
  }
  if (!options.queue.empty()) spec["suspend"] = true;
  return spec;
}

void CheckManifestWord(const std::string& word) {
  if (word.find("$(") != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument, "Kubernetes would replace $( in " + Quoted(word));
  }
}

// Words of a command without a shell: quotes, backslashes and spaces, and nothing else.
std::vector<std::string> SplitCommand(std::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool has_word = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == quote) {
        quote = 0;
      } else {
        word.push_back(c);
      }
    } else if (c == '\'' || c == '"') {
      quote = c;
      has_word = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (has_word) words.push_back(std::move(word));
      word.clear();
      has_word = false;
    } else if (std::string_view("$`;&|<>()").find(c) != std::string_view::npos) {
      throw Error(ErrorCode::kInvalidArgument,
                  std::string("--command runs without a shell, so ") + c + " has no meaning in it");
    } else {
      word.push_back(c);
      has_word = true;
    }
  }
  if (quote != 0) throw Error(ErrorCode::kInvalidArgument, "--command: a quote is not closed");
  if (has_word) words.push_back(std::move(word));
  return words;
}

}  // namespace

std::string LaunchManifest(const LaunchPlan& plan, const ManifestOptions& options) {
  CheckLaunchPlan(plan);
  if (options.image.empty()) throw Error(ErrorCode::kInvalidArgument, "give --image");
  if (options.claim.empty() != options.mount.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "--claim and --mount need each other");
  }
  for (const std::string& word : plan.TrainWords()) CheckManifestWord(word);
  const bool has_launcher =
      options.kind == ManifestKind::kMpiJob || options.kind == ManifestKind::kTrainJob;
  if (!has_launcher && plan.nodes > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "a job without MPI's launcher has one node: give --kind mpijob or trainjob, or "
                "--ranks-per-node");
  }
  struct Kind {
    const char* version;
    const char* name;
    ordered_json (*spec)(const LaunchPlan&, const ManifestOptions&);
  };
  constexpr Kind kKinds[] = {{"batch/v1", "Job", SpecOfJob},
                             {"jobset.x-k8s.io/v1alpha2", "JobSet", SpecOfJobSet},
                             {"kubeflow.org/v2beta1", "MPIJob", SpecOfMpiJob},
                             {"trainer.kubeflow.org/v1alpha1", "TrainJob", SpecOfTrainJob}};
  const Kind& kind = kKinds[static_cast<size_t>(options.kind)];
  ordered_json metadata = {{"name", plan.name}};
  if (!options.name_space.empty()) metadata["namespace"] = options.name_space;
  metadata["labels"] = {{"app.kubernetes.io/part-of", "tandem"},
                        {"app.kubernetes.io/instance", plan.name}};
  if (!options.queue.empty()) metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue;
  return ordered_json({{"apiVersion", kind.version},
                       {"kind", kind.name},
                       {"metadata", metadata},
                       {"spec", kind.spec(plan, options)}})
             .dump(2) +
         "\n";
}

void ReadXpkCommand(const std::string& command, LaunchPlan& plan) {
  std::vector<std::string> words = SplitCommand(command);
  for (const std::string& word : words) {
    if (word.starts_with("JAX_") || word.starts_with("ENABLE_PATHWAYS") ||
        word == "enable_single_controller=True") {
      throw Error(ErrorCode::kInvalidArgument,
                  "--command: " + Quoted(word) +
                      " asks for Pathways. Tandem has no single controller: every rank runs the "
                      "same program. Leave it out");
    }
  }
  size_t at = 0;
  const bool is_tandem = words.size() > 2 && words[1] == "train" && words[0].ends_with("tandem");
  const bool is_maxtext = words.size() > 3 && words[0].starts_with("python") && words[1] == "-m" &&
                          words[2].starts_with("MaxText.");
  if (is_tandem) {
    plan.spec = words[2];
    at = 3;
  } else if (is_maxtext) {
    if (plan.spec.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "--command names " + Quoted(words[3]) +
                      ", a file of MaxText's image: give the spec to use instead as an argument");
    }
    at = 4;
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "--command must be 'tandem train SPEC key=value …' or MaxText's "
                "'python3 -m MaxText.… CONFIG key=value …'");
  }
  plan.overrides.insert(plan.overrides.end(), words.begin() + static_cast<std::ptrdiff_t>(at),
                        words.end());
}

}  // namespace tandem::server
