#include "server/launch/launch_manifest.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::server {
namespace {

using nlohmann::ordered_json;

constexpr const char* kTokenDir = "/run/secrets/huggingface";
constexpr const char* kSshdConfig = "/etc/ssh/tandem_sshd_config";  // in the trainer's image
// Trainers of MaxText that a training run of Tandem replaces.
constexpr std::string_view kTrainers[] = {"MaxText.train", "MaxText.sft.sft_trainer",
                                          "MaxText.sft_trainer"};

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

ordered_json EnvironmentOf(const LaunchPlan& plan) {
  ordered_json env = ordered_json::array();
  if (!plan.token_file.empty()) {
    env.push_back({{"name", "HF_TOKEN_PATH"}, {"value", plan.token_file}});
  }
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
  container["env"] = EnvironmentOf(plan);
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

// Exit 75 asks for a restart, which resumes; 137 and 143 are kills. Other exits are final, but for
// a lost node.
ordered_json FailurePolicyOf() {
  const ordered_json again = {75, 137, 143};
  const auto on_exit = [&](const char* action, const char* how) -> ordered_json {
    return {{"action", action}, {"onExitCodes", {{"operator", how}, {"values", again}}}};
  };
  const ordered_json disruption = {{"type", "DisruptionTarget"}, {"status", "True"}};
  return {{"rules", ordered_json::array({{{"action", "Ignore"},
                                          {"onPodConditions", ordered_json::array({disruption})}},
                                         on_exit("Count", "In"),
                                         on_exit("FailJob", "NotIn")})}};
}

ordered_json JobSpecOf(const LaunchPlan& plan, const ManifestOptions& options) {
  return {{"parallelism", 1},
          {"completions", 1},
          {"backoffLimit", 3},
          {"podFailurePolicy", FailurePolicyOf()},
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
  return {{"slotsPerWorker", plan.ranks_per_node},
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
                                      {"/usr/sbin/sshd", "-De", "-f", kSshdConfig})}}}}}};
}

ordered_json SpecOfTrainJob(const LaunchPlan& plan, const ManifestOptions& options) {
  ordered_json trainer = {{"image", options.image},     {"command", MpirunWords(plan, {})},
                          {"numNodes", plan.nodes},     {"numProcPerNode", plan.ranks_per_node},
                          {"env", EnvironmentOf(plan)}, {"resourcesPerNode", ResourcesOf(options)}};
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

// Splits a command as a POSIX shell does, without its substitutions and operators.
class CommandSplitter {
 public:
  explicit CommandSplitter(std::string_view text) : text_(text) {}

  std::vector<std::string> Words() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '\'' || c == '"') {
        has_word_ = true;
        ReadQuoted(c);
      } else if (c == '\\') {
        ReadEscape("");
      } else if (c == ' ' || c == '\t' || c == '\n') {
        EndWord();
      } else {
        Refuse(c, "$`;&|<>()");
        Append(c);
      }
    }
    EndWord();
    return std::move(words_);
  }

 private:
  // After the first quote.
  void ReadQuoted(char quote) {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == quote) return;
      if (quote == '"' && c == '\\') {
        ReadEscape("$`\"\\");
      } else {
        if (quote == '"') Refuse(c, "$`");
        Append(c);
      }
    }
    throw Error(ErrorCode::kInvalidArgument, "--command: a quote is not closed");
  }
  // After the backslash, which stays before characters other than `special`. Empty: it never stays.
  void ReadEscape(std::string_view special) {
    if (at_ == text_.size()) {
      throw Error(ErrorCode::kInvalidArgument, "--command ends with a backslash");
    }
    const char c = text_[at_++];
    if (c == '\n') return;  // the line goes on
    if (!special.empty() && special.find(c) == std::string_view::npos) Append('\\');
    Append(c);
  }
  static void Refuse(char c, std::string_view refused) {
    if (refused.find(c) == std::string_view::npos) return;
    throw Error(ErrorCode::kInvalidArgument,
                std::string("--command runs without a shell, so ") + c + " has no meaning in it");
  }
  void Append(char c) {
    word_.push_back(c);
    has_word_ = true;
  }
  void EndWord() {
    if (has_word_) words_.push_back(std::move(word_));
    word_.clear();
    has_word_ = false;
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string word_;
  bool has_word_ = false;
  std::vector<std::string> words_;
};

}  // namespace

std::string LaunchManifest(const LaunchPlan& given, const ManifestOptions& options) {
  LaunchPlan plan = given;
  if (!options.token_secret.empty()) plan.token_file = std::string(kTokenDir) + "/token";
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
  const std::vector<std::string> words = CommandSplitter(command).Words();
  const auto refuse = [](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, "--command" + why);
  };
  for (const std::string& word : words) {
    if (word.starts_with("JAX_") || word.starts_with("ENABLE_PATHWAYS") ||
        word == "enable_single_controller=True") {
      refuse(": " + Quoted(word) +
             " asks for Pathways. Tandem has no single controller: every rank runs the same "
             "program. Leave it out");
    }
  }
  size_t at = 0;
  if (words.size() > 2 && words[1] == "train" &&
      std::filesystem::path(words[0]).filename() == "tandem") {
    if (!plan.spec.empty() && plan.spec != words[2]) {
      refuse(" names the spec " + Quoted(words[2]) + ", and an argument names " +
             Quoted(plan.spec) + ": give one of them");
    }
    plan.spec = words[2];
    if (words[0] != "tandem") plan.program = words[0];
    at = 3;
  } else if (words.size() > 3 && words[0].starts_with("python") && words[1] == "-m") {
    if (std::find(std::begin(kTrainers), std::end(kTrainers), words[2]) == std::end(kTrainers)) {
      refuse(" runs " + Quoted(words[2]) +
             ", which is no trainer that Tandem replaces; there are MaxText.train and "
             "MaxText.sft.sft_trainer. `tandem convert`, `generate` and `eval` do other work");
    }
    if (plan.spec.empty()) {
      refuse(" names " + Quoted(words[3]) +
             ", a file of MaxText's image: give the spec to use instead as an argument");
    }
    at = 4;
  } else {
    refuse(
        " must be 'tandem train SPEC key=value …' or MaxText's 'python3 -m MaxText.… CONFIG "
        "key=value …'");
  }
  plan.overrides.insert(plan.overrides.end(), words.begin() + static_cast<std::ptrdiff_t>(at),
                        words.end());
}

}  // namespace tandem::server
