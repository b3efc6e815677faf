#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string_view>
#include <type_traits>

#include "engine/base/ids.h"
#include "engine/kernels/block_formats.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {

// Vector lanes of every panel and of every fixed-lane reduction, on every instruction set.
inline constexpr int64_t kLanes = 16;
// Keys are scored in tiles of this many positions of their own sequence.
inline constexpr int64_t kKeyTile = 64;
// A softmax over more keys is computed in chunks at multiples of this, merged in order. The chunk
// of the same name in training/ops/attention.cc is another one: keys per product of the backward
// pass.
inline constexpr int64_t kKeyChunk = 1024;
// Log-softmax sums the vocabulary in blocks of this many entries.
inline constexpr int64_t kVocabBlock = 4096;

// The arithmetic of this project: one table of functions per instruction set, chosen once at start.
// A kernel allocates nothing, starts no threads and throws nothing. Within one table, the order of
// every floating-point operation on an output element depends only on the shape of that element's
// own row or sequence. It never depends on the number of other rows or on tile borders; tests check
// this for every entry. Two tables may round differently: the isa key names the table and its
// features, and parity is promised within one key.
//
// Panels store a weight W [n, k] (out, in) so that vector lanes are outputs and k runs in sequence.
// The layout is [n/16][k/2][16][2] for bf16 and [n/16][k][16] for f32. Zeros pad n to 16 and k to 2
// (bf16). "Padded" below means this rounding of k. Kernels read whole panels including the padding;
// in row-major operands they read only the given sizes.

// kGelu is x * Phi(x) by the normal distribution function; kGeluTanh approximates it by tanh.
// kRelu2 is the square of ReLU.
// kClampedSwiglu exists only as a gated activation: (up + 1) * gate * sigmoid(kSwigluAlpha * gate),
// gate clamped to at most kSwigluLimit and up to [-kSwigluLimit, kSwigluLimit] (gpt-oss).
enum class Activation { kSilu, kGeluTanh, kRelu, kGelu, kRelu2, kClampedSwiglu };

// Phi(-|x|) = exp(-x^2 / 2) * t * P(t) with t = 1 / (1 + kNormalTailSlope * |x|), to 3e-8 before
// rounding: our own minimax fit. P's coefficients, highest power first.
inline constexpr float kNormalTailSlope = 0.32f;
inline constexpr float kNormalTail[] = {
    -0.0208173469f, 0.0941132009f, -0.143974006f, 0.0621222444f, -0.00709517067f,
    0.0576409623f,  0.0881059244f, 0.114578143f,  0.127664611f,  0.127661407f};
inline constexpr float kSwigluLimit = 7.0f;
inline constexpr float kSwigluAlpha = 1.702f;

// y[m, n0..n1) (+)= x[m, k] . W^T (+ bias). Rows of x are `ldx` elements apart; for bf16, k is even
// (x zero-padded). A panel range covers columns [16 * first, 16 * (first + n_panels)), of which
// n_columns are real. Every element is one accumulator that runs along k in order.
template <class T>
struct MatMulArgs {
  const T* x;
  int64_t ldx;
  int64_t m;
  const T* panels;  // the first panel of the range
  int64_t n_panels;
  int64_t n_columns;  // real columns in the range: stores stop here
  int64_t k;          // padded
  const float* bias;  // of the first column of the range, or null; added after the sum
  float* y;           // the first column of the range
  int64_t ldy;
  bool accumulate;  // add to y: the sum starts from its value
};

// Transposes panels of W [n, k] into panels of W^T [k, n], for `rows` rows of W and inputs
// [k_first, k_first + k_count).
template <class T>
struct TransposePanelsArgs {
  const T* panels;  // the panel of the first row
  int64_t rows;     // a multiple of 16; the last rows of W may be padded like k
  int64_t k;        // padded
  int64_t k_first;  // multiple of 16
  int64_t k_count;  // k_first + k_count <= k
  T* out;           // [ceil(k_count/16)][rows][16]; lanes past k_count are zero
};

// Packs row-major x [rows, cols] into panels whose k axis is `rows` and whose lanes are columns:
// out [ceil(cols/16)][padded rows][16], zero-padded.
template <class T>
struct PackRowsArgs {
  const T* x;
  int64_t ldx;
  int64_t rows;
  int64_t cols;
  T* out;
};

// Transposes row-major x [rows, cols] into row-major out [cols, ldout]; entries [rows, padded rows)
// are zero.
template <class T>
struct TransposeRowsArgs {
  const T* x;
  int64_t ldx;
  int64_t rows;
  int64_t cols;
  T* out;
  int64_t ldout;  // >= padded rows
};

// Rounds activations for products with weights in blocks (block_formats.h). Each row has, per group
// of kGroupSize columns, one f32 scale, absmax / 127, and the nearest integers (even at ties), so x
// is about scale * q. A group whose absmax is below kLeastGroupMax becomes zero with scale zero;
// its scale would be subnormal. A group that holds NaN or infinity has scale NaN, so every product
// of its row is NaN.
struct QuantizeRowsArgs {
  const Bf16* x;
  int64_t ldx;
  int64_t rows;
  int64_t cols;
  int32_t offset;  // of the weights' format
  int8_t* q;       // [rows][ldq], zero from cols up to a multiple of kGroupSize
  int64_t ldq;
  float* scales;  // [rows][ldgroups]
  // [rows][ldgroups] start value of a product: -offset times the group's sum. It cancels the offset
  // of the stored weights exactly.
  int32_t* starts;
  // [rows][ldgroups] or null: scale times the group's sum, for formats with minimums.
  float* sums;
  int64_t ldgroups;
};
inline constexpr float kLeastGroupMax = 0x1p-119f;  // 127 / it is finite, it / 127 is normal

// y[m, n0..n1) (+)= x[m, k] . W^T (+ bias) with W in blocks; panels, columns, bias and y as in
// MatMulArgs. Within a group the products of integers are summed exactly, in 32 bits. An element is
// one f32 accumulator that takes its groups in k order: fma(sum, x scale * w scale, accumulator).
// In q4_k, fma(-x sum, w minimum, accumulator) follows each group. All tables give the same bits.
struct BlockMatMulArgs {
  const int8_t* q;
  int64_t ldq;
  const float* scales;
  const int32_t* starts;  // not read for q4_k
  const float* sums;      // read for q4_k only
  int64_t ldgroups;
  int64_t m;
  const std::byte* panels;  // the first panel of the range
  int64_t n_panels;
  int64_t n_columns;
  int64_t k;  // of the weight
  const float* bias;
  float* y;
  int64_t ldy;
  bool accumulate;
};

// Attention of one chunk of keys of one sequence and kv head against `rows` query rows. Row r is
// query r / group of the chunk, head r % group of the kv head's group, at position first_position +
// r / group. Scores are dots along head_dim in order. Keys come in tiles of kKeyTile at absolute
// positions; keys outside [max(0, position - window + 1), position] are never multiplied.
template <class T>
struct AttentionArgs {
  const T* q;  // [rows][ldq], zero-padded to pairs
  int64_t ldq;
  int64_t rows;
  int64_t group;
  int64_t head_dim;   // of queries and keys
  int64_t value_dim;  // of values and the output
  int64_t first_position;
  int64_t key_first;  // the chunk's first key, a multiple of kKeyChunk
  float scale;
  int64_t window;  // 0 = all
  float soft_cap;  // 0 = off

  // Keys and values of this kv head: block b at base + blocks[b].value * stride.
  const std::byte* keys;
  const std::byte* values;
  int64_t key_stride_bytes;
  int64_t value_stride_bytes;
  const BlockId* blocks;  // of the sequence, from position 0

  // Keys and values are in int8 (KvFormat::kInt8). A head's part of a block is then 16 f32 scales,
  // then integers in the order of the elements of T. The integers are exact in T. A key's scale
  // multiplies its score before `scale`, a value's scale its weight.
  bool is_int8 = false;
  // AttentionScratchBytes, aligned to 64: queries and one tile of keys and values, widened.
  std::byte* scratch = nullptr;

  // Kv heads side by side in each block. The queries and states of kv head h begin at row h * rows.
  // Its keys begin h * key_head_bytes after those of head 0, its values h * value_head_bytes.
  int64_t n_kv_heads = 1;
  int64_t key_head_bytes = 0;
  int64_t value_head_bytes = 0;
};

// REQUIRES: the rows of all kv heads, ldq, and both widths rounded up to pairs.
constexpr int64_t AttentionScratchBytes(int64_t rows, int64_t ldq, int64_t head_dim,
                                        int64_t value_dim) {
  const int64_t queries = (rows * ldq + kLanes - 1) / kLanes * kLanes;
  return (queries + kKeyTile * (head_dim + value_dim)) * static_cast<int64_t>(sizeof(float));
}

// A partial softmax of some rows: maximum, sum of exponentials (16 partial sums) and the
// unnormalised output. A row whose max is -inf has seen no key.
struct AttentionState {
  float* max;  // [rows]
  float* sum;  // [rows][16]
  float* acc;  // [rows][acc_stride]
  int64_t rows;
  int64_t acc_stride;  // RoundUp(value_dim, 16)
};

template <class Out>
struct NormArgs {
  const float* x;
  int64_t ldx;
  int64_t rows;
  int64_t cols;
  const float* gamma;  // LayerNorm: null for ones
  const float* beta;   // LayerNorm only; null for zeros
  float eps;
  Out* y;
  int64_t ldy;
  float* stats;  // or null. RmsNorm: [rows] 1/rms; LayerNorm: [rows][2] mean, 1/sigma
};

// Rotates the first rotary_dim dimensions of each head and copies the others. Dimension i pairs
// with i + rotary_dim/2, interleaved 2i with 2i + 1.
template <class Out>
struct RopeArgs {
  const float* x;
  int64_t ldx;
  int64_t rows;
  int64_t n_heads;
  int64_t head_dim;
  int64_t rotary_dim;
  bool interleaved;
  const int32_t* positions;  // [rows]
  const float* table;        // [position][cos: rotary_dim/2 | sin: rotary_dim/2]
  Out* y;
  int64_t ldy;
};

// Pointwise over rows. Only the gated activation reads `up`.
template <class Out>
struct PointwiseArgs {
  const float* x;
  const float* up;
  int64_t ldx;  // of x and up
  int64_t rows;
  int64_t cols;
  Activation activation;
  Out* y;
  int64_t ldy;
};

// The kernels of each compute dtype. Kernels with Out = Bf16 round once, to nearest even, and write
// zero into the padding column of an odd row.
template <class T>
struct TypedKernels {
  void (*matmul)(const MatMulArgs<T>&) noexcept;
  void (*transpose_panels)(const TransposePanelsArgs<T>&) noexcept;
  void (*pack_rows)(const PackRowsArgs<T>&) noexcept;
  void (*transpose_rows)(const TransposeRowsArgs<T>&) noexcept;

  // Runs one chunk of keys from a fresh state.
  void (*attention_chunk)(const AttentionArgs<T>&, const AttentionState&) noexcept;
  // Normalises: out + r / group * ldout + r % group * value_dim. lse (or null) is [query][ldlse].
  void (*attention_finish)(const AttentionState&, int64_t group, int64_t value_dim, T* out,
                           int64_t ldout, float* lse, int64_t ldlse) noexcept;

  void (*rms_norm)(const NormArgs<T>&) noexcept;
  void (*layer_norm)(const NormArgs<T>&) noexcept;
  void (*rope)(const RopeArgs<T>&) noexcept;
  void (*gated_activation)(const PointwiseArgs<T>&) noexcept;
  void (*activate)(const PointwiseArgs<T>&) noexcept;
  void (*round)(const PointwiseArgs<T>&) noexcept;
};

// The kernels of weights in blocks; the integers are the same for every compute dtype.
struct BlockKernels {
  void (*quantize_rows)(const QuantizeRowsArgs&) noexcept;
  void (*matmuls[std::size(kBlockFormats)])(const BlockMatMulArgs&) noexcept;  // as kBlockFormats

  // REQUIRES: a format.
  auto matmul(BlockFormat format) const { return matmuls[static_cast<size_t>(format) - 1]; }
};

struct KernelTable {
  std::string_view isa;  // "reference", "avx2", "avxvnni", "avx512"
  std::string_view key;  // with features: "avx512+bf16+vnni"

  TypedKernels<float> f32;
  TypedKernels<Bf16> bf16;
  const BlockKernels* blocks;

  // Merges the softmax states into `into`; `from` has the later keys.
  void (*attention_merge)(const AttentionState& into, const AttentionState& from) noexcept;
  void (*add)(const float* a, const float* b, int64_t elements, float* y) noexcept;
  void (*multiply)(const float* a, const float* b, int64_t elements, float* y) noexcept;
  void (*scale)(const float* x, float factor, int64_t elements, float* y) noexcept;
  // y = x limited to [-limit, limit]; NaN stays NaN.
  void (*clamp)(const float* x, float limit, int64_t elements, float* y) noexcept;
  void (*sigmoid)(const float* x, int64_t elements, float* y) noexcept;
  // y = cap * tanh(x / cap); y may be x.
  void (*soft_cap)(const float* x, float cap, int64_t elements, float* y) noexcept;
  // Maximum and sum of exp(x - max) of one vocabulary block, n <= kVocabBlock.
  void (*vocab_block)(const float* logits, int64_t n, float* max, float* sum) noexcept;
  // log of the sum of exponentials of all blocks, merged in order.
  float (*vocab_merge)(const float* max, const float* sum, int64_t n_blocks) noexcept;

  template <class T>
  const TypedKernels<T>& typed() const {
    if constexpr (std::is_same_v<T, float>) {
      return f32;
    } else {
      return bf16;
    }
  }
};

// The best table for this CPU, or the one that TANDEM_FORCE_ISA=reference|avx2|avxvnni|avx512
// names. Chosen at the first call. Throws kInvalidArgument when the variable names no table that
// runs here.
const KernelTable& Kernels();
// Every table that this CPU can run, the best last. For tests.
std::span<const KernelTable* const> RunnableKernelTables();

}  // namespace tandem::engine
