#pragma once

#include <cstdint>
#include <functional>

#include "engine/ops/expert_lora.h"

namespace tandem::training {

// The backward of AddExpertLora: y += B . h, h = scale * (A . x) with the adapter of each slot's
// expert. dh is rounded like every gradient that enters a matrix product.
struct ExpertLoraGradient {
  engine::ConstMatrix x;        // inputs of the As: [rows, k] or [rows, top_k * k]
  engine::ConstMatrix routing;  // [rows, 2 * top_k]
  engine::ConstMatrix hidden;   // h of every slot: [rows * top_k, at least the rank]
  int64_t n_experts = 0;
  int64_t n = 0;                                                    // outputs of an expert
  int64_t k = 0;                                                    // inputs
  const float* dy = nullptr;                                        // [rows, top_k * n]
  std::function<const engine::LoraMatrices*(int64_t expert)> lora;  // null: no adapter
  std::function<float*(int64_t expert)> da;                         // [rank, k], +=
  std::function<float*(int64_t expert)> db;                         // [n, rank], +=
  float* dx = nullptr;  // like x, dense, +=; null: not needed
};

// Rows of one expert are summed as in ExpertLinearBackward. `scratch` holds
// ExpertLoraGradientScratch(...) bytes, 64-byte aligned; `rank` is the largest.
void ExpertLoraBackward(engine::OpsContext& ops, const ExpertLoraGradient& gradient, int64_t rank,
                        std::byte* scratch);
int64_t ExpertLoraGradientScratch(engine::DType dtype, int64_t rows, int64_t top_k,
                                  int64_t n_experts, int64_t n, int64_t k, int64_t rank);

}  // namespace tandem::training
