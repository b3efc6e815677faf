#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/ops/ops_context.h"
#include "engine/tensor/bfloat16.h"
#include "training/optim/schedule.h"

namespace tandem::training {

enum class OptimizerKind { kAdam, kAdamW, kSgd };

// How moments are kept. In 8 bits: those of matrices of at least kLeastCoded elements; those of
// embeddings, norms, biases and small matrices stay f32.
enum class MomentState { kF32, k8Bit };
constexpr int64_t kLeastCoded = 4096;

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  MomentState state = MomentState::kF32;
  double momentum = 0;  // kSgd; 0: no moment at all
  double b1 = 0.9;
  double b2 = 0.95;
  double eps = 1e-8;          // outside the square root
  double eps_root = 0;        // inside it
  double weight_decay = 0.1;  // kAdamW: decoupled, times the learning rate, on decaying tensors
  // Regular expressions on the names of the weights that do not decay. Absent: norm scales and
  // biases do not.
  std::optional<std::vector<std::string>> decay_exclude = std::nullopt;
  double clip_norm = 1.0;  // 0: no clipping
};

// Which moments a tensor has.
struct MomentLayout {
  bool first = true;
  bool second = true;
  bool coded = false;
};
// `may_be_coded`: a matrix that is no embedding.
MomentLayout MomentsOf(const OptimizerSpec& spec, int64_t elements, bool may_be_coded);
int64_t MomentBlocks(int64_t elements);  // scales of a moment in codes
int64_t MomentBytes(const MomentLayout& layout, int64_t elements);

// One tensor's state. The master value is f32, held either whole or split: the high half is the
// bf16 weight that is computed with and exported, the low half a signed 16-bit remainder
// (DESIGN "Decided numerics" 7).
struct ParameterState {
  int64_t elements = 0;
  bool decays = true;
  float* master = nullptr;       // f32 compute: the weight itself
  engine::Bf16* high = nullptr;  // bf16 compute: split master
  int16_t* low = nullptr;
  float* m = nullptr;  // moments as the optimiser has them: floats …
  float* v = nullptr;
  uint8_t* m_codes = nullptr;  // … or codes with a scale per block
  uint8_t* v_codes = nullptr;
  float* m_scales = nullptr;
  float* v_scales = nullptr;
  const float* gradient = nullptr;
};

// Splits an f32 into the bf16 nearest to it and the remainder, and joins them again, exactly for
// every finite value whose bf16 does not overflow.
void SplitMaster(float value, engine::Bf16* high, int16_t* low);
float JoinMaster(engine::Bf16 high, int16_t low);

// sqrt of the sum of squares over all tensors: fixed blocks of 4,096 elements summed in f64 in
// order.
double GlobalNorm(engine::OpsContext& ops, std::span<const ParameterState> parameters);

// One update with step number t (0-based) in one pass per tensor. Gradients are multiplied by
// `gradient_scale` (clipping) on the way.
void ApplyOptimizer(engine::OpsContext& ops, const OptimizerSpec& spec, double learning_rate,
                    int64_t t, double gradient_scale, std::span<const ParameterState> parameters);

}  // namespace tandem::training
