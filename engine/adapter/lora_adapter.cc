#include "engine/adapter/lora_adapter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/adapter/lora_settings.h"
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
constexpr std::string_view kPrefix = "base_model.model.";

bool IsTarget(const std::set<std::string, std::less<>>& targets, const std::string& path) {
  const std::vector<std::string_view> ends = PathEnds(path);
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return targets.find(end) != targets.end(); });
}

std::set<std::string, std::less<>> TargetsWithout(const std::vector<LoraModule>& modules,
                                                  const Json& config,
                                                  const LoraSettings& settings) {
  // Excluded targets have no tensors by intent.
  const auto excluded = config.find("exclude_modules");
  if (!settings.targets || (excluded != config.end() && !IsUnset(*excluded))) return {};
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

enum class Part { kA, kB, kEmbeddingA, kEmbeddingB, kMagnitude, kBaseCopy, kSaved };

struct TensorName {
  std::string path;
  Part part = Part::kA;
  std::string leaf;  // of kBaseCopy and kSaved
};

// The end of a tensor's name, after its path. PEFT puts the adapter's name there while it trains.
struct Ending {
  const char* text;
  Part part;
};
constexpr Ending kEndings[] = {
    {".lora_A.weight", Part::kA},
    {".lora_A.default.weight", Part::kA},
    {".lora_B.weight", Part::kB},
    {".lora_B.default.weight", Part::kB},
    {".lora_embedding_A", Part::kEmbeddingA},
    {".lora_embedding_A.default", Part::kEmbeddingA},
    {".lora_embedding_B", Part::kEmbeddingB},
    {".lora_embedding_B.default", Part::kEmbeddingB},
    {".lora_magnitude_vector", Part::kMagnitude},
    {".lora_magnitude_vector.default", Part::kMagnitude},
    {".lora_magnitude_vector.weight", Part::kMagnitude},
    {".lora_magnitude_vector.default.weight", Part::kMagnitude},
};

bool DropEnd(std::string_view end, std::string_view* text) {
  if (text->size() <= end.size() || !text->ends_with(end)) return false;
  text->remove_suffix(end.size());
  return true;
}

// Nullopt for names that no adapter has.
std::optional<TensorName> ParseTensorName(std::string_view name, const LoraSettings& settings) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  for (const Ending& ending : kEndings) {
    std::string_view path = name;
    if (DropEnd(ending.text, &path)) return TensorName{std::string(path), ending.part, ""};
  }
  for (const char* leaf : {"weight", "bias"}) {
    std::string_view path = name;
    if (!DropEnd("." + std::string(leaf), &path)) continue;
    if (DropEnd(".base_layer", &path)) return TensorName{std::string(path), Part::kBaseCopy, leaf};
    if (!DropEnd(".modules_to_save.default", &path)) DropEnd(".modules_to_save", &path);
    // PEFT's rule: an entry ends the path, also within a name.
    if (settings.saved_ends.HasEndOf(path)) {
      return TensorName{std::string(path), Part::kSaved, leaf};
    }
  }
  return std::nullopt;
}

void CheckType(const std::string& name, const ConstTensorView& tensor, const std::string& source) {
  const DType t = tensor.dtype;
  if (t == DType::kF32 || t == DType::kBF16 || t == DType::kF16 || t == DType::kF64) return;
  RefuseAdapter(source, "tensor " + Quoted(name) + " has type " + std::string(DTypeName(t)) +
                            "; an adapter needs f32, f16, bf16 or f64");
}

void CheckTensor(const LoraModule& module, const std::string& name, const ConstTensorView& tensor,
                 size_t rank_axis, const std::string& source) {
  CheckType(name, tensor, source);
  if (tensor.shape.size() != 2) {
    FailBrokenAdapter(source, "tensor " + Quoted(name) + " has " +
                                  std::to_string(tensor.shape.size()) +
                                  " axes; the adapter of a linear layer has 2");
  }
  if (tensor.shape[rank_axis] != module.rank) {
    FailBrokenAdapter(
        source, "tensor " + Quoted(name) + " has rank " + std::to_string(tensor.shape[rank_axis]) +
                    ", but adapter_config.json gives rank " + std::to_string(module.rank));
  }
}

// Sorts an adapter's tensors by module.
class Collector {
 public:
  Collector(const SafetensorsFile& file, const LoraSettings& settings, std::string source)
      : file_(file), settings_(settings), source_(std::move(source)) {
    for (const std::string& name : file.names()) Take(name);
    if (modules_.empty() && saved_.empty()) FailBrokenAdapter(source_, "contains no tensors");
    const bool has_embedding = std::any_of(modules_.begin(), modules_.end(), [](const auto& each) {
      return each.second.is_embedding;
    });
    if (settings.ties_weights && (has_embedding || !saved_.empty() || !base_copies_.empty())) {
      RefuseAdapter(source_,
                    "field 'ensure_weight_tying' is set together with tensors of embeddings or "
                    "heads; save the adapter without it");
    }
  }

  std::vector<LoraModule> Modules() {
    std::vector<LoraModule> list;
    for (auto& [path, module] : modules_) {
      Complete(path, &module);
      list.push_back(std::move(module));
    }
    return list;
  }
  std::vector<WholeTensor> saved() const { return saved_; }
  std::vector<WholeTensor> base_copies() const { return base_copies_; }

  std::vector<std::string> SavedWithoutTensors() const {
    EndedNames paths;
    for (const WholeTensor& tensor : saved_) paths.Add(tensor.path);
    std::vector<std::string> entries;
    for (const std::string& entry : settings_.saved_modules) {
      if (!paths.HasNameWith(entry)) entries.push_back(entry);
    }
    return entries;
  }

 private:
  void Take(const std::string& name) {
    const std::optional<TensorName> parsed = ParseTensorName(name, settings_);
    if (!parsed) {
      RefuseAdapter(source_, "tensor " + Quoted(name) +
                                 " is not a lora_A or lora_B of a linear layer or embedding, nor "
                                 "of a module in modules_to_save; other tensors are not supported");
    }
    const ConstTensorView& view = *file_.Find(name);
    if (parsed->part == Part::kSaved || parsed->part == Part::kBaseCopy) {
      CheckType(name, view, source_);
      (parsed->part == Part::kSaved ? saved_ : base_copies_)
          .push_back({parsed->path, parsed->leaf, name, view});
      return;
    }
    if (settings_.targets && !IsTarget(*settings_.targets, parsed->path)) {
      FailBrokenAdapter(source_, "tensor " + Quoted(name) +
                                     " belongs to a module that is not in target_modules of "
                                     "adapter_config.json");
    }
    Place(name, *parsed, view);
  }

  void Place(const std::string& name, const TensorName& parsed, const ConstTensorView& view) {
    const auto [found, is_first] = modules_.try_emplace(parsed.path);
    LoraModule& module = found->second;
    const bool is_embedding = parsed.part == Part::kEmbeddingA || parsed.part == Part::kEmbeddingB;
    if (parsed.part == Part::kMagnitude) {
      if (!settings_.is_dora) {
        FailBrokenAdapter(source_, "tensor " + Quoted(name) +
                                       " belongs to DoRA, but adapter_config.json has no use_dora");
      }
    } else {
      const bool has_matrix = !module.a_name.empty() || !module.b_name.empty();
      if (has_matrix && module.is_embedding != is_embedding) {
        FailBrokenAdapter(source_, "module " + Quoted(parsed.path) +
                                       " has tensors of a linear layer and of an embedding");
      }
      module.is_embedding = is_embedding;
    }
    const bool is_a = parsed.part == Part::kA || parsed.part == Part::kEmbeddingA;
    const bool is_magnitude = parsed.part == Part::kMagnitude;
    std::string& slot = is_magnitude ? module.magnitude_name : is_a ? module.a_name : module.b_name;
    if (!slot.empty()) {
      FailBrokenAdapter(
          source_, "tensors " + Quoted(slot) + " and " + Quoted(name) + " name the same matrix");
    }
    slot = name;
    (is_magnitude ? module.magnitude : is_a ? module.a : module.b) = view;
  }

  void Complete(const std::string& path, LoraModule* module) const {
    const auto [a_name, b_name] = LoraTensorNames(path, module->is_embedding);
    const auto missing = [&](const std::string& name) {
      FailBrokenAdapter(source_, "tensor " + Quoted(name) + " is missing");
    };
    if (module->a_name.empty()) missing(a_name);
    if (module->b_name.empty()) missing(b_name);
    if (settings_.is_dora && module->magnitude_name.empty()) {
      FailBrokenAdapter(source_, "tensor " + Quoted(MagnitudeName(path)) +
                                     " is missing, which use_dora in adapter_config.json needs");
    }
    const double alpha = settings_.alphas.Of(path, settings_.alpha);
    module->path = path;
    module->rank =
        static_cast<int64_t>(settings_.ranks.Of(path, static_cast<double>(settings_.rank)));
    module->scale = LoraScale(alpha, module->rank, settings_.rank_stabilized);
    CheckTensor(*module, module->a_name, module->a, 0, source_);
    CheckTensor(*module, module->b_name, module->b, 1, source_);
    if (!settings_.is_dora) return;
    CheckType(module->magnitude_name, module->magnitude, source_);
    if (module->magnitude.elements() != module->b.shape[0]) {
      FailBrokenAdapter(source_, "tensor " + Quoted(module->magnitude_name) + " has " +
                                     std::to_string(module->magnitude.elements()) +
                                     " elements, but the module has " +
                                     std::to_string(module->b.shape[0]) + " outputs");
    }
  }

  const SafetensorsFile& file_;
  const LoraSettings& settings_;
  const std::string source_;
  std::map<std::string, LoraModule> modules_;
  std::vector<WholeTensor> saved_;
  std::vector<WholeTensor> base_copies_;
};

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
    RefuseAdapter(
        (dir / "adapter_model.bin").string(),
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
  const LoraSettings settings = ReadLoraSettings(json, config_source);
  adapter.rank_ = settings.rank;
  adapter.alpha_ = settings.alpha;
  adapter.rank_stabilized_ = settings.rank_stabilized;
  adapter.file_ = std::make_shared<SafetensorsFile>(std::move(weights));
  adapter.is_dora_ = settings.is_dora;
  Collector collector(*adapter.file_, settings, (fs::path(name) / kWeightsFile).string());
  adapter.modules_ = collector.Modules();
  adapter.saved_ = collector.saved();
  adapter.base_copies_ = collector.base_copies();
  adapter.saved_without_tensors_ = collector.SavedWithoutTensors();
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
              {"use_dora", config.use_dora},
              {"target_modules", config.target_modules},
              {"modules_to_save",
               config.modules_to_save.empty() ? Json() : Json(config.modules_to_save)},
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

std::pair<std::string, std::string> LoraTensorNames(const std::string& path, bool is_embedding) {
  const std::string begin = std::string(kPrefix) + path;
  if (is_embedding) return {begin + ".lora_embedding_A", begin + ".lora_embedding_B"};
  return {begin + ".lora_A.weight", begin + ".lora_B.weight"};
}

std::string MagnitudeName(const std::string& path) {
  return std::string(kPrefix) + path + ".lora_magnitude_vector";
}

std::string SavedTensorName(const std::string& path, const std::string& leaf) {
  return std::string(kPrefix) + path + "." + leaf;
}

}  // namespace tandem::engine
