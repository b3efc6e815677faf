#include "convert/formats/maxtext/maxtext_parameters.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/tensor/dtype.h"

namespace tandem::convert {
namespace {

using engine::DType;
using Leaf = OrbaxCheckpoint::Leaf;

template <size_t kN>
bool IsOneOf(const std::array<const char*, kN>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Entries of a training state that are not parameters, at any depth.
constexpr std::array kNotParameters = {"opt_state", "optimizer", "optimizer_state",
                                       "nnx_aux",   "rngs",      "rng",
                                       "dropout",   "step",      "batch_stats"};
// Keys that may precede a parameter's name.
constexpr std::array kPrefixes = {"params", "model", "model_params", "base", "state", "items"};
constexpr std::array kRoots = {"decoder", "token_embedder"};
constexpr std::array<std::string_view, 3> kGroups = {"layers", "dense_layers", "moe_layers"};

bool IsNumber(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// Returns "decoder.layers.mlp.wi_0.kernel" for params.params.… and for ….kernel.value; returns an
// empty string if the leaf is not a parameter.
std::string ParameterName(const Leaf& leaf, const std::string& where) {
  std::vector<std::string> keys = leaf.path;
  for (const std::string& key : keys) {
    if (IsOneOf(kNotParameters, key)) return "";
  }
  if (!keys.empty() && keys.back() == "value") keys.pop_back();
  const auto root = std::find_if(keys.begin(), keys.end(),
                                 [](const std::string& key) { return IsOneOf(kRoots, key); });
  const bool is_known = root != keys.end() &&
                        std::all_of(keys.begin(), root,
                                    [](const std::string& key) { return IsOneOf(kPrefixes, key); });
  if (!is_known) {
    throw Error(ErrorCode::kUnsupported,
                where + ": " + Quoted(leaf.name()) +
                    " is not a MaxText parameter: parameters are below decoder and token_embedder, "
                    "in params, model or base");
  }
  std::string name;
  for (auto key = root; key != keys.end(); ++key) {
    // Layers may form a list, whose index is a key of its own.
    const bool is_index = key != root && (key - 1)->ends_with("layers") && IsNumber(*key);
    name += (name.empty() ? "" : is_index ? "_" : ".") + *key;
  }
  return name;
}

bool IsUnscanned(const std::string& name) {
  for (const std::string_view group : kGroups) {
    const std::string layer = "decoder." + std::string(group) + "_";
    if (name.starts_with(layer) && IsNumber(name.substr(layer.size(), 1))) return true;
  }
  return false;
}

std::string NearestNames(const std::vector<MaxTextLeaf>& leaves, const std::string& name) {
  std::vector<std::pair<size_t, std::string>> near;
  near.reserve(leaves.size());
  for (const MaxTextLeaf& leaf : leaves)
    near.emplace_back(EditDistance(leaf.name, name), leaf.name);
  std::sort(near.begin(), near.end());
  std::string names;
  for (size_t i = 0; i < std::min<size_t>(2, near.size()); ++i) {
    names += (i == 0 ? "" : " and ") + Quoted(near[i].second);
  }
  return names;
}

void CheckArray(const Leaf& leaf, const std::string& source, MaxTextLeaf* map) {
  const std::vector<int64_t>& is = leaf.array->shape;
  if (map->has_vocabulary && is.size() == 2 && is[0] >= 1) map->shape[0] = is[0];
  if (is != map->shape) {
    throw Error(ErrorCode::kDataLoss, source + ": parameter " + Quoted(map->name) +
                                          " has the shape " + engine::ShapeText(is) +
                                          ", but config.json requires " +
                                          engine::ShapeText(map->shape));
  }
  const std::optional<DType> dtype = leaf.array->dtype;
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw Error(ErrorCode::kUnsupported, source + ": parameter " + Quoted(map->name) +
                                             " has type " + leaf.array->type_name +
                                             "; supported are float32, bfloat16 and float16");
  }
}

}  // namespace

std::vector<MaxTextParameter> MatchMaxTextParameters(const OrbaxCheckpoint& checkpoint,
                                                     const engine::ModelConfig& config,
                                                     bool rotates_pairs,
                                                     const std::string& source) {
  std::map<std::string, const Leaf*> there;
  bool is_unscanned = false;
  for (const Leaf& leaf : checkpoint.leaves()) {
    if (!leaf.array) continue;
    const std::string name = ParameterName(leaf, source);
    if (name.empty()) continue;
    if (name.find("_lora_") != std::string::npos) {
      throw Error(ErrorCode::kUnsupported,
                  source + ": " + Quoted(name) +
                      " belongs to an adapter; MaxText adapters are not supported, so export "
                      "merged parameters from MaxText");
    }
    is_unscanned = is_unscanned || IsUnscanned(name);
    if (!there.emplace(name, &leaf).second) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": the parameter " + Quoted(name) + " occurs twice");
    }
  }
  std::vector<MaxTextLeaf> leaves =
      MaxTextLeaves(config, {.is_scanned = !is_unscanned, .rotates_pairs = rotates_pairs});
  for (const auto& [name, leaf] : there) {
    const bool is_known =
        std::any_of(leaves.begin(), leaves.end(),
                    [&, &wanted = name](const MaxTextLeaf& one) { return one.name == wanted; });
    if (is_known) continue;
    throw Error(ErrorCode::kUnsupported,
                source + ": parameter " + Quoted(name) + " is unknown for the " + config.family +
                    " model with " + std::to_string(config.n_layers) +
                    " layers in config.json; the nearest are " + NearestNames(leaves, name));
  }
  std::vector<MaxTextParameter> found;
  for (MaxTextLeaf& map : leaves) {
    const auto leaf = there.find(map.name);
    if (leaf == there.end()) {
      throw Error(ErrorCode::kDataLoss, source + ": parameter " + Quoted(map.name) + " (" +
                                            map.tensors.front() + ") is missing");
    }
    CheckArray(*leaf->second, source, &map);
    found.push_back({std::move(map), leaf->second});
  }
  return found;
}

}  // namespace tandem::convert
