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

// Storage of moments. k8Bit codes the moments of matrices with at least kLeastCoded elements. Those
// of embeddings, norms, biases and smaller matrices stay f32.
enum class MomentState { kF32, k8Bit };
constexpr int64_t kLeastCoded = 4096;

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kAdamW;
  MomentState state = MomentState::kF32;
  double momentum = 0;  // for kSgd; 0: no moment at all
  double b1 = 0.9;
  double b2 = 0.95;
  double eps = 1e-8;          // outside the square root
  double eps_root = 0;        // inside it
  double weight_decay = 0.1;  // for kAdamW: decoupled, times the learning rate, on decaying tensors
  // Regular expressions on names of weights that do not decay. Absent: norm scales and biases do
  // not.
  std::optional<std::vector<std::string>> decay_exclude = std::nullopt;
  double clip_norm = 1.0;  // 0: no clipping
};

// The moments that a tensor has.
struct MomentLayout {
  bool first = true;
  bool second = true;
  bool coded = false;
};
// `may_be_coded`: true for a matrix that is no embedding.
MomentLayout MomentsOf(const OptimizerSpec& spec, int64_t elements, bool may_be_coded);
int64_t MomentBlocks(int64_t elements);  // number of scales of a coded moment
int64_t MomentBytes(const MomentLayout& layout, int64_t elements);

// One tensor's state. The master value is an f32, stored whole or split into a bf16 high half and a
// signed 16-bit remainder. The high half is the weight for computing and export.
struct ParameterState {
  int64_t elements = 0;
  bool decays = true;
  float* master = nullptr;       // f32 compute: the weight
  engine::Bf16* high = nullptr;  // bf16 compute: split master
  int16_t* low = nullptr;
  float* m = nullptr;  // f32 moments …
  float* v = nullptr;
  uint8_t* m_codes = nullptr;  // … or coded moments with a scale per block
  uint8_t* v_codes = nullptr;
  float* m_scales = nullptr;
  float* v_scales = nullptr;
  const float* gradient = nullptr;
};

// Splits an f32 into its nearest bf16 and the remainder, and joins them again. Exact for every
// finite value whose bf16 does not overflow.
void SplitMaster(float value, engine::Bf16* high, int16_t* low);
float JoinMaster(engine::Bf16 high, int16_t low);

// Elements of a tensor whose squares are summed at once.
constexpr int64_t kNormBlock = 4096;
// The sums of squares of the blocks of all tensors, in order.
std::vector<double> SquaredBlocks(engine::OpsContext& ops,
                                  std::span<const ParameterState> parameters);

// Square root of the sum of squares over all tensors. Adds the blocks in f64, in order.
double GlobalNorm(engine::OpsContext& ops, std::span<const ParameterState> parameters);

// Applies update number t (0-based) in one pass per tensor. Multiplies gradients by
// `gradient_scale` (clipping).
void ApplyOptimizer(engine::OpsContext& ops, const OptimizerSpec& spec, double learning_rate,
                    int64_t t, double gradient_scale, std::span<const ParameterState> parameters);

}  // namespace tandem::training
