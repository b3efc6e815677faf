#include "engine/ops/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"

// A task is some query rows of one slice against one kv head: all heads of the group, so that its
// keys and values are read once. The number of rows per task changes speed, never a result.
namespace tandem::engine {
namespace {

static_assert(kTokensPerBlock == kLanes);

constexpr int64_t kRowsPerTask = 192;  // query rows times heads of the group

void CheckSpec(const AttentionSpec& spec) {
  TANDEM_CHECK(spec.n_kv_heads > 0 && spec.n_heads % spec.n_kv_heads == 0 && spec.head_dim > 0 &&
               spec.v_head_dim >= 0);
  TANDEM_CHECK(spec.chunk % kTokensPerBlock == 0 && (spec.chunk == 0 || spec.window == 0));
}

void CheckSlice(const AttentionSlice& slice) {
  TANDEM_CHECK(slice.first_position >= 0 &&
               slice.first_position + slice.n_rows <=
                   static_cast<int64_t>(slice.blocks.size()) * kTokensPerBlock);
}

// Interleaves the rows of 16 keys: [head_dim / pair][16][pair], a pair being one f32 or two bf16.
// Slots [first, first + count) of the block come from consecutive rows.
template <class T>
void WriteBlock(const AttentionSpec& spec, const T* k, int64_t ldk, const T* v, int64_t ldv,
                int64_t first_slot, int64_t count, T* keys, T* values) {
  constexpr int64_t kPair = sizeof(float) / sizeof(T);
  const int64_t whole = spec.head_dim / kPair * kPair;
  for (int64_t d = 0; d < whole; d += kPair) {
    T* to = keys + d * kTokensPerBlock + first_slot * kPair;
    for (int64_t slot = 0; slot < count; ++slot) {
      std::memcpy(to + slot * kPair, k + slot * ldk + d, sizeof(float));
    }
  }
  if (whole < spec.head_dim) {
    T* to = keys + whole * kTokensPerBlock + first_slot * kPair;
    for (int64_t slot = 0; slot < count; ++slot) {
      to[slot * kPair] = k[slot * ldk + whole];
      to[slot * kPair + 1] = T{0};
    }
  }
  const int64_t value_dim = spec.value_dim();
  const int64_t stride = RoundUp(value_dim, kPair);
  for (int64_t slot = 0; slot < count; ++slot) {
    T* to = values + (first_slot + slot) * stride;
    std::memcpy(to, v + slot * ldv, static_cast<size_t>(value_dim) * sizeof(T));
    std::fill(to + value_dim, to + stride, T{0});
  }
}

template <class T>
float ToFloat(T x) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return Bf16ToFloat(x);
  } else {
    return x;
  }
}

// The nearest integer, even at ties. REQUIRES: |x| <= 2^21.
int8_t Nearest(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction
  return static_cast<int8_t>(x + kShift - kShift);
}

// The scale of one token's head, and what multiplies its elements. Both are 0 for a head of zeros,
// or of numbers so small that the scale would be subnormal.
struct Int8Scale {
  float scale;
  float inverse;
};

template <class T>
Int8Scale ScaleOf(const T* x, int64_t dim) {
  float absmax = 0;
  bool is_finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    const float value = std::fabs(ToFloat(x[d]));
    is_finite = is_finite && value <= std::numeric_limits<float>::max();
    absmax = std::max(absmax, value);
  }
  if (!is_finite) return {std::numeric_limits<float>::quiet_NaN(), 0};
  if (absmax < kLeastGroupMax) return {0, 0};
  return {absmax / 127, 127 / absmax};
}

// WriteBlock for KvFormat::kInt8.
template <class T>
void WriteInt8Block(const AttentionSpec& spec, const T* k, int64_t ldk, const T* v, int64_t ldv,
                    int64_t first_slot, int64_t count, std::byte* keys, std::byte* values) {
  constexpr int64_t kPair = sizeof(float) / sizeof(T);
  constexpr int64_t kScaleBytes = kTokensPerBlock * static_cast<int64_t>(sizeof(float));
  const int64_t value_dim = spec.value_dim();
  const int64_t key_stride = RoundUp(spec.head_dim, kPair);
  const int64_t value_stride = RoundUp(value_dim, kPair);
  auto* const key_integers = reinterpret_cast<int8_t*>(keys + kScaleBytes);
  auto* const value_integers = reinterpret_cast<int8_t*>(values + kScaleBytes);
  for (int64_t slot = first_slot; slot < first_slot + count; ++slot, k += ldk, v += ldv) {
    const Int8Scale of_key = ScaleOf(k, spec.head_dim);
    reinterpret_cast<float*>(keys)[slot] = of_key.scale;
    for (int64_t d = 0; d < key_stride; ++d) {
      const float x = d < spec.head_dim && of_key.inverse > 0 ? ToFloat(k[d]) * of_key.inverse : 0;
      key_integers[d / kPair * kPair * kTokensPerBlock + slot * kPair + d % kPair] = Nearest(x);
    }
    const Int8Scale of_value = ScaleOf(v, value_dim);
    reinterpret_cast<float*>(values)[slot] = of_value.scale;
    int8_t* const to = value_integers + slot * value_stride;
    for (int64_t d = 0; d < value_stride; ++d) {
      to[d] = Nearest(d < value_dim && of_value.inverse > 0 ? ToFloat(v[d]) * of_value.inverse : 0);
    }
  }
}

template <class T>
void WriteKvTyped(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& k,
                  const ConstMatrix& v, std::span<const AttentionSlice> slices,
                  const KvLayerView& kv) {
  const int64_t value_dim = spec.value_dim();
  const int64_t key_bytes = KvHeadBlockBytes(kv.dtype, spec.head_dim, kv.format);
  const int64_t value_bytes = KvHeadBlockBytes(kv.dtype, value_dim, kv.format);
  for (const AttentionSlice& slice : slices) {
    CheckSlice(slice);
    const int64_t first_block = slice.first_position / kTokensPerBlock;
    const int64_t end = slice.first_position + slice.n_rows;
    const int64_t n_blocks = (end + kTokensPerBlock - 1) / kTokensPerBlock - first_block;
    const auto write = [&](int64_t first, int64_t count, int) {
      for (int64_t b = first_block + first; b < first_block + first + count; ++b) {
        const int64_t from = std::max(slice.first_position, b * kTokensPerBlock);
        const int64_t to = std::min(end, (b + 1) * kTokensPerBlock);
        const int64_t row = slice.first_row + from - slice.first_position;
        const int64_t block = slice.blocks[static_cast<size_t>(b)].value;
        for (int64_t h = 0; h < spec.n_kv_heads; ++h) {
          const T* keys_in = static_cast<const T*>(k.data) + row * k.stride + h * spec.head_dim;
          const T* values_in = static_cast<const T*>(v.data) + row * v.stride + h * value_dim;
          std::byte* keys = kv.keys + block * kv.key_stride_bytes + h * key_bytes;
          std::byte* values = kv.values + block * kv.value_stride_bytes + h * value_bytes;
          if (kv.format == KvFormat::kInt8) {
            WriteInt8Block<T>(spec, keys_in, k.stride, values_in, v.stride, from % kTokensPerBlock,
                              to - from, keys, values);
          } else {
            WriteBlock<T>(spec, keys_in, k.stride, values_in, v.stride, from % kTokensPerBlock,
                          to - from, reinterpret_cast<T*>(keys), reinterpret_cast<T*>(values));
          }
        }
      }
    };
    const int64_t block_elements = kTokensPerBlock * spec.n_kv_heads * spec.head_dim;
    ParallelRows(ops, n_blocks, block_elements, write);
  }
}

struct Task {
  int64_t slice;
  int64_t kv_head;
  int64_t first_query;  // in the slice
  int64_t n_queries;
};

// Rows of the slice's next task: at most `most`, of one chunk.
int64_t TaskRows(const AttentionSpec& spec, const AttentionSlice& slice, int64_t first,
                 int64_t most) {
  int64_t rows = std::min(most, slice.n_rows - first);
  if (spec.chunk > 0) {
    rows = std::min(rows, spec.chunk - (slice.first_position + first) % spec.chunk);
  }
  return rows;
}

// Divides one worker's scratch among the parts of a task.
struct TaskScratch {
  static size_t Bytes(int64_t rows, int64_t q_stride_bytes, int64_t acc_stride,
                      int64_t kernel_bytes) {
    return static_cast<size_t>(rows * q_stride_bytes + kernel_bytes) + 64 +
           2 * StateBytes(rows, acc_stride);
  }
  static size_t StateBytes(int64_t rows, int64_t acc_stride) {
    return static_cast<size_t>(RoundUp<int64_t>(rows, kLanes) * (1 + kLanes + acc_stride)) *
           sizeof(float);
  }

  TaskScratch(std::byte* scratch, int64_t rows, int64_t q_stride_bytes, int64_t acc_stride)
      : q(scratch) {
    std::byte* at = scratch + RoundUp<int64_t>(rows * q_stride_bytes, 64);
    for (AttentionState* state : {&total, &part}) {
      const int64_t padded = RoundUp<int64_t>(rows, kLanes);
      float* f = reinterpret_cast<float*>(at);
      *state = {.max = f,
                .sum = f + padded,
                .acc = f + padded * (1 + kLanes),
                .rows = rows,
                .acc_stride = acc_stride};
      at += StateBytes(rows, acc_stride);
    }
    of_kernel = at;
  }

  std::byte* q;
  AttentionState total;
  AttentionState part;
  std::byte* of_kernel;  // AttentionArgs::scratch
};

// The softmax state of a key without a value: the sinks of the heads of each row. Merging it as the
// last chunk keeps the order of every row's sum fixed.
void PutSinks(const float* sinks, int64_t group, const AttentionState& state) {
  for (int64_t r = 0; r < state.rows; ++r) {
    state.max[r] = sinks[r % group];
    std::fill_n(state.sum + r * kLanes, kLanes, 0.0f);
    state.sum[r * kLanes] = 1;
    std::fill_n(state.acc + r * state.acc_stride, state.acc_stride, 0.0f);
  }
}

template <class T>
void AttentionTyped(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
                    std::span<const AttentionSlice> slices, const KvLayerView& kv,
                    const Matrix& out, float* lse, const float* sinks) {
  const TypedKernels<T>& kernels = ops.kernels().typed<T>();
  const int64_t group = spec.n_heads / spec.n_kv_heads;
  const int64_t queries_per_task = std::max<int64_t>(1, kRowsPerTask / group);
  int64_t n_tasks = 0;
  for (const AttentionSlice& slice : slices) {
    CheckSlice(slice);
    for (int64_t first = 0; first < slice.n_rows;) {
      first += TaskRows(spec, slice, first, queries_per_task);
      n_tasks += spec.n_kv_heads;
    }
  }
  Task* tasks =
      reinterpret_cast<Task*>(ops.SharedScratch(static_cast<size_t>(n_tasks) * sizeof(Task)));
  Task* next = tasks;
  for (size_t s = 0; s < slices.size(); ++s) {
    for (int64_t first = 0; first < slices[s].n_rows;) {
      const int64_t rows = TaskRows(spec, slices[s], first, queries_per_task);
      for (int64_t h = 0; h < spec.n_kv_heads; ++h) {
        *next++ = {.slice = static_cast<int64_t>(s),
                   .kv_head = h,
                   .first_query = first,
                   .n_queries = rows};
      }
      first += rows;
    }
  }
  const int64_t q_stride = RowStride(q.dtype, spec.head_dim);
  const int64_t value_dim = spec.value_dim();
  const int64_t acc_stride = RoundUp<int64_t>(value_dim, kLanes);
  const auto q_stride_bytes = q_stride * static_cast<int64_t>(sizeof(T));
  const int64_t key_bytes = KvHeadBlockBytes(kv.dtype, spec.head_dim, kv.format);
  const int64_t value_bytes = KvHeadBlockBytes(kv.dtype, value_dim, kv.format);
  const int64_t kernel_bytes = AttentionScratchBytes(queries_per_task * group, q_stride, q_stride,
                                                     RowStride(kv.dtype, value_dim));
  ReserveWorkerScratch(
      ops, TaskScratch::Bytes(queries_per_task * group, q_stride_bytes, acc_stride, kernel_bytes));

  const auto run = [&](int64_t index, int worker) {
    const Task& task = tasks[index];
    const AttentionSlice& slice = slices[static_cast<size_t>(task.slice)];
    const int64_t rows = task.n_queries * group;
    const int64_t first_row = slice.first_row + task.first_query;
    // A chunk is a text of its own: positions and blocks count from its beginning.
    const int64_t chunk_start =
        spec.chunk > 0 ? (slice.first_position + task.first_query) / spec.chunk * spec.chunk : 0;
    const int64_t first_position = slice.first_position + task.first_query - chunk_start;
    TaskScratch scratch(ops.WorkerScratch(worker, 0), rows, q_stride_bytes, acc_stride);
    // The group's queries, contiguous and each padded to pairs.
    T* queries = reinterpret_cast<T*>(scratch.q);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = queries + r * q_stride;
      std::memcpy(to,
                  static_cast<const T*>(q.data) + (first_row + r / group) * q.stride +
                      (task.kv_head * group + r % group) * spec.head_dim,
                  static_cast<size_t>(spec.head_dim) * sizeof(T));
      std::fill(to + spec.head_dim, to + q_stride, T{0});
    }
    AttentionArgs<T> args = {.q = queries,
                             .ldq = q_stride,
                             .rows = rows,
                             .group = group,
                             .head_dim = spec.head_dim,
                             .value_dim = value_dim,
                             .first_position = first_position,
                             .key_first = 0,
                             .scale = spec.scale,
                             .window = spec.window,
                             .soft_cap = spec.soft_cap,
                             .keys = kv.keys + task.kv_head * key_bytes,
                             .values = kv.values + task.kv_head * value_bytes,
                             .key_stride_bytes = kv.key_stride_bytes,
                             .value_stride_bytes = kv.value_stride_bytes,
                             .blocks = slice.blocks.data() + chunk_start / kTokensPerBlock,
                             .is_int8 = kv.format == KvFormat::kInt8,
                             .scratch = scratch.of_kernel};
    // Chunks before every row's window have no visible keys for this task.
    const int64_t first_seen =
        spec.window > 0 ? std::max<int64_t>(0, first_position - spec.window + 1) : 0;
    const int64_t last_position = first_position + task.n_queries - 1;
    const int64_t first_chunk = first_seen / kKeyChunk * kKeyChunk;
    for (int64_t chunk = first_chunk; chunk <= last_position; chunk += kKeyChunk) {
      args.key_first = chunk;
      kernels.attention_chunk(args, chunk == first_chunk ? scratch.total : scratch.part);
      if (chunk > first_chunk) ops.kernels().attention_merge(scratch.total, scratch.part);
    }
    const int64_t first_head = task.kv_head * group;
    if (sinks != nullptr) {
      PutSinks(sinks + first_head, group, scratch.part);
      ops.kernels().attention_merge(scratch.total, scratch.part);
    }
    kernels.attention_finish(
        scratch.total, group, value_dim,
        static_cast<T*>(out.data) + first_row * out.stride + first_head * value_dim, out.stride,
        lse == nullptr ? nullptr : lse + first_row * spec.n_heads + first_head, spec.n_heads);
  };
  ops.pool().ParallelFor(n_tasks, std::cref(run));

  const int64_t cols = spec.n_heads * value_dim;
  if (cols == RowStride(out.dtype, cols)) return;
  for (const AttentionSlice& slice : slices) {
    for (int64_t r = slice.first_row; r < slice.first_row + slice.n_rows; ++r) {
      static_cast<T*>(out.data)[r * out.stride + cols] = T{0};
    }
  }
}

}  // namespace

int64_t KvHeadBlockBytes(DType dtype, int64_t dim, KvFormat format) {
  const int64_t elements = kTokensPerBlock * RowStride(dtype, dim);
  if (format == KvFormat::kCompute) return elements * static_cast<int64_t>(DTypeBytes(dtype));
  return kTokensPerBlock * static_cast<int64_t>(sizeof(float)) + elements;
}

void WriteKv(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& k, const ConstMatrix& v,
             std::span<const AttentionSlice> slices, const KvLayerView& kv) {
  CheckSpec(spec);
  TANDEM_CHECK(k.dtype == kv.dtype && v.dtype == kv.dtype);
  WithComputeType(kv.dtype, [&]<class T>() { WriteKvTyped<T>(ops, spec, k, v, slices, kv); });
}

void Attention(OpsContext& ops, const AttentionSpec& spec, const ConstMatrix& q,
               std::span<const AttentionSlice> slices, const KvLayerView& kv, const Matrix& out,
               float* lse, const float* sinks) {
  CheckSpec(spec);
  TANDEM_CHECK(q.dtype == kv.dtype && out.dtype == kv.dtype);
  WithComputeType(kv.dtype,
                  [&]<class T>() { AttentionTyped<T>(ops, spec, q, slices, kv, out, lse, sinks); });
}

}  // namespace tandem::engine
