#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/kernels/kernels.h"

namespace tandem::engine {

// The arithmetic of gradients and of the optimiser: one table per instruction set, in addition to
// KernelTable (kernels.h) and under the same rules. Kernels allocate nothing and throw nothing, and
// the order of operations depends on shapes only. Everything is f32 unless a type says otherwise;
// `+=` marks outputs that are added to.

// Backward pass of RMSNorm and LayerNorm over `rows` consecutive rows of `cols`.
struct NormBackwardArgs {
  const float* x;
  const float* gamma;  // LayerNorm: null for ones
  const float* stats;  // RMSNorm: rstd per row; LayerNorm: (mean, rstd) per row
  const float* dy;
  int64_t rows;
  int64_t cols;
  float* dx;      // += (null: not needed)
  float* dgamma;  // += (null: frozen); rows are added in order
  float* dbeta;   // += (null; LayerNorm only)
};

struct RopeBackwardArgs {
  const float* dy;
  const float* cos;  // of this row's position, rotary_dim / 2 values
  const float* sin;
  int64_t n_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  bool interleaved;
  float* dx;  // +=
};

struct GatedBackwardArgs {
  const float* gate;
  const float* up;
  const float* dh;
  int64_t elements;
  Activation activation;
  float* dgate;  // +=
  float* dup;    // +=
};

struct ActivateBackwardArgs {
  const float* x;
  const float* dy;
  int64_t elements;
  Activation activation;
  float* dx;  // +=
};

// One row of dropout. The keep decisions are Philox4x32-10(key, counter) with counter (position,
// op, sample low, sample high + channel / 4). Samples of different epochs have different numbers.
struct DropoutArgs {
  const float* x;
  int64_t cols;
  uint64_t seed;
  uint32_t op;
  uint64_t sample;
  uint32_t position;
  float rate;
  float* y;
  bool accumulate;
};

// Attention backward, elementwise part, of a block of query rows against keys [0, n_keys):
//   s = scale * score, capped; p = exp(s - lse) where the key is visible, else 0;
//   ds = p * (dp - delta) * scale * (1 - (s / cap)^2).
// Query row r (0-based in the block) sees keys in [first_key[r], last_key[r]], which may exceed the
// given keys at both ends.
// Writes p and ds in T as panels with lanes = keys and k = query rows ([n_keys/16][rows(/2)]
// [16]([2])), and ds also row-major. Rows of bf16 are padded with zeros to an even count.
template <class T>
struct AttentionGradientArgs {
  const float* scores;  // [rows, ld]
  const float* dp;      // [rows, ld]
  int64_t ld;
  int64_t rows;         // real query rows
  int64_t padded_rows;  // k of the panels; even for bf16
  int64_t n_keys;       // a multiple of 16
  const int64_t* first_key;
  const int64_t* last_key;
  const float* lse;    // per row
  int64_t lse_stride;  // floats between rows
  const float* delta;  // per row: sum of dout * out
  float scale;
  float soft_cap;  // 0: off
  T* p_panels;
  T* ds_panels;
  T* ds_rows;  // [padded_rows, n_keys]
};

// dz = (likelihood_factor * exp(z - lse) - [column == target]) * weight, in T. dz may begin where z
// begins and otherwise must not alias it.
// For capped logits z it is the gradient before the cap: times 1 - (z / cap)^2.
template <class T>
struct CrossEntropyGradientArgs {
  const float* logits;  // one row
  int64_t vocab;
  float lse;
  int64_t target;
  float weight;
  float soft_cap;               // 0: off
  T* dz;                        // [RoundUp(vocab, 2)] for bf16: the padding column is zero
  float likelihood_factor = 1;  // with a loss m lse^2 beside the likelihood: 1 + 2 m lse
};

// Moments in 8 bits: blocks of this many elements (the last may be shorter) with one f32 scale. A
// first moment is its sign (bit 7) and (c / 127)^4 of the scale. The root of a second moment is (c
// / 255)^4 of the scale. Codes round to nearest; a nonzero second moment never gets code 0.
constexpr int64_t kMomentBlock = 256;

// One step of a run of elements of one tensor. Moments are floats, or codes that begin at a whole
// block.
struct UpdateArgs {
  int64_t elements;
  float* master;  // either this …
  Bf16* high;     // … or the split master (both halves)
  int16_t* low;
  float* m;          // first moment; sgd: the velocity, null without momentum …
  float* v;          // second moment; adam only
  uint8_t* m_codes;  // … or as codes, all four (two for sgd)
  uint8_t* v_codes;
  float* m_scales;
  float* v_scales;
  const float* gradient;
  float gradient_scale;
  float b1;  // sgd: the momentum
  float b2;
  float m_correction;  // 1 / (1 - b1^t)
  float v_correction;  // 1 / (1 - b2^t)
  float eps;
  float eps_root;
  float learning_rate;
  float decay;  // 0: none
};

struct TrainingKernelTable {
  std::string_view isa;
  void (*rms_norm_backward)(const NormBackwardArgs&) noexcept;
  void (*layer_norm_backward)(const NormBackwardArgs&) noexcept;
  void (*rope_backward)(const RopeBackwardArgs&) noexcept;
  void (*gated_backward)(const GatedBackwardArgs&) noexcept;
  void (*activate_backward)(const ActivateBackwardArgs&) noexcept;
  void (*accumulate)(const float* from, int64_t elements, float* into) noexcept;
  void (*accumulate_scaled)(const float* from, float factor, int64_t elements,
                            float* into) noexcept;
  // into += a * b, element by element.
  void (*accumulate_product)(const float* a, const float* b, int64_t elements,
                             float* into) noexcept;
  // dx += dy where |x| <= limit.
  void (*clamp_backward)(const float* x, float limit, const float* dy, int64_t elements,
                         float* dx) noexcept;
  // dx += dy * y * (1 - y), from the sigmoid's result y.
  void (*sigmoid_backward)(const float* y, const float* dy, int64_t elements, float* dx) noexcept;
  // sums[cols] += every row of x, rows in order.
  void (*column_sums)(const float* x, int64_t ldx, int64_t rows, int64_t cols,
                      float* sums) noexcept;
  void (*column_sums_bf16)(const Bf16* x, int64_t ldx, int64_t rows, int64_t cols,
                           float* sums) noexcept;
  void (*dropout)(const DropoutArgs&) noexcept;
  void (*attention_gradient_f32)(const AttentionGradientArgs<float>&) noexcept;
  void (*attention_gradient_bf16)(const AttentionGradientArgs<Bf16>&) noexcept;
  void (*cross_entropy_gradient_f32)(const CrossEntropyGradientArgs<float>&) noexcept;
  void (*cross_entropy_gradient_bf16)(const CrossEntropyGradientArgs<Bf16>&) noexcept;
  // Sum of squares of at most a block of 4,096 elements, in f64 (16 lanes, fixed tree).
  double (*sum_of_squares)(const float* x, int64_t elements) noexcept;
  float (*dot)(const float* a, const float* b, int64_t elements) noexcept;  // 16 lanes, fixed tree
  void (*adam)(const UpdateArgs&) noexcept;
  void (*sgd)(const UpdateArgs&) noexcept;  // m = b1 m + g; p -= learning_rate m
  // Encodes f32 moments, and decodes them below; `square`: second moments.
  void (*code_moment)(const float* x, int64_t elements, bool square, uint8_t* codes,
                      float* scales) noexcept;
  void (*decode_moment)(const uint8_t* codes, const float* scales, int64_t elements, bool square,
                        float* x) noexcept;
};

// The training arithmetic that belongs to a forward table (same instruction set).
const TrainingKernelTable& TrainingKernels(const KernelTable& kernels);

}  // namespace tandem::engine
