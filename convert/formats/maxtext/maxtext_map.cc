#include "convert/formats/maxtext/maxtext_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/maxtext_tree.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"

namespace tandem::convert {
namespace {

using engine::MaxTextBlocks;
using engine::MaxTextRule;
using engine::MaxTextShape;
using engine::MaxTextTree;
using engine::MaxTextValue;
using engine::ModelConfig;

[[noreturn]] void Refuse(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "MaxText: " + what);
}

const MaxTextTree& TreeOf(const ModelConfig& config) {
  const MaxTextTree* tree = engine::FindFamilyByName(config.family).maxtext;
  if (tree == nullptr) {
    Refuse("family " + Quoted(config.family) + " is not converted (" + MaxTextFamilies() +
           " are); use hf or native instead");
  }
  return *tree;
}

constexpr int64_t kPattern = 6;

// Checks the layers against MaxText, which derives windows and blocks from a layer's position.
void CheckLayers(const MaxTextTree& tree, const ModelConfig& config, bool is_scanned) {
  const auto whole = [&](int64_t period, const char* what) {
    if (config.n_layers % period == 0) return;
    Refuse("family " + Quoted(config.family) + " has layers in " + what + "; this model has " +
           std::to_string(config.n_layers));
  };
  if (tree.blocks == MaxTextBlocks::kPairs) whole(2, "pairs");
  if (tree.blocks == MaxTextBlocks::kCycle && is_scanned) {
    whole(tree.cycle, ("scanned groups of " + std::to_string(tree.cycle)).c_str());
  }
  for (int64_t layer = 0; tree.cycle > 0 && layer < config.n_layers; ++layer) {
    // The last layer of a cycle has attention, the others have a state.
    const bool is_last = layer % tree.cycle == tree.cycle - 1;
    if (!config.recurrent.layers.empty() && config.IsRecurrent(layer) == is_last) {
      Refuse("layer " + std::to_string(layer) + (is_last ? " has a state" : " has attention") +
             ", in MaxText's order of layers it is the other way");
    }
  }
  if (tree.limit != nullptr) {
    if (const std::string why = tree.limit(config, is_scanned); !why.empty()) Refuse(why);
  }
  const int64_t period = tree.window_period;
  for (int64_t layer = 0; period > 0 && layer < config.n_layers; ++layer) {
    const bool has_window =
        !config.layer_attention.empty()
            ? config.LayerAttention(layer).window > 0
            : config.windowed_layers.empty() || config.windowed_layers[static_cast<size_t>(layer)];
    if (has_window != (layer % period != period - 1)) {
      Refuse("layer " + std::to_string(layer) + (has_window ? " has a" : " has no") +
             " sliding window, in MaxText's order of layers it is the other way");
    }
  }
}

constexpr std::string_view kExpert = "{E}";

std::string Replace(std::string_view text, std::string_view what, std::string_view with) {
  std::string out(text);
  if (const size_t at = out.find(what); at != std::string::npos) out.replace(at, what.size(), with);
  return out;
}

struct LayerPlace {
  std::string path;    // of the layer: "decoder.layers"
  std::string suffix;  // of leaves in it: "_local"
  bool is_scanned = false;
  int64_t inner_layers = 0;  // MaxTextLeaf
};

// Place of a layer in a model whose first layers have no experts.
LayerPlace DenseFirstPlace(const ModelConfig& config, bool is_scanned, int64_t layer) {
  const int64_t n_dense = engine::FirstExpertLayer(config);
  const bool is_dense = layer < n_dense;
  const std::string group = is_dense ? "decoder.dense_layers" : "decoder.moe_layers";
  if (is_scanned) return {group, "", true};
  return {group + "_" + std::to_string(is_dense ? layer : layer - n_dense), "", false};
}

LayerPlace PlaceOf(const MaxTextTree& tree, const ModelConfig& config, bool is_scanned,
                   int64_t layer) {
  const std::string number = std::to_string(layer);
  switch (tree.blocks) {
    case MaxTextBlocks::kLayers:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + number, "", is_scanned};
    case MaxTextBlocks::kPairs:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + std::to_string(layer / 2),
              layer % 2 == 0 ? "_local" : "_global", is_scanned};
    case MaxTextBlocks::kDenseFirst:
      return DenseFirstPlace(config, is_scanned, layer);
    case MaxTextBlocks::kCycle:
    case MaxTextBlocks::kNestedSixes:
    case MaxTextBlocks::kSixes:
      break;
  }
  if (!is_scanned) return {"decoder.layers_" + number, "", false};
  const bool is_whole = layer < config.n_layers / kPattern * kPattern;
  const std::string within = "layers_" + std::to_string(layer % kPattern);
  if (tree.blocks == MaxTextBlocks::kNestedSixes && is_whole) {
    if (layer % kPattern == kPattern - 1) return {"decoder.scanned_blocks.global_layer", "", true};
    return {"decoder.scanned_blocks.local_layers", "", true, kPattern - 1};
  }
  if (tree.blocks == MaxTextBlocks::kCycle) {
    return {"decoder.layers." + std::string(tree.cycle_layer) + std::to_string(layer % tree.cycle),
            "", true};
  }
  if (is_whole) return {"decoder.layers." + within, "", true};
  return {"decoder.layers_remainder." + within, "", false};
}

MaxTextArithmetic ArithmeticOf(MaxTextValue value, const ModelConfig& config) {
  const double root_width = std::sqrt(static_cast<double>(config.hidden_dim));
  const double root_head = std::sqrt(static_cast<double>(config.attention.head_dim));
  switch (value) {
    case MaxTextValue::kAsIs:
      break;
    case MaxTextValue::kPlusOne:
      return {.added = 1};
    case MaxTextValue::kTimesRootWidth:
      return {.factor = static_cast<float>(root_width)};
    case MaxTextValue::kTimesRootWidthInBf16:
      return {.factor = engine::Bf16ToFloat(engine::FloatToBf16(static_cast<float>(root_width)))};
    case MaxTextValue::kOverRootHeadDim:
      return {.factor = static_cast<float>(1 / root_head)};
  }
  return {};
}

// Builds the leaf of one layer, whose heads have head_dim, or of no layer.
MaxTextLeaf LeafOf(const MaxTextRule& rule, const std::string& name, const MaxTextTree& tree,
                   const ModelConfig& config, const MaxTextLayout& layout, int64_t head_dim,
                   const std::vector<int64_t>& shape) {
  MaxTextLeaf leaf;
  leaf.name = name;
  leaf.tensor_shape = shape;
  leaf.arithmetic = ArithmeticOf(rule.value, config);
  const int64_t n_heads = config.attention.n_heads;
  switch (rule.shape) {
    case MaxTextShape::kTable:
      leaf.has_vocabulary = true;
      leaf.shape = {tree.vocabulary == nullptr ? shape[0] : tree.vocabulary(shape[0]), shape[1]};
      break;
    case MaxTextShape::kVector:
      leaf.shape = shape;
      break;
    case MaxTextShape::kKernel:
      leaf.is_transposed = true;
      leaf.shape = {shape[1], shape[0]};
      break;
    case MaxTextShape::kHeadsOut:
      leaf.is_transposed = true;
      leaf.shape = {shape[1], shape[0] / head_dim, head_dim};
      if (rule.is_rotated && layout.rotates_pairs) leaf.rotated_head_dim = head_dim;
      break;
    case MaxTextShape::kHeadsIn:
      leaf.is_transposed = true;
      leaf.group = head_dim;
      leaf.shape = {shape[1] / head_dim, head_dim, shape[0]};
      break;
    case MaxTextShape::kHeadsVector:
      leaf.group = head_dim;
      leaf.shape = {shape[0] / head_dim, head_dim};
      break;
    case MaxTextShape::kQueryHeadsOut:
      leaf.is_transposed = true;
      leaf.shape = {shape[1], n_heads, shape[0] / n_heads};
      break;
    case MaxTextShape::kQueryHeadsIn:
      leaf.is_transposed = true;
      leaf.group = shape[1] / n_heads;
      leaf.shape = {n_heads, leaf.group, shape[0]};
      break;
    case MaxTextShape::kConv:
      leaf.is_transposed = true;
      leaf.shape = {shape[2], shape[1], shape[0]};
      break;
  }
  return leaf;
}

using TensorShapes = std::map<std::string, std::vector<int64_t>>;

// The tensors of one layer that the rule names: none, one, or one per expert.
std::vector<std::string> TensorsOfLayer(const MaxTextRule& rule, const ModelConfig& config,
                                        int64_t layer, const TensorShapes& shapes) {
  const std::string name = Replace(rule.tensor, "{}", std::to_string(layer));
  const bool has_experts = name.find(kExpert) != std::string::npos;
  const int64_t n = has_experts ? config.experts.router.n_experts : 1;
  std::vector<std::string> names;
  for (int64_t expert = 0; expert < n; ++expert) {
    names.push_back(Replace(name, kExpert, std::to_string(expert)));
    if (!shapes.contains(names.back())) return {};
  }
  return names;
}

// Reorders tensors that ascend by layer, then by expert.
void OrderByExpert(MaxTextLeaf* leaf) {
  const auto n_experts = static_cast<size_t>(leaf->n_experts);
  const size_t n_layers = leaf->tensors.size() / n_experts;
  std::vector<std::string> ordered;
  ordered.reserve(leaf->tensors.size());
  for (size_t expert = 0; expert < n_experts; ++expert) {
    for (size_t layer = 0; layer < n_layers; ++layer) {
      ordered.push_back(std::move(leaf->tensors[layer * n_experts + expert]));
    }
  }
  leaf->tensors = std::move(ordered);
}

void AddLayers(const MaxTextRule& rule, const MaxTextTree& tree, const ModelConfig& config,
               const MaxTextLayout& layout, TensorShapes* shapes,
               std::vector<MaxTextLeaf>* leaves) {
  const size_t first = leaves->size();
  std::map<std::string, size_t> known;
  std::map<std::string, int64_t> n_layers;  // that share the name
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const LayerPlace place = PlaceOf(tree, config, layout.is_scanned, layer);
    const std::string name = place.path + "." + Replace(rule.leaf, "{s}", place.suffix);
    ++n_layers[name];
    const std::vector<std::string> tensors = TensorsOfLayer(rule, config, layer, *shapes);
    if (tensors.empty()) continue;
    const auto [at, is_new] = known.emplace(name, leaves->size());
    if (is_new) {
      leaves->push_back(LeafOf(rule, name, tree, config, layout,
                               config.LayerAttention(layer).head_dim, shapes->at(tensors.front())));
      leaves->back().is_scanned = place.is_scanned;
      leaves->back().inner_layers = place.inner_layers;
      if (rule.tensor.find(kExpert) != std::string_view::npos) {
        leaves->back().n_experts = static_cast<int64_t>(tensors.size());
      }
    }
    for (const std::string& tensor : tensors) {
      (*leaves)[at->second].tensors.push_back(tensor);
      shapes->erase(tensor);
    }
  }
  for (size_t i = first; i < leaves->size(); ++i) {
    MaxTextLeaf& leaf = (*leaves)[i];
    if (leaf.n_tensors() != n_layers[leaf.name] * std::max<int64_t>(1, leaf.n_experts)) {
      Refuse("only some layers of this model have a tensor such as " +
             Quoted(leaf.tensors.front()) + "; of the layers in " + Quoted(leaf.name) +
             " all have one");
    }
    if (leaf.n_experts > 0) OrderByExpert(&leaf);
  }
}

bool Applies(const MaxTextRule& rule, const ModelConfig& config) {
  if (rule.when == engine::MaxTextWhen::kAlways) return true;
  const bool has_experts = config.experts.router.n_experts > 0;
  return has_experts == (rule.when == engine::MaxTextWhen::kWithExperts);
}

// Adds the axes of experts and layers to the shape of one tensor in the leaf.
void AddAxes(MaxTextLeaf* leaf) {
  const int64_t n_layers = leaf->n_tensors() / std::max<int64_t>(1, leaf->n_experts);
  if (leaf->n_experts > 0) leaf->shape.insert(leaf->shape.begin(), leaf->n_experts);
  if (!leaf->is_scanned) return;
  const int64_t inner = leaf->inner_layers;
  if (inner > 0) leaf->shape.insert(leaf->shape.begin() + 1, inner);
  leaf->shape.insert(leaf->shape.begin() + 1, inner > 0 ? n_layers / inner : n_layers);
}

}  // namespace

int64_t MaxTextLeaf::rows() const {
  if (is_transposed) return engine::ElementCount(tensor_shape) / tensor_shape[0];
  return has_vocabulary ? shape[0] : tensor_shape[0];
}

int64_t MaxTextLeaf::columns() const {
  if (is_transposed) return tensor_shape[0];
  return tensor_shape.size() == 1 ? 1 : tensor_shape[1];
}

std::vector<MaxTextLeaf> MaxTextLeaves(const ModelConfig& config, const MaxTextLayout& layout) {
  const MaxTextTree& tree = TreeOf(config);
  CheckLayers(tree, config, layout.is_scanned);
  TensorShapes shapes;
  for (const engine::WeightSpec& spec :
       engine::FindFamilyByName(config.family).list_weights(config)) {
    shapes.emplace(spec.name, spec.source_shape);
  }
  std::vector<MaxTextLeaf> leaves;
  for (const MaxTextRule& rule : tree.rules) {
    if (!Applies(rule, config)) continue;
    if (rule.tensor.find("{}") != std::string_view::npos) {
      AddLayers(rule, tree, config, layout, &shapes, &leaves);
      continue;
    }
    const auto shape = shapes.find(std::string(rule.tensor));
    if (shape == shapes.end()) continue;
    leaves.push_back(LeafOf(rule, std::string(rule.leaf), tree, config, layout,
                            config.attention.head_dim, shape->second));
    leaves.back().tensors = {shape->first};
    shapes.erase(shape);
  }
  if (!shapes.empty()) {
    Refuse("the parameter tree has no counterpart for tensor " + Quoted(shapes.begin()->first) +
           " of this model");
  }
  for (MaxTextLeaf& leaf : leaves) AddAxes(&leaf);
  return leaves;
}

std::string MaxTextCaveat(const ModelConfig& config) {
  const MaxTextTree* tree = engine::FindFamilyByName(config.family).maxtext;
  return tree == nullptr || tree->caveat == nullptr ? "" : tree->caveat(config);
}

std::string MaxTextFamilies() {
  return engine::FamilyNames(
      [](const engine::FamilySpec& family) { return family.maxtext != nullptr; });
}

std::string MaxTextFormExamples() {
  std::string examples;
  for (const engine::FamilySpec* family : engine::Families()) {
    if (family->maxtext == nullptr) continue;
    for (const engine::MaxTextForm& form : family->maxtext->forms) {
      examples += (examples.empty() ? "" : " or ") + std::string(form.example);
    }
  }
  return examples;
}

bool RotatesPairs(const std::string& maxtext_model) {
  if (maxtext_model.empty()) return true;
  for (const engine::FamilySpec* family : engine::Families()) {
    if (family->maxtext == nullptr) continue;
    for (const engine::MaxTextForm& form : family->maxtext->forms) {
      if (maxtext_model.starts_with(form.model_prefix)) return form.rotates_pairs;
    }
  }
  throw Error(ErrorCode::kInvalidArgument, "MaxText model " + Quoted(maxtext_model) +
                                               " has one form only; give a name such as " +
                                               MaxTextFormExamples() + ", or none");
}

}  // namespace tandem::convert
