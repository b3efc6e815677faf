#include "convert/formats/maxtext/maxtext_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/family.h"
#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"

namespace tandem::convert {
namespace {

using engine::ModelConfig;

enum class Shape {
  kTable,     // [vocabulary, width], unchanged
  kVector,    // unchanged
  kKernel,    // [out, in] -> [in, out]
  kHeadsOut,  // [heads * head_dim, in] -> [in, heads, head_dim]
  kHeadsIn,   // [out, heads * head_dim] -> [heads, head_dim, out]
};
enum class Value {
  kAsIs,
  kPlusOne,
  kTimesRootWidth,
  kTimesRootWidthInBf16,  // the root is rounded to bf16, as in Gemma 3
  kOverRootHeadDim,       // head_dim, never query_pre_attn_scalar
};

// In a tensor's name `{}` is the layer. A leaf's name is relative to its layer; {s} is "_local" or
// "_global" in a layer that is a pair.
struct Rule {
  std::string_view tensor;
  std::string_view leaf;
  Shape shape;
  Value value = Value::kAsIs;
  bool is_rotated = false;  // if the layout rotates pairs
};

// Rows shared by families. Without pairs, {s} is empty.
constexpr std::array kQueryAndKey{Rule{"model.layers.{}.self_attn.q_proj.weight",
                                       "self_attention{s}.query.kernel", Shape::kHeadsOut},
                                  Rule{"model.layers.{}.self_attn.k_proj.weight",
                                       "self_attention{s}.key.kernel", Shape::kHeadsOut}};
constexpr std::array kValueAndOut{Rule{"model.layers.{}.self_attn.v_proj.weight",
                                       "self_attention{s}.value.kernel", Shape::kHeadsOut},
                                  Rule{"model.layers.{}.self_attn.o_proj.weight",
                                       "self_attention{s}.out.kernel", Shape::kHeadsIn}};
constexpr std::array kMlp{
    Rule{"model.layers.{}.mlp.gate_proj.weight", "mlp{s}.wi_0.kernel", Shape::kKernel},
    Rule{"model.layers.{}.mlp.up_proj.weight", "mlp{s}.wi_1.kernel", Shape::kKernel},
    Rule{"model.layers.{}.mlp.down_proj.weight", "mlp{s}.wo.kernel", Shape::kKernel}};
// Gemma 2 and 3: four norms around attention and MLP.
constexpr std::array kFourNorms{
    Rule{"model.norm.weight", "decoder.decoder_norm.scale", Shape::kVector, Value::kPlusOne},
    Rule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_norm{s}.scale",
         Shape::kVector, Value::kPlusOne},
    Rule{"model.layers.{}.post_attention_layernorm.weight", "post_self_attention_norm{s}.scale",
         Shape::kVector, Value::kPlusOne},
    Rule{"model.layers.{}.pre_feedforward_layernorm.weight", "pre_ffw_norm{s}.scale",
         Shape::kVector, Value::kPlusOne},
    Rule{"model.layers.{}.post_feedforward_layernorm.weight", "post_ffw_norm{s}.scale",
         Shape::kVector, Value::kPlusOne}};
// Llama and Qwen 3. Despite its name post_attention_layernorm is the norm before the MLP.
constexpr std::array kTablesAndTwoNorms{
    Rule{"model.embed_tokens.weight", "token_embedder.embedding", Shape::kTable},
    Rule{"lm_head.weight", "decoder.logits_dense.kernel", Shape::kKernel},
    Rule{"model.norm.weight", "decoder.decoder_norm.scale", Shape::kVector},
    Rule{"model.layers.{}.input_layernorm.weight", "pre_self_attention_layer_norm.scale",
         Shape::kVector},
    Rule{"model.layers.{}.post_attention_layernorm.weight", "post_self_attention_layer_norm.scale",
         Shape::kVector}};

// Keeps the order: a checkpoint's leaves are written in the order of these rows.
template <size_t... n>
constexpr auto Joined(const std::array<Rule, n>&... parts) {
  std::array<Rule, (n + ...)> rules{};
  size_t at = 0;
  const auto add = [&](const auto& part) {
    for (const Rule& rule : part) rules[at++] = rule;
  };
  (add(parts), ...);
  return rules;
}

constexpr std::array kGemma2 = Joined(
    std::array{Rule{"model.embed_tokens.weight", "token_embedder.embedding", Shape::kTable,
                    Value::kTimesRootWidth}},
    kFourNorms,
    std::array{Rule{"model.layers.{}.self_attn.q_proj.weight", "self_attention{s}.query.kernel",
                    Shape::kHeadsOut, Value::kOverRootHeadDim},
               Rule{"model.layers.{}.self_attn.k_proj.weight", "self_attention{s}.key.kernel",
                    Shape::kHeadsOut}},
    kValueAndOut, kMlp);

constexpr std::array kGemma3 =
    Joined(std::array{Rule{"model.embed_tokens.weight", "token_embedder.embedding", Shape::kTable,
                           Value::kTimesRootWidthInBf16}},
           kFourNorms, kQueryAndKey, kValueAndOut,
           std::array{Rule{"model.layers.{}.self_attn.q_norm.weight",
                           "self_attention.query_norm.scale", Shape::kVector, Value::kPlusOne},
                      Rule{"model.layers.{}.self_attn.k_norm.weight",
                           "self_attention.key_norm.scale", Shape::kVector, Value::kPlusOne}},
           kMlp);

constexpr std::array kLlama =
    Joined(kTablesAndTwoNorms,
           std::array{Rule{"model.layers.{}.self_attn.q_proj.weight", "self_attention.query.kernel",
                           Shape::kHeadsOut, Value::kOverRootHeadDim, true},
                      Rule{"model.layers.{}.self_attn.k_proj.weight", "self_attention.key.kernel",
                           Shape::kHeadsOut, Value::kAsIs, true}},
           kValueAndOut, kMlp);

constexpr std::array kQwen3 =
    Joined(kTablesAndTwoNorms, kQueryAndKey, kValueAndOut,
           std::array{Rule{"model.layers.{}.self_attn.q_norm.weight",
                           "self_attention.query_norm.scale", Shape::kVector},
                      Rule{"model.layers.{}.self_attn.k_norm.weight",
                           "self_attention.key_norm.scale", Shape::kVector}},
           kMlp);

enum class Blocks {
  kLayers,  // one layer per MaxText layer
  kPairs,   // a windowed layer and a full one are one MaxText layer
  kSixes,   // five windowed layers and a full one are scanned together; the remainder is apart
};

// Number of MaxText's rows for a vocabulary of this size.
int64_t SameVocabulary(int64_t size) { return size; }
// Gemma 2 pads 256,000 to 256,128.
int64_t Gemma2Vocabulary(int64_t size) {
  constexpr int64_t kTheirs = 256000, kPadding = 128;
  return size > kTheirs && size <= kTheirs + kPadding ? kTheirs + kPadding : size + kPadding;
}
// MaxText's Gemma 3 lacks the rows that multimodal checkpoints append to the text vocabulary.
int64_t Gemma3Vocabulary(int64_t size) { return std::min<int64_t>(size, 262144); }

struct Family {
  std::string_view name;  // as in engine/model/families.cc
  std::span<const Rule> rules;
  Blocks blocks;
  int64_t (*vocabulary)(int64_t size);
};
constexpr std::array kFamilies{
    Family{"gemma2", kGemma2, Blocks::kPairs, Gemma2Vocabulary},
    Family{"gemma3", kGemma3, Blocks::kSixes, Gemma3Vocabulary},
    Family{"llama", kLlama, Blocks::kLayers, SameVocabulary},
    Family{"qwen3", kQwen3, Blocks::kLayers, SameVocabulary},
};

[[noreturn]] void Refuse(const std::string& what) {
  throw Error(ErrorCode::kUnsupported, "MaxText: " + what);
}

const Family& FamilyOf(const ModelConfig& config) {
  const auto found = std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& family) {
    return family.name == config.family;
  });
  if (found == kFamilies.end()) {
    Refuse("family " + Quoted(config.family) + " is not converted; those are " + MaxTextFamilies());
  }
  return *found;
}

constexpr int64_t kPattern = 6;

// Checks the windows against MaxText, which derives them from a layer's position.
void CheckWindows(Blocks blocks, const ModelConfig& config) {
  if (blocks == Blocks::kLayers) return;
  const int64_t period = blocks == Blocks::kPairs ? 2 : kPattern;
  if (blocks == Blocks::kPairs && config.n_layers % 2 != 0) {
    Refuse("Gemma 2 has layers in pairs; this model has " + std::to_string(config.n_layers));
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

LayerPlace PlaceOf(Blocks blocks, bool is_scanned, int64_t layer, int64_t n_layers) {
  const std::string number = std::to_string(layer);
  switch (blocks) {
    case Blocks::kLayers:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + number, "", is_scanned};
    case Blocks::kPairs:
      return {is_scanned ? "decoder.layers" : "decoder.layers_" + std::to_string(layer / 2),
              layer % 2 == 0 ? "_local" : "_global", is_scanned};
    case Blocks::kSixes:
      break;
  }
  if (!is_scanned) return {"decoder.layers_" + number, "", false};
  const std::string within = "layers_" + std::to_string(layer % kPattern);
  if (layer < n_layers / kPattern * kPattern) return {"decoder.layers." + within, "", true};
  return {"decoder.layers_remainder." + within, "", false};
}

MaxTextArithmetic ArithmeticOf(Value value, const ModelConfig& config) {
  const double root_width = std::sqrt(static_cast<double>(config.hidden_dim));
  const double root_head = std::sqrt(static_cast<double>(config.attention.head_dim));
  switch (value) {
    case Value::kAsIs:
      break;
    case Value::kPlusOne:
      return {.added = 1};
    case Value::kTimesRootWidth:
      return {.factor = static_cast<float>(root_width)};
    case Value::kTimesRootWidthInBf16:
      return {.factor = engine::Bf16ToFloat(engine::FloatToBf16(static_cast<float>(root_width)))};
    case Value::kOverRootHeadDim:
      return {.factor = static_cast<float>(1 / root_head)};
  }
  return {};
}

// Builds the leaf of one layer, or of no layer.
MaxTextLeaf LeafOf(const Rule& rule, const std::string& name, const Family& family,
                   const ModelConfig& config, const MaxTextLayout& layout,
                   const std::vector<int64_t>& shape) {
  MaxTextLeaf leaf;
  leaf.name = name;
  leaf.tensor_shape = shape;
  leaf.arithmetic = ArithmeticOf(rule.value, config);
  const int64_t head_dim = config.attention.head_dim;
  switch (rule.shape) {
    case Shape::kTable:
      leaf.has_vocabulary = true;
      leaf.shape = {family.vocabulary(shape[0]), shape[1]};
      break;
    case Shape::kVector:
      leaf.shape = shape;
      break;
    case Shape::kKernel:
      leaf.is_transposed = true;
      leaf.shape = {shape[1], shape[0]};
      break;
    case Shape::kHeadsOut:
      leaf.is_transposed = true;
      leaf.shape = {shape[1], shape[0] / head_dim, head_dim};
      if (rule.is_rotated && layout.rotates_pairs) leaf.rotated_head_dim = head_dim;
      break;
    case Shape::kHeadsIn:
      leaf.is_transposed = true;
      leaf.group = head_dim;
      leaf.shape = {shape[1] / head_dim, head_dim, shape[0]};
      break;
  }
  return leaf;
}

void AddLayers(const Rule& rule, const Family& family, const ModelConfig& config,
               const MaxTextLayout& layout, std::map<std::string, std::vector<int64_t>>* shapes,
               std::vector<MaxTextLeaf>* leaves) {
  std::map<std::string, size_t> known;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string tensor = Replace(rule.tensor, "{}", std::to_string(layer));
    const auto shape = shapes->find(tensor);
    if (shape == shapes->end()) continue;
    const LayerPlace place = PlaceOf(family.blocks, layout.is_scanned, layer, config.n_layers);
    const std::string name = place.path + "." + Replace(rule.leaf, "{s}", place.suffix);
    const auto [at, is_new] = known.emplace(name, leaves->size());
    if (is_new) {
      leaves->push_back(LeafOf(rule, name, family, config, layout, shape->second));
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
  const Family& family = FamilyOf(config);
  CheckWindows(family.blocks, config);
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const engine::WeightSpec& spec :
       engine::FindFamilyByName(config.family).list_weights(config)) {
    shapes.emplace(spec.name, spec.source_shape);
  }
  std::vector<MaxTextLeaf> leaves;
  for (const Rule& rule : family.rules) {
    if (rule.tensor.find("{}") != std::string_view::npos) {
      AddLayers(rule, family, config, layout, &shapes, &leaves);
      continue;
    }
    const auto shape = shapes.find(std::string(rule.tensor));
    if (shape == shapes.end()) continue;
    leaves.push_back(LeafOf(rule, std::string(rule.leaf), family, config, layout, shape->second));
    leaves.back().tensors = {shape->first};
    shapes.erase(shape);
  }
  if (!shapes.empty()) {
    Refuse("its tree has no place for " + Quoted(shapes.begin()->first) + " of this model");
  }
  for (MaxTextLeaf& leaf : leaves) {
    if (leaf.is_scanned) leaf.shape.insert(leaf.shape.begin() + 1, leaf.n_layers());
  }
  return leaves;
}

std::string MaxTextCaveat(const ModelConfig& config) {
  const auto head_dim = static_cast<double>(config.attention.head_dim);
  if (config.family != "gemma2" || config.query_scalar == 0 || config.query_scalar == head_dim) {
    return "";
  }
  char text[160];
  std::snprintf(text, sizeof text,
                "query_pre_attn_scalar is %g and head_dim %g, which is what MaxText divides by: "
                "there attention scores are %.4g times these",
                config.query_scalar, head_dim, std::sqrt(config.query_scalar / head_dim));
  return text;
}

std::string MaxTextFamilies() {
  std::string names;
  for (const Family& family : kFamilies) {
    names += (names.empty() ? "" : ", ") + std::string(family.name);
  }
  return names;
}

bool RotatesPairs(const std::string& maxtext_model) {
  if (maxtext_model.empty() || maxtext_model.starts_with("llama3.")) return true;
  if (maxtext_model.starts_with("llama3-")) return false;
  throw Error(ErrorCode::kInvalidArgument,
              "MaxText model " + Quoted(maxtext_model) +
                  " is none that has to be told: only Llama is in two forms, llama3-8b and "
                  "llama3.1-8b (or another size of them)");
}

}  // namespace tandem::convert
