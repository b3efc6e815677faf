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

enum class OptimizerKind {
  kAdam,
  kAdamW,
  kSgd,
  kAdafactor,  // Shazeer and Stern, 2018, algorithms 4 and 5: no first moment
  kLion,       // Chen et al., 2023, algorithm 2: one moment
  kMuon,       // Jordan et al., 2024: for the matrices of layers; AdamW for all other tensors
};

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
  double clip_norm = 1.0;   // 0: no clipping
  double muon_beta = 0.95;  // momentum of kMuon's matrices
  // Root mean square of a kMuon update before the learning rate, as AdamW's has (Liu et al., 2025).
  // 0: Jordan's factor sqrt(max(1, rows / columns)) instead.
  double muon_consistent_rms = 0.2;
  double ema_decay = 0;  // of the moving average of the weights; 0: none

  bool is_adam() const { return kind == OptimizerKind::kAdam || kind == OptimizerKind::kAdamW; }
};

// The moments that a tensor has.
struct MomentLayout {
  bool first = true;
  bool second = true;
  bool coded = false;
  int64_t factors = 0;  // of the second moment: sums of rows and of columns; 0: one per element
};
// What the optimiser knows of a tensor's shape and role.
struct TensorForm {
  int64_t rows = 0;
  int64_t columns = 1;
  bool is_matrix = false;   // not an embedding, a vector or a convolution
  bool is_of_layer = true;  // false: the head
};
// Whether kMuon treats a tensor of this form as a matrix.
bool IsOrthogonalised(const OptimizerSpec& spec, const TensorForm& form);
MomentLayout MomentsOf(const OptimizerSpec& spec, const TensorForm& form);
int64_t SecondMomentElements(const MomentLayout& layout, int64_t elements);
int64_t MomentBlocks(int64_t elements);  // number of scales of a coded moment
int64_t MomentBytes(const MomentLayout& layout, int64_t elements);

// One tensor's state. The master value is an f32, stored whole or split into a bf16 high half and a
// signed 16-bit remainder. The high half is the weight for computing and export.
struct ParameterState {
  int64_t elements = 0;
  int64_t columns = 1;          // of each row
  bool factored = false;        // v holds sums of the rows, then of the columns
  bool orthogonalised = false;  // kMuon
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
