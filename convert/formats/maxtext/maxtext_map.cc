#include "convert/formats/maxtext/maxtext_map.h"

#include <cmath>
#include <map>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
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
    Refuse("family " + Quoted(config.family) + " is not converted; those are " + MaxTextFamilies());
  }
  return *tree;
}

constexpr int64_t kPattern = 6;

// Checks the windows against MaxText, which derives them from a layer's position.
void CheckWindows(MaxTextBlocks blocks, const ModelConfig& config) {
  if (blocks == MaxTextBlocks::kLayers) return;
  const int64_t period = blocks == MaxTextBlocks::kPairs ? 2 : kPattern;
  if (blocks == MaxTextBlocks::kPairs && config.n_layers % 2 != 0) {
    Refuse("family " + Quoted(config.family) + " has layers in pairs; this model has " +
           std::to_string(config.n_layers));
  }
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const bool has_window =
        config.windowed_layers.empty() || config.windowed_layers[static_cast<size_t>(layer)];
    if (has_window != (layer % period != period - 1)) {
      Refuse("layer " + std::to_string(layer) + (has_window ? " has a" : " has no") +
             " sliding window, in MaxText's order of layers it is the other way");
    }
  }
}

std::string Replace(std::string_view text, std::string_view what, std::string_view with) {
  std::string out(text);
  if (const size_t at = out.find(what); at != std::string::npos) out.replace(at, what.size(), with);
  return out;
}

struct LayerPlace {
  std::string path;    // of the layer: "decoder.layers"
  std::string suffix;  // of leaves in it: "_local"
  bool is_scanned = false;
};

LayerPlace PlaceOf(MaxTextBlocks blocks, bool is_scanned, int64_t layer, int64_t n_layers) {
  const std::string number = std::to_string(layer);
  switch (blocks) {
    case MaxTextBlocks::kLayers:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + number, "", is_scanned};
    case MaxTextBlocks::kPairs:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + std::to_string(layer / 2),
              layer % 2 == 0 ? "_local" : "_global", is_scanned};
    case MaxTextBlocks::kSixes:
      break;
  }
  if (!is_scanned) return {"decoder.layers_" + number, "", false};
  const std::string within = "layers_" + std::to_string(layer % kPattern);
  if (layer < n_layers / kPattern * kPattern) return {"decoder.layers." + within, "", true};
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

// Builds the leaf of one layer, or of no layer.
MaxTextLeaf LeafOf(const MaxTextRule& rule, const std::string& name, const MaxTextTree& tree,
                   const ModelConfig& config, const MaxTextLayout& layout,
                   const std::vector<int64_t>& shape) {
  MaxTextLeaf leaf;
  leaf.name = name;
  leaf.tensor_shape = shape;
  leaf.arithmetic = ArithmeticOf(rule.value, config);
  const int64_t head_dim = config.attention.head_dim;
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
  }
  return leaf;
}

void AddLayers(const MaxTextRule& rule, const MaxTextTree& tree, const ModelConfig& config,
               const MaxTextLayout& layout, std::map<std::string, std::vector<int64_t>>* shapes,
               std::vector<MaxTextLeaf>* leaves) {
  std::map<std::string, size_t> known;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string tensor = Replace(rule.tensor, "{}", std::to_string(layer));
    const auto shape = shapes->find(tensor);
    if (shape == shapes->end()) continue;
    const LayerPlace place = PlaceOf(tree.blocks, layout.is_scanned, layer, config.n_layers);
    const std::string name = place.path + "." + Replace(rule.leaf, "{s}", place.suffix);
    const auto [at, is_new] = known.emplace(name, leaves->size());
    if (is_new) {
      leaves->push_back(LeafOf(rule, name, tree, config, layout, shape->second));
      leaves->back().is_scanned = place.is_scanned;
    }
    (*leaves)[at->second].tensors.push_back(tensor);
    shapes->erase(shape);
  }
}

}  // namespace

int64_t MaxTextLeaf::rows() const {
  if (!is_transposed) return shape[0];
  return tensor_shape[1];
}

int64_t MaxTextLeaf::columns() const {
  if (is_transposed) return tensor_shape[0];
  return tensor_shape.size() == 1 ? 1 : tensor_shape[1];
}

std::vector<MaxTextLeaf> MaxTextLeaves(const ModelConfig& config, const MaxTextLayout& layout) {
  const MaxTextTree& tree = TreeOf(config);
  CheckWindows(tree.blocks, config);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const engine::WeightSpec& spec :
       engine::FindFamilyByName(config.family).list_weights(config)) {
    shapes.emplace(spec.name, spec.source_shape);
  }
  std::vector<MaxTextLeaf> leaves;
  for (const MaxTextRule& rule : tree.rules) {
    if (rule.tensor.find("{}") != std::string_view::npos) {
      AddLayers(rule, tree, config, layout, &shapes, &leaves);
      continue;
    }
    const auto shape = shapes.find(std::string(rule.tensor));
    if (shape == shapes.end()) continue;
    leaves.push_back(LeafOf(rule, std::string(rule.leaf), tree, config, layout, shape->second));
    leaves.back().tensors = {shape->first};
    shapes.erase(shape);
  }
  if (!shapes.empty()) {
    Refuse("the parameter tree has no counterpart for tensor " + Quoted(shapes.begin()->first) +
           " of this model");
  }
  for (MaxTextLeaf& leaf : leaves) {
    if (leaf.is_scanned) leaf.shape.insert(leaf.shape.begin() + 1, leaf.n_layers());
  }
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
