#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/families/family.h"

namespace tandem::engine {

// The needs of one forward pass, per row, found by walking the family once: the activations, their
// lifetimes and their places in the arena. Activation i of the plan is Act{i} in every later pass,
// because a family always makes the same calls. Immutable; any thread.
struct ForwardPlan {
  // Bytes in the arena, per row of the batch: [offset, offset + bytes). offset -1: absent.
  struct Slot {
    int64_t offset = -1;
    int64_t bytes = 0;
  };
  struct Activation {
    int64_t cols = 0;
    int64_t stride = 0;  // elements
    DType dtype = DType::kF32;
    int32_t first_op = 0;  // the op that writes it
    int32_t last_op = 0;   // the last op that reads it
    Slot slot;
    // The copy in the compute dtype that matrix products and attention read, when `dtype` is f32
    // and compute is bf16. It lives from its first use to its last.
    int64_t rounded_stride = 0;
    int32_t rounded_first_op = -1;
    int32_t rounded_last_op = -1;
    Slot rounded;
  };
  struct Op {
    const char* name = "";
    int32_t output = -1;
    std::vector<int32_t> inputs;
    int32_t weight = -1;      // of ExpertLinear: of the first expert; the others follow it
    int64_t layer = -1;       // of attention
    bool writes_keys = true;  // attention; false where an earlier op wrote this layer's keys
    int64_t n_experts = 0, top_k = 0, k = 0;  // of ExpertLinear
    int64_t state_offset = -1;  // of ops with state: where theirs begins in a sequence's, in floats
  };

  DType dtype = DType::kF32;
  std::vector<Op> ops;
  std::vector<Activation> activations;
  // By layer: what its attention keeps in the KV cache. n_kv_heads 0: the layer keeps nothing.
  std::vector<AttentionSpec> kv_layers;
  // After the last attention or recurrence, rows are independent: the rest is computed for logit
  // rows only.
  int32_t last_attention_op = -1;
  int64_t arena_bytes_per_row = 0;
  int64_t state_floats = 0;  // of one sequence, over all layers
  int64_t vocab_size = 0;
  // Multiply and add count as two. The head runs per logit row, attention per query row and visible
  // key.
  int64_t linear_flops_per_row = 0;
  int64_t head_flops_per_row = 0;
  int64_t attention_flops_per_row_and_key = 0;

  // Scratch of a pass over this many rows that ExpertLinear needs.
  ScratchBytes ExpertScratch(int64_t rows) const;
  // By weight: the part that one row reads, top_k / n_experts for experts and 1 for all others.
  std::vector<double> ActiveShares(size_t n_weights) const;
  // The linear layers whose results Route reads, or that weigh streams (Mix, through SoftCap). They
  // stay in the compute dtype. A weight may appear twice.
  std::vector<int32_t> Routers() const;

  // One line per op, for `tandem plan` and for debugging.
  std::string ToString(const std::vector<WeightSpec>& specs) const;
};

// Throws kInternal when the family breaks the rules of LayerOps: sizes that do not match, a
// compute-dtype input to an op that reads f32, Logits not exactly once and last.
ForwardPlan PlanForward(const FamilySpec& family, const ModelConfig& config,
                        const std::vector<WeightSpec>& specs, DType dtype);

}  // namespace tandem::engine
