#include "engine/adapter/lora_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr const char* kBaseHashKey = "tandem.base";
constexpr const char* kComputeKey = "tandem.compute";
constexpr const char* kWeightsKey = "tandem.base_weights";
constexpr size_t kMaxConfigBytes = 4 << 20;
constexpr double kMaxAlpha = 1e6;
constexpr std::string_view kPrefix = "base_model.model.";

[[noreturn]] void Refuse(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, source + ": " + what);
}

[[noreturn]] void Broken(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": " + what);
}

// Fields that do not change a forward pass without dropout, or that select modules; the tensors
// already tell which modules have an adapter.
constexpr std::array kHarmless = {
    "auto_mapping",        "base_model_name_or_path",
    "corda_config",        "eva_config",
    "exclude_modules",     "inference_mode",
    "layers_pattern",      "layers_to_transform",
    "loftq_config",        "lora_dropout",
    "lora_ga_config",      "megatron_config",
    "megatron_core",       "peft_version",
    "qalora_group_size",   "revision",
    "task_type",           "runtime_config",
    "ensure_weight_tying", "fan_in_fan_out",
    "loraplus_lr_ratio",
};
// Fields that the code below reads.
constexpr std::array kRead = {
    "peft_type", "r",          "lora_alpha",        "rank_pattern",   "alpha_pattern",
    "bias",      "use_rslora", "init_lora_weights", "target_modules",
};

bool SaysNothing(const Json& value) {
  return value.is_null() || (value.is_boolean() && !value.get<bool>()) ||
         ((value.is_array() || value.is_object() || value.is_string()) && value.empty());
}

template <class Names>
bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "pissa" and similar methods subtract the initial A and B from the base's weights. The adapter
// then belongs to another base than the one on disk.
void CheckInit(const Json& config, const std::string& source) {
  const auto found = config.find("init_lora_weights");
  if (found == config.end() || found->is_null() || found->is_boolean()) return;
  const std::string init = JsonStringOr(config, "init_lora_weights", "", source);
  if (init == "gaussian" || init == "eva" || init == "orthogonal") return;
  Refuse(source, "field 'init_lora_weights' is " + Quoted(init) +
                     ", which changes the base model's weights; save the adapter as a plain LoRA");
}

// The numbers of rank_pattern or alpha_pattern, by module path.
class Pattern {
 public:
  enum class Numbers { kIntegers, kReals };
  Pattern(const Json& config, const char* field, Numbers numbers, double max,
          const std::string& source) {
    const auto found = config.find(field);
    if (found == config.end() || found->is_null()) return;
    if (!found->is_object()) Broken(source, "field '" + std::string(field) + "' must be an object");
    for (const auto& [key, value] : found->items()) {
      const std::string what = "field " + Quoted(std::string(field) + "." + key) + " ";
      // PEFT reads keys as regular expressions that match the end of a path; in practice they are
      // plain paths.
      const std::string plain = key.starts_with("^") ? key.substr(1) : key;
      const bool is_path = std::all_of(plain.begin(), plain.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
      });
      if (plain.empty() || !is_path) {
        Refuse(source, what + "is a regular expression; only plain module names are supported");
      }
      const double number = value.is_number() ? value.get<double>() : 0;
      const bool fits = numbers == Numbers::kReals || number == std::floor(number);
      if (!fits || !(number > 0) || number > max) {
        Broken(source, what + "must be " +
                           (numbers == Numbers::kReals ? "a number" : "an integer") +
                           " above 0 and at most " + std::to_string(static_cast<int64_t>(max)));
      }
      entries_.push_back({plain, key.starts_with("^"), number});
    }
  }

  double Of(const std::string& path, double otherwise) const {
    for (const Entry& entry : entries_) {
      if (path == entry.path || (!entry.whole && path.ends_with("." + entry.path))) {
        return entry.value;
      }
    }
    return otherwise;
  }

 private:
  struct Entry {
    std::string path;
    bool whole;  // matches the whole path, not only its end
    double value;
  };
  std::vector<Entry> entries_;
};

struct Settings {
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  Pattern ranks;
  Pattern alphas;
  std::optional<std::set<std::string, std::less<>>>
      targets;  // unset: an expression, or "all-linear"
};

Settings ReadConfig(const Json& config, const std::string& source) {
  if (!config.is_object()) Broken(source, "must be a JSON object");
  const std::string type = JsonStringOr(config, "peft_type", "LORA", source);
  if (type != "LORA")
    Refuse(source, "field 'peft_type' is " + Quoted(type) + "; only 'LORA' is supported");
  const std::string bias = JsonStringOr(config, "bias", "none", source);
  if (bias != "none") {
    Refuse(source,
           "field 'bias' is " + Quoted(bias) + "; trained biases are not supported, only 'none'");
  }
  CheckInit(config, source);
  for (const auto& [field, value] : config.items()) {
    if (Holds(kHarmless, field) || Holds(kRead, field) || SaysNothing(value)) continue;
    Refuse(source, "field " + Quoted(field) + " is set, but it is not supported");
  }
  Settings settings{
      .rank = JsonIntOr(config, "r", 8, 1, LoraAdapter::kMaxRank, source),
      .alpha = JsonNumberOr(config, "lora_alpha", 8, 0, kMaxAlpha, source),
      .rank_stabilized = JsonBoolOr(config, "use_rslora", false, source),
      .ranks = {config, "rank_pattern", Pattern::Numbers::kIntegers, LoraAdapter::kMaxRank, source},
      .alphas = {config, "alpha_pattern", Pattern::Numbers::kReals, kMaxAlpha, source},
      .targets = {}};
  const auto targets = config.find("target_modules");
  if (targets == config.end() || targets->is_null() || targets->is_string()) return settings;
  settings.targets.emplace();
  if (!targets->is_array()) Broken(source, "field 'target_modules' must be an array or a string");
  for (const Json& target : *targets) {
    if (!target.is_string())
      Broken(source, "every item of field 'target_modules' must be a string");
    settings.targets->insert(target.get<std::string>());
  }
  return settings;
}

bool IsTarget(const std::set<std::string, std::less<>>& targets, const std::string& path) {
  const std::vector<std::string_view> ends = PathEnds(path);
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return targets.find(end) != targets.end(); });
}

std::set<std::string, std::less<>> TargetsWithout(const std::vector<LoraModule>& modules,
                                                  const Json& config, const Settings& settings) {
  // Excluded targets have no tensors by intent.
  const auto excluded = config.find("exclude_modules");
  if (!settings.targets || (excluded != config.end() && !SaysNothing(*excluded))) return {};
  std::set<std::string, std::less<>> targets = *settings.targets;
  for (const LoraModule& module : modules) {
    for (const std::string_view end : PathEnds(module.path)) {
      const auto found = targets.find(end);
      if (found != targets.end()) targets.erase(found);
    }
  }
  return targets;
}

// These values do not change the computation, so values of another type are ignored, not refused.
LoraOrigin ReadOrigin(const Json& config, const SafetensorsFile& file) {
  LoraOrigin origin;
  const auto name = config.find("base_model_name_or_path");
  if (name != config.end() && name->is_string()) origin.base_model = name->get<std::string>();
  const auto value = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? "" : found->second;
  };
  origin.base_hash = value(kBaseHashKey);
  origin.compute = value(kComputeKey);
  origin.weights = value(kWeightsKey);
  return origin;
}

// "base_model.model.PATH.lora_A.weight", or with the adapter's name: ".lora_A.default.weight".
// Nullopt for other names.
struct TensorName {
  std::string path;
  bool is_a = false;
};
std::optional<TensorName> ParseTensorName(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const bool is_a : {true, false}) {
    for (const std::string_view end : {".weight", ".default.weight"}) {
      const std::string suffix = (is_a ? ".lora_A" : ".lora_B") + std::string(end);
      if (name.size() > suffix.size() && name.ends_with(suffix)) {
        return TensorName{std::string(name.substr(0, name.size() - suffix.size())), is_a};
      }
    }
  }
  return std::nullopt;
}

void CheckTensor(const LoraModule& module, const std::string& name, const ConstTensorView& tensor,
                 size_t rank_axis, const std::string& source) {
  const DType t = tensor.dtype;
  if (t != DType::kF32 && t != DType::kBF16 && t != DType::kF16 && t != DType::kF64) {
    Refuse(source, "tensor " + Quoted(name) + " has type " + std::string(DTypeName(t)) +
                       "; an adapter needs f32, f16, bf16 or f64");
  }
  if (tensor.shape.size() != 2) {
    Broken(source, "tensor " + Quoted(name) + " has " + std::to_string(tensor.shape.size()) +
                       " axes; the adapter of a linear layer has 2");
  }
  if (tensor.shape[rank_axis] != module.rank) {
    Broken(source, "tensor " + Quoted(name) + " has rank " +
                       std::to_string(tensor.shape[rank_axis]) +
                       ", but adapter_config.json gives rank " + std::to_string(module.rank));
  }
}

std::vector<LoraModule> CollectModules(const SafetensorsFile& file, const Settings& settings,
                                       const std::string& source) {
  std::map<std::string, LoraModule> modules;
  for (const std::string& name : file.names()) {
    const std::optional<TensorName> parsed = ParseTensorName(name);
    if (!parsed) {
      Refuse(source,
             "tensor " + Quoted(name) +
                 " is not a lora_A or lora_B of a linear layer; other tensors are not supported");
    }
    if (settings.targets && !IsTarget(*settings.targets, parsed->path)) {
      Broken(source,
             "tensor " + Quoted(name) +
                 " belongs to a module that is not in target_modules of adapter_config.json");
    }
    LoraModule& module = modules[parsed->path];
    std::string& slot = parsed->is_a ? module.a_name : module.b_name;
    if (!slot.empty()) {
      Broken(source, "tensors " + Quoted(slot) + " and " + Quoted(name) + " name the same matrix");
    }
    slot = name;
    (parsed->is_a ? module.a : module.b) = *file.Find(name);
  }
  std::vector<LoraModule> list;
  for (auto& [path, module] : modules) {
    const auto [a_name, b_name] = LoraTensorNames(path);
    if (module.a_name.empty()) Broken(source, "tensor " + Quoted(a_name) + " is missing");
    if (module.b_name.empty()) Broken(source, "tensor " + Quoted(b_name) + " is missing");
    const double alpha = settings.alphas.Of(path, settings.alpha);
    module.path = path;
    module.rank = static_cast<int64_t>(settings.ranks.Of(path, static_cast<double>(settings.rank)));
    module.scale = LoraScale(alpha, module.rank, settings.rank_stabilized);
    CheckTensor(module, module.a_name, module.a, 0, source);
    CheckTensor(module, module.b_name, module.b, 1, source);
    list.push_back(std::move(module));
  }
  if (list.empty()) Broken(source, "contains no tensors");
  return list;
}

}  // namespace

float LoraScale(double alpha, int64_t rank, bool rank_stabilized) {
  const auto divisor = static_cast<double>(rank);
  return static_cast<float>(alpha / (rank_stabilized ? std::sqrt(divisor) : divisor));
}

void LoraAdapter::CheckUnchanged() const {
  if (file_->file() != nullptr) file_->file()->CheckUnchanged();
}

LoraAdapter LoraAdapter::Open(const fs::path& dir) {
  if (!fs::is_directory(dir)) {
    throw Error(ErrorCode::kNotFound, "adapter '" + dir.string() + "' is not a directory");
  }
  const fs::path weights_path = dir / kWeightsFile;
  const std::string text = ReadWholeFile(dir / kConfigFile, kMaxConfigBytes);
  if (!fs::exists(weights_path) && fs::exists(dir / "adapter_model.bin")) {
    Refuse((dir / "adapter_model.bin").string(),
           "is a pickle, which is never read; save the adapter as adapter_model.safetensors");
  }
  return FromParts(dir.string(), text, SafetensorsFile::Open(weights_path));
}

LoraAdapter LoraAdapter::FromParts(const std::string& name, const std::string& config,
                                   SafetensorsFile weights) {
  LoraAdapter adapter;
  adapter.name_ = name;
  const std::string config_source = (fs::path(name) / kConfigFile).string();
  const Json json = ParseUntrustedJson(config, config_source);
  const Settings settings = ReadConfig(json, config_source);
  adapter.rank_ = settings.rank;
  adapter.alpha_ = settings.alpha;
  adapter.rank_stabilized_ = settings.rank_stabilized;
  adapter.file_ = std::make_shared<SafetensorsFile>(std::move(weights));
  adapter.modules_ =
      CollectModules(*adapter.file_, settings, (fs::path(name) / kWeightsFile).string());
  adapter.targets_without_tensors_ = TargetsWithout(adapter.modules_, json, settings);
  adapter.origin_ = ReadOrigin(json, *adapter.file_);
  Sha256 hash;
  hash.Update(config);
  hash.Update(adapter.file_->bytes());
  adapter.content_hash_ = ToHex(hash.Finish());
  return adapter;
}

std::string LoraConfigText(const LoraConfig& config) {
  return Json{{"peft_type", "LORA"},
              {"task_type", "CAUSAL_LM"},
              {"base_model_name_or_path", config.base_model},
              {"r", config.rank},
              {"lora_alpha", config.alpha == std::floor(config.alpha)
                                 ? Json(static_cast<int64_t>(config.alpha))
                                 : Json(config.alpha)},
              {"lora_dropout", config.dropout},
              {"use_rslora", config.rank_stabilized},
              {"fan_in_fan_out", config.fan_in_fan_out},
              {"bias", "none"},
              {"use_dora", false},
              {"target_modules", config.target_modules},
              {"modules_to_save", nullptr},
              {"rank_pattern", config.ranks.empty() ? Json::object() : Json(config.ranks)},
              {"alpha_pattern", config.alphas.empty() ? Json::object() : Json(config.alphas)},
              {"init_lora_weights", true},
              {"inference_mode", true}}
             .dump(2) +
         "\n";
}

std::vector<std::string_view> PathEnds(std::string_view path) {
  std::vector<std::string_view> ends = {path};
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.', dot + 1)) {
    ends.push_back(path.substr(dot + 1));
  }
  return ends;
}

std::map<std::string, std::string> LoraMetadata(const std::string& base_hash, DType compute,
                                                const std::string& weights_type) {
  return {{"format", "pt"},
          {kBaseHashKey, base_hash},
          {kComputeKey, std::string(DTypeName(compute))},
          {kWeightsKey, weights_type}};
}

std::pair<std::string, std::string> LoraTensorNames(const std::string& path) {
  const std::string begin = std::string(kPrefix) + path;
  return {begin + ".lora_A.weight", begin + ".lora_B.weight"};
}

}  // namespace tandem::engine
