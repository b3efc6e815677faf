#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "engine/ops/matmul.h"
#include "engine/ops/matmul_scratch.h"
#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// Mixtures of experts (Shazeer et al. 2017): a router chooses top_k of n_experts for each row, each
// chosen expert's MLP runs on that row, and the results are added with the router's weights.
//
// A routing is an f32 matrix [rows, 2 * top_k]. Columns [0, top_k) are expert ids, distinct
// integers in [0, n_experts) for any logits, NaN included. Columns [top_k, 2 * top_k) are their
// weights. Slot s of a row is its s-th expert.

enum class RouterScore : uint8_t { kSoftmax, kSigmoid };
// The score of a group of experts: the largest of its choices, or the sum of its two largest.
enum class GroupScore : uint8_t { kMax, kTop2Sum };

// How logits become a routing. Experts are chosen by score plus selection bias, in falling order,
// ties to the lower id; NaN comes last. With groups, only experts of the top_groups best groups can
// be chosen (DeepSeek-V2 and V3). A weight is the score without the bias.
struct RouterSpec {
  int64_t n_experts = 0;
  int64_t top_k = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool softmax_of_chosen = false;  // kSoftmax: over the chosen logits only (gpt-oss)
  bool normalise = false;          // divide the weights by their sum plus 1e-20
  float scale = 1;                 // multiplies the weights, last
  int64_t n_groups = 1;            // divides n_experts
  int64_t top_groups = 1;
  GroupScore group_score = GroupScore::kMax;
};

// Throws kInvalidArgument naming the field that contradicts another.
void CheckRouter(const RouterSpec& spec);

// Writes the routing of each row of `logits` [rows, n_experts] f32. `selection_bias` [n_experts] or
// null. A row depends on its own logits alone.
void Route(OpsContext& ops, const float* logits, int64_t ldlogits, const float* selection_bias,
           const RouterSpec& spec, const Matrix& routing);

// Sorts the slots of a routing by expert: slot ids (row * top_k + slot) of expert e are
// slots[first[e]] to slots[first[e + 1] - 1], ascending. Sizes: first n_experts + 1, slots rows *
// top_k. Throws kInternal for an id out of range.
void GroupByExpert(const ConstMatrix& routing, int64_t n_experts, std::span<int32_t> first,
                   std::span<int32_t> slots);

// One projection [n, k] of every expert of a layer. Experts may differ in their block format.
struct ExpertMatrices {
  int64_t n_experts = 0;
  std::function<const PanelMatrix&(int64_t expert)> weight;
  std::function<const float*(int64_t expert)> bias;  // empty: none
};

// y[row, slot * n, ...] = x . W^T + bias with the slot's expert. x is [rows, k], shared by the
// slots, or [rows, top_k * k]. A slot's result has the bits of MatMul on that row alone. With top_k
// 1 both forms of x are the same.
void ExpertMatMul(OpsContext& ops, const ConstMatrix& x, const ConstMatrix& routing,
                  const ExpertMatrices& experts, float* y, int64_t ldy);

// Scratch of ExpertMatMul for weights of `k` inputs in `dtype` or in blocks.
ScratchBytes ExpertScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts, int64_t k);

// out[row, :] = sum over slots, in order, of weight * y[row, slot * n ...]; y is [rows, top_k * n]
// with rows ldy floats apart, out is f32 [rows, n].
void CombineExperts(OpsContext& ops, const float* y, int64_t ldy, const ConstMatrix& routing,
                    const Matrix& out);

}  // namespace tandem::engine
