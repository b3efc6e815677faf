#include "server/deploy/variables.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

using enum DeployRule;

constexpr DeployVariable kVariables[] = {
    {"PROJECT_ID", "PROJECT", kName, "", "project of the cloud, or of the registry", true},
    {"REGION", "", kName, "", "region of the cluster, bucket and registry", true},
    {"REPO_NAME", "", kName, "", "repository in the registry", true},
    {"CLUSTER_NAME", "", kName, "tandem", "name of the cluster"},
    {"NAMESPACE", "", kName, "tandem", "Kubernetes namespace of all objects"},
    {"REGISTRY", "", kImage, "${REGION}-docker.pkg.dev/${PROJECT_ID}/${REPO_NAME}",
     "registry and path of the images"},
    {"IMAGE_TAG", "", kImage, "latest", "tag of the images"},
    {"SERVER_IMAGE", "", kImage, "${REGISTRY}/tandem-server:${IMAGE_TAG}", "image of servers"},
    {"TRAINER_IMAGE", "DOCKER_IMAGE", kImage, "${REGISTRY}/tandem-trainer:${IMAGE_TAG}",
     "image of conversion and training"},
    {"ARTIFACTS_BUCKET", "", kName, "${PROJECT_ID}-tandem-artifacts", "bucket of checkpoints"},
    {"DATASETS_BUCKET", "", kName, "${PROJECT_ID}-tandem-datasets", "bucket of data sets"},
    {"MOUNT_DIR", "", kPath, "/gcs/artifacts", "where the shared volume is mounted"},
    {"STORAGE_CLASS", "", kName, "standard-rwx", "storage class that many nodes can mount"},
    {"STORAGE_SIZE", "", kSize, "200Gi", "size of the shared volume"},
    {"MODEL_NAME", "", kName, "gemma2-2b", "served name of the model"},
    {"MODEL_PATH", "", kText, "google/gemma-2-2b", "base model: hub name or directory"},
    {"TOKENIZER_PATH", "", kText, "google/gemma-2-2b-it", "tokenizer: hub name or directory"},
    {"CHECKPOINT_ID", "", kName, "local", "name of this run"},
    {"OUTPUT_DIR", "", kPath, "${MOUNT_DIR}/output/finetuned", "runs and their checkpoints"},
    {"SCANNED_CKPT_BASE_DIR", "", kPath, "${MOUNT_DIR}/checkpoints/scanned", "output of step 1"},
    {"HF_OUTPUT_BASE_DIR", "", kPath, "${MOUNT_DIR}/finetuned-hf-models", "output of step 4"},
    {"PIPELINE_DIR", "", kPath, "${MOUNT_DIR}/pipelines/${CHECKPOINT_ID}", "state of the pipeline"},
    {"DATASET_PATH", "DATASET_NAME", kText, "${MOUNT_DIR}/datasets/ultrachat_200k",
     "chats: Parquet, JSON Lines, or their directory"},
    {"PROMPT", "", kText, "I love to", "prompt of the inference test"},
    {"STEPS", "", kCount, "1000", "training steps"},
    {"TRAINER_CPU", "", kSize, "8", "processors of a training pod"},
    {"TRAINER_MEMORY", "", kSize, "64Gi", "memory of a training pod"},
    {"SERVER_CPU", "", kSize, "4", "processors of a server"},
    {"SERVER_MEMORY", "", kSize, "16Gi", "memory of a server"},
    {"SERVER_REPLICAS", "", kCount, "2", "servers behind the router"},
    {"DATABASE_SIZE", "", kSize, "20Gi", "disk of PostgreSQL"},
    {"HUGGINGFACE_TOKEN", "HF_TOKEN", kSecret, "",
     "access token of the hub; prefer HUGGINGFACE_TOKEN_FILE"},
    {"HUGGINGFACE_TOKEN_FILE", "HF_TOKEN_PATH", kPath, "/run/secrets/huggingface-token",
     "file with the token; create-secrets.sh reads it"},
};

// Names of the seeds' scripts that no template needs. `tandem launch k8s` takes some of them as
// flags.
constexpr std::string_view kUnused[] = {"ZONE",
                                        "WORKLOAD_NAME",
                                        "TPU_TYPE",
                                        "TPU_SLICE",
                                        "DOCKER_IMAGE_NAME",
                                        "OUTPUT_PATH",
                                        "TRAIN_SPLIT",
                                        "TRAIN_DATA_COLUMNS",
                                        "MODEL_CHECKPOINT_PATH",
                                        "MODEL_CHECKPOINT_DIRECTORY",
                                        "USE_ZARR3",
                                        "USE_OCDBT"};

bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsUpper(char c) { return c >= 'A' && c <= 'Z'; }

bool IsDeployName(std::string_view text) {
  if (text.empty() || text.size() > 50 || text.front() == '-' || text.back() == '-') return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return IsLower(c) || IsDigit(c) || c == '-'; });
}

bool IsImage(std::string_view text) {
  if (text.empty() || text.size() > 500 || !(IsLower(text.front()) || IsDigit(text.front()))) {
    return false;
  }
  return std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || IsDigit(c) || IsUpper(c) ||
           std::string_view("._/:@-").find(c) != std::string_view::npos;
  });
}

bool IsPath(std::string_view text) {
  if (text.size() < 2 || text.size() > 1000 || text.front() != '/') return false;
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || IsDigit(c) || IsUpper(c) ||
           std::string_view("._/-").find(c) != std::string_view::npos;
  });
  const std::string closed = std::string(text) + "/";
  return plain && closed.find("/./") == std::string::npos &&
         closed.find("/../") == std::string::npos && closed.find("//") == std::string::npos;
}

bool IsCount(std::string_view text) {
  return !text.empty() && text.size() <= 9 && text.front() != '0' &&
         std::all_of(text.begin(), text.end(), IsDigit);
}

bool IsSize(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  if (!IsCount(text.substr(0, digits))) return false;
  const std::string_view unit = text.substr(digits);
  constexpr std::string_view kUnits[] = {"", "m", "Ki", "Mi", "Gi", "Ti"};
  return std::find(std::begin(kUnits), std::end(kUnits), unit) != std::end(kUnits);
}

bool IsLine(std::string_view text) {
  return !text.empty() && text.size() <= 4096 && std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
}

bool Obeys(DeployRule rule, std::string_view text) {
  switch (rule) {
    case kName:
      return IsDeployName(text);
    case kImage:
      return IsImage(text);
    case kPath:
      return IsPath(text);
    case kCount:
      return IsCount(text);
    case kSize:
      return IsSize(text);
    case kText:
    case kSecret:
      return IsLine(text);
  }
  return false;
}

const char* TextOf(DeployRule rule) {
  switch (rule) {
    case kName:
      return "1 to 50 lower-case letters, digits and inner dashes";
    case kImage:
      return "registry/name:tag";
    case kPath:
      return "an absolute path of letters, digits and ._- without '..'";
    case kCount:
      return "a positive number of at most 9 digits";
    case kSize:
      return "a Kubernetes quantity such as 8, 500m or 16Gi";
    case kText:
    case kSecret:
      return "one printable line of at most 4096 bytes";
  }
  return "";
}

// Examples of the seeds' documents that a user must replace.
bool IsPlaceholder(std::string_view text) {
  if (text.size() >= 2 && text.front() == '<' && text.back() == '>') return true;
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return IsUpper(c) ? static_cast<char>(c + 32) : c; });
  return text.find("YOUR_") != std::string_view::npos || lower.starts_with("your-") ||
         lower.starts_with("your_") || lower.starts_with("hf_your");
}

std::string Names(const DeployVariable& variable) {
  return variable.alias.empty()
             ? std::string(variable.name)
             : std::string(variable.name) + " (or " + std::string(variable.alias) + ")";
}

// Faults of a whole file, reported at once.
class Faults {
 public:
  void Add(const std::string& fault) { text_ += (text_.empty() ? "" : "\n") + fault; }
  void ThrowIfAny() const {
    if (!text_.empty()) throw Error(ErrorCode::kInvalidArgument, text_);
  }

 private:
  std::string text_;
};

// The given value of a variable under either of its names; null: none.
const EnvValue* GivenOf(const EnvValues& given, const DeployVariable& variable) {
  const auto found = given.find(variable.name);
  if (found != given.end()) return &found->second;
  const auto other = variable.alias.empty() ? given.end() : given.find(variable.alias);
  return other == given.end() ? nullptr : &other->second;
}

const DeployVariable* FindVariable(std::string_view name) {
  for (const DeployVariable& variable : kVariables) {
    if (variable.name == name || (!variable.alias.empty() && variable.alias == name)) {
      return &variable;
    }
  }
  return nullptr;
}

std::string FilledFallback(std::string_view text, const DeployValues& values) {
  std::string out;
  while (!text.empty()) {
    const size_t at = text.find("${");
    out += text.substr(0, at);
    if (at == std::string_view::npos) break;
    const size_t end = text.find('}', at);
    const auto value = values.find(text.substr(at + 2, end - at - 2));
    if (value == values.end()) return "";  // its own fault is reported already
    out += value->second;
    text = text.substr(end + 1);
  }
  return out;
}

void CheckNames(const EnvValues& given, const std::string& file, ResolvedDeploy& resolved,
                Faults& faults) {
  std::vector<std::string> known;
  for (const DeployVariable& variable : kVariables) known.emplace_back(variable.name);
  for (const auto& [name, value] : given) {
    if (std::find(std::begin(kUnused), std::end(kUnused), name) != std::end(kUnused)) {
      resolved.unused.push_back(name);
    } else if (FindVariable(name) == nullptr) {
      faults.Add(file + ":" + std::to_string(value.line) + ": unknown variable " + name +
                 DidYouMean(name, known));
    }
  }
}

}  // namespace

std::span<const DeployVariable> DeployVariables() { return kVariables; }

ResolvedDeploy ResolveDeploy(const EnvValues& given, const std::string& file) {
  ResolvedDeploy resolved;
  Faults faults;
  CheckNames(given, file, resolved, faults);
  for (const DeployVariable& variable : kVariables) {
    const EnvValue* const value = GivenOf(given, variable);
    const bool is_given = value != nullptr && !value->text.empty();
    const std::string where =
        is_given ? file + ":" + std::to_string(value->line) + ": " : file + ": ";
    if (is_given && IsPlaceholder(value->text)) {
      faults.Add(where + Names(variable) + " still has its placeholder; set your own value");
      continue;
    }
    if (is_given && given.contains(variable.name) && given.contains(variable.alias) &&
        given.find(variable.alias)->second.text != value->text) {
      faults.Add(where + std::string(variable.name) + " and " + std::string(variable.alias) +
                 " are one variable and have different values");
      continue;
    }
    if (!is_given && variable.is_required) {
      faults.Add(where + Names(variable) + " has no value: " + std::string(variable.about));
      continue;
    }
    const std::string text =
        is_given ? value->text : FilledFallback(variable.fallback, resolved.values);
    if (text.empty()) continue;  // an absent secret, or the consequence of another fault
    if (!Obeys(variable.rule, text)) {
      faults.Add(where + std::string(variable.name) +
                 (is_given ? "" : ", derived from other values,") + " must be " +
                 TextOf(variable.rule));
      continue;
    }
    if (variable.rule == kSecret) continue;
    if (!is_given) resolved.derived.emplace_back(variable.name);
    resolved.values.emplace(variable.name, text);
  }
  faults.ThrowIfAny();
  return resolved;
}

std::string SecretOf(const EnvValues& given, const std::string& file, std::string_view name) {
  const DeployVariable* const variable = FindVariable(name);
  if (variable == nullptr || variable->rule != kSecret) {
    throw Error(ErrorCode::kInvalidArgument,
                "no secret is called " + std::string(name) + "; there is HUGGINGFACE_TOKEN");
  }
  const DeployValues values = ResolveDeploy(given, file).values;
  const EnvValue* const own = GivenOf(given, *variable);
  if (own != nullptr && !own->text.empty()) return own->text;
  constexpr size_t kMaxSecretBytes = 4096;
  std::string text = engine::ReadWholeFile(
      values.find(std::string(variable->name) + "_FILE")->second, kMaxSecretBytes);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!IsLine(text)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the file of " + std::string(variable->name) + " must hold one printable line");
  }
  return text;
}

}  // namespace tandem::server
