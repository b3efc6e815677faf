#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/kernels/kernels.h"
#include "engine/kernels/tables.h"

// Every kernel as plain scalar operations: slow, easy to check, and the oracle for the other
// tables.
namespace tandem::engine::reference {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float ToFloat(float x) { return x; }
float ToFloat(Bf16 x) { return Bf16ToFloat(x); }
void Put(float* y, float value) { *y = value; }
void Put(Bf16* y, float value) { *y = FloatToBf16(value); }

template <class T>
constexpr int64_t kPair = std::is_same_v<T, Bf16> ? 2 : 1;  // adjacent k values in a panel

template <class T>
int64_t Padded(int64_t k) {
  return (k + kPair<T> - 1) / kPair<T> * kPair<T>;
}

// Index of element (n, k) in panels whose k axis is `padded` long.
template <class T>
int64_t PanelIndex(int64_t n, int64_t k, int64_t padded) {
  const int64_t panel = n / kLanes;
  return panel * padded * kLanes + k / kPair<T> * kPair<T> * kLanes + n % kLanes * kPair<T> +
         k % kPair<T>;
}

template <class T>
void MatMul(const MatMulArgs<T>& a) noexcept {
  for (int64_t m = 0; m < a.m; ++m) {
    for (int64_t n = 0; n < a.n_columns; ++n) {
      float sum = a.accumulate ? a.y[m * a.ldy + n] : 0.0f;
      for (int64_t k = 0; k < a.k; ++k) {
        sum += ToFloat(a.x[m * a.ldx + k]) * ToFloat(a.panels[PanelIndex<T>(n, k, a.k)]);
      }
      a.y[m * a.ldy + n] = a.bias != nullptr ? sum + a.bias[n] : sum;
    }
  }
}

template <class T>
void TransposePanels(const TransposePanelsArgs<T>& a) noexcept {
  const int64_t lanes_end = (a.k_count + kLanes - 1) / kLanes * kLanes;
  for (int64_t k = 0; k < lanes_end; ++k) {
    for (int64_t n = 0; n < a.rows; ++n) {
      a.out[PanelIndex<T>(k, n, a.rows)] =
          k < a.k_count ? a.panels[PanelIndex<T>(n, a.k_first + k, a.k)] : T{0};
    }
  }
}

template <class T>
void PackRows(const PackRowsArgs<T>& a) noexcept {
  const int64_t padded = Padded<T>(a.rows);
  const int64_t lanes_end = (a.cols + kLanes - 1) / kLanes * kLanes;
  for (int64_t c = 0; c < lanes_end; ++c) {
    for (int64_t r = 0; r < padded; ++r) {
      a.out[PanelIndex<T>(c, r, padded)] = r < a.rows && c < a.cols ? a.x[r * a.ldx + c] : T{0};
    }
  }
}

template <class T>
void TransposeRows(const TransposeRowsArgs<T>& a) noexcept {
  for (int64_t c = 0; c < a.cols; ++c) {
    for (int64_t r = 0; r < Padded<T>(a.rows); ++r) {
      a.out[c * a.ldout + r] = r < a.rows ? a.x[r * a.ldx + c] : T{0};
    }
  }
}

// Element `index` of a head's part of a block, without its scale.
template <class T>
float HeadElement(const AttentionArgs<T>& a, const std::byte* head, int64_t index) {
  if (!a.is_int8) return ToFloat(reinterpret_cast<const T*>(head)[index]);
  const auto* q = reinterpret_cast<const int8_t*>(head) + kLanes * sizeof(float);
  return static_cast<float>(q[index]);
}

template <class T>
float HeadScale(const AttentionArgs<T>& a, const std::byte* head, int64_t slot) {
  return !a.is_int8 ? 1.0f : reinterpret_cast<const float*>(head)[slot];
}

// Three passes per row: scores and maximum, exponentials and their sum, weighted values. Each pass
// recomputes the scores, so no buffer limits the chunk.
template <class T>
void AttentionChunk(const AttentionArgs<T>& a, const AttentionState& state) noexcept {
  const int64_t value_stride = Padded<T>(a.value_dim);
  for (int64_t r = 0; r < a.n_kv_heads * a.rows; ++r) {
    const int64_t head = r / a.rows;
    const int64_t position = a.first_position + r % a.rows / a.group;
    const int64_t seen = a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
    const int64_t first = std::max(a.key_first, seen);
    const int64_t end = std::min(a.key_first + kKeyChunk, position + 1);
    const auto block = [&](const std::byte* base, int64_t stride, int64_t p) {
      return base + static_cast<int64_t>(a.blocks[p / kLanes].value) * stride;
    };
    const auto score = [&](int64_t p) {
      const std::byte* keys = block(a.keys, a.key_stride_bytes, p) + head * a.key_head_bytes;
      float dot = 0;
      for (int64_t d = 0; d < a.head_dim; ++d) {
        dot += ToFloat(a.q[r * a.ldq + d]) * HeadElement(a, keys, PanelIndex<T>(p % kLanes, d, 0));
      }
      dot *= HeadScale(a, keys, p % kLanes);
      dot *= a.scale;
      return a.soft_cap > 0 ? a.soft_cap * std::tanh(dot / a.soft_cap) : dot;
    };
    float* acc = state.acc + r * state.acc_stride;
    std::fill_n(acc, state.acc_stride, 0.0f);
    std::fill_n(state.sum + r * kLanes, kLanes, 0.0f);
    float max = -kInfinity;
    for (int64_t p = first; p < end; ++p) max = std::max(max, score(p));
    for (int64_t p = first; p < end; ++p) {
      const float weight = std::exp(score(p) - max);
      state.sum[r * kLanes] += weight;
      const std::byte* values =
          block(a.values, a.value_stride_bytes, p) + head * a.value_head_bytes;
      const float scaled = weight * HeadScale(a, values, p % kLanes);
      for (int64_t d = 0; d < a.value_dim; ++d) {
        acc[d] += scaled * HeadElement(a, values, p % kLanes * value_stride + d);
      }
    }
    state.max[r] = max;
  }
}

void AttentionMerge(const AttentionState& into, const AttentionState& from) noexcept {
  for (int64_t r = 0; r < into.rows; ++r) {
    if (from.max[r] == -kInfinity) continue;  // saw no key
    const float max = std::max(into.max[r], from.max[r]);
    const float kept = std::exp(into.max[r] - max);
    const float added = std::exp(from.max[r] - max);
    const int64_t s = r * kLanes;
    into.sum[s] = into.sum[s] * kept + from.sum[s] * added;
    for (int64_t d = r * into.acc_stride; d < (r + 1) * into.acc_stride; ++d) {
      into.acc[d] = into.acc[d] * kept + from.acc[d] * added;
    }
    into.max[r] = max;
  }
}

template <class T>
void AttentionFinish(const AttentionState& state, int64_t group, int64_t value_dim, T* out,
                     int64_t ldout, float* lse, int64_t ldlse) noexcept {
  for (int64_t r = 0; r < state.rows; ++r) {
    const float total = state.sum[r * kLanes];
    for (int64_t d = 0; d < value_dim; ++d) {
      Put(out + r / group * ldout + r % group * value_dim + d,
          state.acc[r * state.acc_stride + d] / total);
    }
    if (lse != nullptr) lse[r / group * ldlse + r % group] = state.max[r] + std::log(total);
  }
}

template <class Out>
void PadRow(Out* y, int64_t cols) {
  for (int64_t i = cols; i < Padded<Out>(cols); ++i) y[i] = Out{0};
}

template <class Out>
void RmsNorm(const NormArgs<Out>& a) noexcept {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.ldx;
    float squares = 0;
    for (int64_t i = 0; i < a.cols; ++i) squares += x[i] * x[i];
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.cols) + a.eps);
    for (int64_t i = 0; i < a.cols; ++i) Put(a.y + r * a.ldy + i, x[i] * rstd * a.gamma[i]);
    PadRow(a.y + r * a.ldy, a.cols);
    if (a.stats != nullptr) a.stats[r] = rstd;
  }
}

template <class Out>
void LayerNorm(const NormArgs<Out>& a) noexcept {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.ldx;
    float sum = 0;
    for (int64_t i = 0; i < a.cols; ++i) sum += x[i];
    const float mean = sum / static_cast<float>(a.cols);
    float squares = 0;
    for (int64_t i = 0; i < a.cols; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(a.cols) + a.eps);
    for (int64_t i = 0; i < a.cols; ++i) {
      const float gamma = a.gamma == nullptr ? 1.0f : a.gamma[i];
      const float beta = a.beta == nullptr ? 0.0f : a.beta[i];
      Put(a.y + r * a.ldy + i, (x[i] - mean) * rstd * gamma + beta);
    }
    PadRow(a.y + r * a.ldy, a.cols);
    if (a.stats != nullptr) {
      a.stats[2 * r] = mean;
      a.stats[2 * r + 1] = rstd;
    }
  }
}

template <class Out>
void Rope(const RopeArgs<Out>& a) noexcept {
  const int64_t half = a.rotary_dim / 2;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* cos = a.table + a.positions[r] * a.rotary_dim;
    const float* sin = cos + half;
    for (int64_t h = 0; h < a.n_heads; ++h) {
      const float* x = a.x + r * a.ldx + h * a.head_dim;
      Out* y = a.y + r * a.ldy + h * a.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const int64_t first = a.interleaved ? 2 * i : i;
        const int64_t second = a.interleaved ? 2 * i + 1 : half + i;
        const float low = x[first];
        const float high = x[second];
        Put(y + first, low * cos[i] - high * sin[i]);
        Put(y + second, high * cos[i] + low * sin[i]);
      }
      for (int64_t i = a.rotary_dim; i < a.head_dim; ++i) Put(y + i, x[i]);
    }
    PadRow(a.y + r * a.ldy, a.n_heads * a.head_dim);
  }
}

float Apply(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGeluTanh: {
      const float inner = 0.797884561f * (x + 0.044715f * x * x * x);
      return 0.5f * x * (1.0f + std::tanh(inner));
    }
    case Activation::kRelu:
      return x < 0 ? 0.0f : x;
    case Activation::kGelu:
      return 0.5f * x * std::erfc(x * -0.707106781f);
    case Activation::kRelu2:
      return x < 0 ? 0.0f : x * x;
    case Activation::kClampedSwiglu:
      break;  // gated only; the caller checks
  }
  return x;
}

template <class Out, class F>
void MapRows(const PointwiseArgs<Out>& a, F f) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t i = 0; i < a.cols; ++i) Put(a.y + r * a.ldy + i, f(r * a.ldx + i));
    PadRow(a.y + r * a.ldy, a.cols);
  }
}

template <class Out>
void GatedActivation(const PointwiseArgs<Out>& a) noexcept {
  if (a.activation == Activation::kClampedSwiglu) {
    return MapRows(a, [&](int64_t i) {
      const float gate = a.x[i] > kSwigluLimit ? kSwigluLimit : a.x[i];
      const float up = a.up[i] > kSwigluLimit    ? kSwigluLimit
                       : a.up[i] < -kSwigluLimit ? -kSwigluLimit
                                                 : a.up[i];
      return (up + 1.0f) * (gate / (1.0f + std::exp(-kSwigluAlpha * gate)));
    });
  }
  MapRows(a, [&](int64_t i) { return Apply(a.activation, a.x[i]) * a.up[i]; });
}

template <class Out>
void Activate(const PointwiseArgs<Out>& a) noexcept {
  MapRows(a, [&](int64_t i) { return Apply(a.activation, a.x[i]); });
}

template <class Out>
void RoundRows(const PointwiseArgs<Out>& a) noexcept {
  MapRows(a, [&](int64_t i) { return a.x[i]; });
}

void AddRows(const float* a, const float* b, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = a[i] + b[i];
}

void MultiplyRows(const float* a, const float* b, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = a[i] * b[i];
}

void ClampRows(const float* x, float limit, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = std::clamp(x[i], -limit, limit);
}

void SigmoidRows(const float* x, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = 1.0f / (1.0f + std::exp(-x[i]));
}

void ScaleRows(const float* x, float factor, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = x[i] * factor;
}

void SoftCapRows(const float* x, float cap, int64_t elements, float* y) noexcept {
  for (int64_t i = 0; i < elements; ++i) y[i] = cap * std::tanh(x[i] / cap);
}

void VocabBlock(const float* logits, int64_t n, float* max, float* sum) noexcept {
  *max = -kInfinity;
  for (int64_t i = 0; i < n; ++i) *max = std::max(*max, logits[i]);
  const float shift = *max == -kInfinity ? 0.0f : *max;  // -inf - -inf would be NaN
  *sum = 0;
  for (int64_t i = 0; i < n; ++i) *sum += std::exp(logits[i] - shift);
}

float VocabMerge(const float* max, const float* sum, int64_t n_blocks) noexcept {
  float top = -kInfinity;
  float total = 0;
  for (int64_t b = 0; b < n_blocks; ++b) {
    if (sum[b] == 0.0f) continue;
    const float larger = std::max(top, max[b]);
    total = total * std::exp(top - larger) + sum[b] * std::exp(max[b] - larger);
    top = larger;
  }
  return top + std::log(total);
}

void QuantizeRows(const QuantizeRowsArgs& a) noexcept {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t g = 0; g < GroupsOf(a.cols); ++g) {
      const int64_t first = g * kGroupSize;
      const int64_t count = std::min(kGroupSize, a.cols - first);
      const auto value = [&](int64_t i) { return Bf16ToFloat(a.x[r * a.ldx + first + i]); };
      float absmax = 0;
      bool finite = true;
      for (int64_t i = 0; i < count; ++i) {
        absmax = std::max(absmax, std::abs(value(i)));
        finite &= std::isfinite(value(i));
      }
      const bool some = finite && absmax >= kLeastGroupMax;
      const float inverse = 127.0f / absmax;
      int32_t sum = 0;
      for (int64_t i = 0; i < kGroupSize; ++i) {
        const float q = some && i < count ? std::nearbyint(value(i) * inverse) : 0.0f;
        a.q[r * a.ldq + first + i] = static_cast<int8_t>(q);
        sum += static_cast<int32_t>(q);
      }
      a.scales[r * a.ldgroups + g] = !finite ? kNan : (some ? absmax / 127.0f : 0.0f);
      a.starts[r * a.ldgroups + g] = -a.offset * sum;
      if (a.sums != nullptr) {
        a.sums[r * a.ldgroups + g] = a.scales[r * a.ldgroups + g] * static_cast<float>(sum);
      }
    }
  }
}

template <BlockFormat kFormat>
void BlockMatMul(const BlockMatMulArgs& a) noexcept {
  const int64_t panel_bytes = BlockPanelBytes(kFormat, a.k);
  for (int64_t n = 0; n < a.n_columns; ++n) {
    for (int64_t m = 0; m < a.m; ++m) {
      float acc = a.accumulate ? a.y[m * a.ldy + n] : 0.0f;
      for (int64_t g = 0; g < GroupsOf(a.k); ++g) {
        const BlockGroup w =
            GetGroup(kFormat, a.panels + n / kLanes * panel_bytes, a.k, g, n % kLanes);
        int32_t sum = a.starts[m * a.ldgroups + g];
        for (int64_t i = 0; i < kGroupSize; ++i) {
          sum += (w.q[i] + BlockOffset(kFormat)) * a.q[m * a.ldq + g * kGroupSize + i];
        }
        acc = std::fma(static_cast<float>(sum),
                       a.scales[m * a.ldgroups + g] * GroupScale(kFormat, w), acc);
      }
      a.y[m * a.ldy + n] = a.bias != nullptr ? acc + a.bias[n] : acc;
    }
  }
}

template <>
void BlockMatMul<BlockFormat::kInt4K>(const BlockMatMulArgs& a) noexcept {
  const int64_t panel_bytes = BlockPanelBytes(BlockFormat::kInt4K, a.k);
  for (int64_t n = 0; n < a.n_columns; ++n) {
    for (int64_t m = 0; m < a.m; ++m) {
      float acc = a.accumulate ? a.y[m * a.ldy + n] : 0.0f;
      for (int64_t g = 0; g < GroupsOf(a.k); ++g) {
        const ScaledGroup w =
            GetScaledGroup(a.panels + n / kLanes * panel_bytes, a.k, g, n % kLanes);
        int32_t sum = 0;
        for (int64_t i = 0; i < kGroupSize; ++i) {
          sum += w.q[i] * a.q[m * a.ldq + g * kGroupSize + i];
        }
        acc = std::fma(static_cast<float>(sum), a.scales[m * a.ldgroups + g] * w.scale, acc);
        acc = std::fma(-a.sums[m * a.ldgroups + g], w.minimum, acc);
      }
      a.y[m * a.ldy + n] = a.bias != nullptr ? acc + a.bias[n] : acc;
    }
  }
}

#include "engine/kernels/block_table.inc"

template <class T>
constexpr TypedKernels<T> MakeTypedKernels() {
  return {
      .matmul = MatMul<T>,
      .transpose_panels = TransposePanels<T>,
      .pack_rows = PackRows<T>,
      .transpose_rows = TransposeRows<T>,
      .attention_chunk = AttentionChunk<T>,
      .attention_finish = AttentionFinish<T>,
      .rms_norm = RmsNorm<T>,
      .layer_norm = LayerNorm<T>,
      .rope = Rope<T>,
      .gated_activation = GatedActivation<T>,
      .activate = Activate<T>,
      .round = RoundRows<T>,
  };
}

}  // namespace

constinit const BlockKernels kBlocks = MakeBlockKernels();
constinit const KernelTable kTable = {
    .isa = "reference",
    .key = "reference",
    .f32 = MakeTypedKernels<float>(),
    .bf16 = MakeTypedKernels<Bf16>(),
    .blocks = &kBlocks,
    .attention_merge = AttentionMerge,
    .add = AddRows,
    .multiply = MultiplyRows,
    .scale = ScaleRows,
    .clamp = ClampRows,
    .sigmoid = SigmoidRows,
    .soft_cap = SoftCapRows,
    .vocab_block = VocabBlock,
    .vocab_merge = VocabMerge,
};

}  // namespace tandem::engine::reference
