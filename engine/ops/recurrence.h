#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/rows.h"

namespace tandem::engine {

// Layers whose rows continue a state of fixed size: short convolutions and linear recurrences. They
// go row by row in f32, in the order of positions, so a row's bits never depend on how chunks split
// its sequence. Tasks are heads or ranges of channels of one sequence.

// Where the state after `position` rows of a sequence is copied while a slice passes that border.
struct StateSave {
  int64_t position = 0;
  float* state = nullptr;
};

// A run of rows of one sequence (serving) or a packed segment (training). Row r has position
// first_position + r. The rows continue `state`, or zeros at position 0, and leave the state after
// the last row there.
struct StateRows {
  int64_t first_row = 0;
  int64_t n_rows = 0;
  int64_t first_position = 0;
  float* state = nullptr;                 // of all layers; null: a segment, which starts at zero
  std::span<const StateSave> saves = {};  // ascending, in (first_position, end of the slice]
};

// The largest kernel of a convolution, and the largest key of a recurrence's head.
inline constexpr int64_t kMaxConvKernel = 16;
inline constexpr int64_t kMaxStateKey = 1024;

enum class ConvForm : uint8_t {
  kPlain,  // y = conv(x)
  kSilu,   // y = silu(conv(x))
  kGated,  // x is [B | C | x]: y = C * conv(B * x) (LFM2)
};

// A causal depthwise convolution: conv(u)[t] = bias + sum over j of w[j] * u[t - kernel + 1 + j].
struct ConvSpec {
  int64_t channels = 0;
  int64_t kernel = 0;
  ConvForm form = ConvForm::kPlain;

  int64_t inputs() const { return form == ConvForm::kGated ? 3 * channels : channels; }
  int64_t state_floats() const { return (kernel - 1) * channels; }  // the last inputs, oldest first
};

// x [rows, spec.inputs()], y [rows, channels], both dense f32; w [channels][kernel]; bias
// [channels] or null. The state of this layer begins `offset` floats into each sequence's.
void CausalConv(OpsContext& ops, const ConvSpec& spec, const float* x, const float* w,
                const float* bias, std::span<const StateRows> rows, int64_t offset, float* y);

// Gated DeltaNet (Yang et al. 2024): per value head, with the state S [k_dim][v_dim],
//   S = decay * S;  S += k (beta * (v - S^T k))^T;  y = S^T q.
// q and k are divided by their lengths, q also by sqrt(k_dim). decay = exp(-exp(a_log) *
// softplus(a + dt_bias)), beta = sigmoid(b). Value head h uses key head h / (n_v_heads /
// n_k_heads).
struct DeltaSpec {
  int64_t n_k_heads = 0;
  int64_t n_v_heads = 0;
  int64_t k_dim = 0;
  int64_t v_dim = 0;

  int64_t inputs() const { return 2 * n_k_heads * k_dim + n_v_heads * v_dim; }
  int64_t outputs() const { return n_v_heads * v_dim; }
  int64_t state_floats() const { return n_v_heads * k_dim * v_dim; }
};
inline constexpr float kDeltaEps = 1e-6f;  // added to squared lengths, as in transformers

struct DeltaInputs {
  const float* qkv = nullptr;      // [rows, spec.inputs()]: all q, all k, all v
  const float* a = nullptr;        // [rows, n_v_heads]
  const float* b = nullptr;        // [rows, n_v_heads]
  const float* a_log = nullptr;    // [n_v_heads]
  const float* dt_bias = nullptr;  // [n_v_heads]
};
void GatedDelta(OpsContext& ops, const DeltaSpec& spec, const DeltaInputs& in,
                std::span<const StateRows> rows, int64_t offset, float* y);

// Mamba-2's selective scan (Dao and Gu 2024): per head, with the state S [state_dim][head_dim],
//   S = decay * S + B (dt * x)^T;  y = S^T C + d * x.
// dt = clamp(softplus(dt + dt_bias)), decay = exp(-exp(a_log) * dt). Head h uses B and C of group
// h / (n_heads / n_groups).
struct ScanSpec {
  int64_t n_heads = 0;
  int64_t head_dim = 0;
  int64_t n_groups = 0;
  int64_t state_dim = 0;
  float least_dt = 0;
  float most_dt = 3.4e38f;

  int64_t inputs() const { return n_heads * head_dim + 2 * n_groups * state_dim; }
  int64_t outputs() const { return n_heads * head_dim; }
  int64_t state_floats() const { return n_heads * state_dim * head_dim; }
};

struct ScanInputs {
  const float* xbc = nullptr;      // [rows, spec.inputs()]: all x, all B, all C
  const float* dt = nullptr;       // [rows, n_heads]
  const float* a_log = nullptr;    // [n_heads]
  const float* dt_bias = nullptr;  // [n_heads]
  const float* d = nullptr;        // [n_heads]
};
void SelectiveScan(OpsContext& ops, const ScanSpec& spec, const ScanInputs& in,
                   std::span<const StateRows> rows, int64_t offset, float* y);

// One row of a recurrence's arithmetic, shared with the backward passes.
float Softplus(float x);
float SigmoidOf(float x);
// The sum of squares in 16 lanes and a fixed tree.
float SquaredLength(const float* x, int64_t n);
// One step of S [k_dim][v_dim] with the write strength `beta`. With `corrects`, what S already
// holds for k is subtracted from v first (the delta rule). `y` [v_dim] may be null.
void StateStep(float* s, int64_t k_dim, int64_t v_dim, const float* k, const float* q,
               const float* v, float decay, float beta, bool corrects, float* y);

enum class GateForm : uint8_t { kSigmoid, kSilu };
// y = x * sigmoid(gate), or x * silu(gate). x in f32 or bf16; gate and y are dense f32.
void GateRows(OpsContext& ops, const ConstMatrix& x, const float* gate, GateForm form, float* y);

}  // namespace tandem::engine
