#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/model/families/config.h"

namespace tandem::engine {

// A family in MaxText checkpoints: its tree of parameters as data. convert/formats/maxtext reads
// and writes checkpoints by it; training/lora takes the names of modules from it.

enum class MaxTextShape : uint8_t {
  kTable,          // [vocabulary, width], unchanged
  kVector,         // unchanged
  kKernel,         // [out, in] -> [in, out]
  kHeadsOut,       // [heads * head_dim, in] -> [in, heads, head_dim]
  kHeadsIn,        // [out, heads * head_dim] -> [heads, head_dim, out]
  kHeadsVector,    // [heads * head_dim] -> [heads, head_dim]
  kQueryHeadsOut,  // [query heads * any, in] -> [in, query heads, any]
  kQueryHeadsIn,   // [out, query heads * any] -> [query heads, any, out]
  kConv,           // [channels, 1, width] -> [width, 1, channels]
};
enum class MaxTextValue : uint8_t {
  kAsIs,
  kPlusOne,
  kTimesRootWidth,
  kTimesRootWidthInBf16,  // the root is rounded to bf16
  kOverRootHeadDim,       // head_dim, never query_pre_attn_scalar
};

// Models of a family that have the leaf; its tensor may have another leaf in the others.
enum class MaxTextWhen : uint8_t { kAlways, kWithExperts, kWithoutExperts };

// In a tensor's name `{}` is the layer and `{E}` the expert: one leaf holds all experts, along a
// first axis. A leaf's name is relative to its layer; {s} is "_local" or "_global" in a layer that
// is a pair.
struct MaxTextRule {
  std::string_view tensor;
  std::string_view leaf;
  MaxTextShape shape;
  MaxTextValue value = MaxTextValue::kAsIs;
  bool is_rotated = false;  // if the layout rotates pairs
  MaxTextWhen when = MaxTextWhen::kAlways;
};

enum class MaxTextBlocks : uint8_t {
  kLayers,       // one layer per MaxText layer
  kPairs,        // a windowed layer and a full one are one MaxText layer
  kSixes,        // five windowed layers and a full one are scanned together; the remainder is apart
  kNestedSixes,  // as kSixes, but the five are one leaf with a second axis of layers
  kCycle,        // MaxTextTree::cycle layers are scanned together; no remainder
  kDenseFirst,   // layers without experts are `dense_layers`; the others, `moe_layers`, follow
};

// Checkpoints of one family come in two forms of q and k. The name of a MaxText model tells them
// apart.
struct MaxTextForm {
  std::string_view model_prefix;
  std::string_view example;  // for messages
  bool rotates_pairs = true;
};

struct MaxTextTree {
  std::span<const MaxTextRule> rules;  // leaves are written in this order
  MaxTextBlocks blocks = MaxTextBlocks::kLayers;
  int64_t cycle = 0;                         // of kCycle
  std::string_view cycle_layer = "layers_";  // of kCycle: a layer's name in its cycle, less number
  // The last layer of so many has no window, the others have one. 0: windows do not depend on it.
  int64_t window_period = 0;
  // Says why MaxText has no such model in this layout; empty if it has. Null: it has.
  std::string (*limit)(const ModelConfig& config, bool is_scanned) = nullptr;
  // Rows of MaxText's tables for a vocabulary of this size; null: the same.
  int64_t (*vocabulary)(int64_t size) = nullptr;
  // Says how MaxText computes differently from the family; empty if it does not. Null: never.
  std::string (*caveat)(const ModelConfig& config) = nullptr;
  std::span<const MaxTextForm> forms = {};  // empty: one form
};

// Names of a family's linear layers in lora.module_path besides their own paths: MaxText's, which
// users of MaxText write also for families that it does not have.
struct LoraNames {
  std::span<const MaxTextRule> rules;
  MaxTextBlocks blocks = MaxTextBlocks::kLayers;
  int64_t cycle = 0;                         // as MaxTextTree's
  std::string_view cycle_layer = "layers_";  // as MaxTextTree's
  // Of kDenseFirst: the module around a layer's experts, which MaxText's expressions leave out.
  std::string_view expert_block = "";
};

}  // namespace tandem::engine
