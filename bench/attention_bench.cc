#include "bench/attention_bench.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <ostream>

#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/attention.h"

namespace tandem::bench {
namespace {

using engine::AttentionSlice;
using engine::AttentionSpec;
using engine::ConstMatrix;
using engine::DType;
using engine::KvLayerView;
using engine::OpsContext;

// A bf16 matrix of numbers in [-1, 1).
class RandomRows {
 public:
  RandomRows(int64_t rows, int64_t cols)
      : bytes_(static_cast<size_t>(rows * cols) * sizeof(engine::Bf16)), rows_(rows), cols_(cols) {
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * cols; ++i) {
      state = state * 1664525u + 1013904223u;
      bytes_.as<engine::Bf16>()[i] =
          engine::FloatToBf16(static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f);
    }
  }
  ConstMatrix matrix() const { return {bytes_.data(), DType::kBF16, rows_, cols_, cols_}; }
  engine::Matrix matrix() { return {bytes_.data(), DType::kBF16, rows_, cols_, cols_}; }

 private:
  AlignedBuffer bytes_;
  int64_t rows_;
  int64_t cols_;
};

// Keys and values of several layers with the same numbers, each of `depth` tokens.
class FilledLayers {
 public:
  FilledLayers(OpsContext& ops, const AttentionSpec& spec, engine::KvFormat format, int64_t depth,
               int64_t least_bytes)
      : spec_(spec), format_(format), blocks_(static_cast<size_t>(depth / engine::kLanes + 1)) {
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].value = static_cast<uint32_t>(i);
    stride_ = spec.n_kv_heads * engine::KvHeadBlockBytes(DType::kBF16, spec.head_dim, format);
    layer_bytes_ = 2 * stride_ * static_cast<int64_t>(blocks_.size());
    n_layers_ = std::max<int64_t>(1, (least_bytes - 1) / layer_bytes_ + 1);
    bytes_ = AlignedBuffer(static_cast<size_t>(n_layers_ * layer_bytes_));
    const RandomRows rows(depth, spec.n_kv_heads * spec.head_dim);
    const AttentionSlice slice = {0, depth, 0, blocks_};
    engine::WriteKv(ops, spec, rows.matrix(), rows.matrix(), {&slice, 1}, layer(0));
    for (int64_t i = 1; i < n_layers_; ++i) {
      std::memcpy(bytes_.data() + i * layer_bytes_, bytes_.data(),
                  static_cast<size_t>(layer_bytes_));
    }
  }

  int64_t n_layers() const { return n_layers_; }
  std::span<const BlockId> blocks() const { return blocks_; }
  KvLayerView layer(int64_t i) {
    std::byte* const keys = bytes_.data() + i * layer_bytes_;
    return {keys, keys + layer_bytes_ / 2, stride_, stride_, DType::kBF16, format_};
  }
  // Returns the size of all keys and values of the first `depth` tokens.
  double BytesOf(int64_t depth) const {
    return 2.0 * static_cast<double>(stride_) * static_cast<double>(depth) / engine::kLanes;
  }

 private:
  AttentionSpec spec_;
  engine::KvFormat format_;
  std::vector<BlockId> blocks_;
  int64_t stride_ = 0;  // of a block
  int64_t layer_bytes_ = 0;
  int64_t n_layers_ = 0;
  AlignedBuffer bytes_;
};

// The median time of attention of the last `rows` of `depth` tokens, over the layers in turn.
double MedianSeconds(OpsContext& ops, const AttentionSpec& spec, FilledLayers& layers,
                     int64_t depth, int64_t rows, double seconds) {
  using Clock = std::chrono::steady_clock;
  const RandomRows q(rows, spec.n_heads * spec.head_dim);
  RandomRows out(rows, spec.n_heads * spec.head_dim);
  const AttentionSlice slice = {0, rows, depth - rows, layers.blocks()};
  std::vector<double> times;
  const auto start = Clock::now();
  int64_t layer = 0;
  do {
    const auto from = Clock::now();
    engine::Attention(ops, spec, q.matrix(), {&slice, 1}, layers.layer(layer), out.matrix(),
                      nullptr);
    times.push_back(std::chrono::duration<double>(Clock::now() - from).count());
    layer = (layer + 1) % layers.n_layers();
  } while (times.size() < 3 || Clock::now() - start < std::chrono::duration<double>(seconds));
  return Median(std::move(times));
}

void PrintRow(std::ostream& out, const char* format, auto... values) {
  char line[200];
  std::snprintf(line, sizeof(line), format, values...);
  out << line << std::endl;
}

}  // namespace

int RunAttentionBench(std::ostream& out, const AttentionBenchOptions& options) {
  ThreadPool pool(options.threads);
  OpsContext ops(engine::Kernels(), pool);
  const AttentionSpec spec = {.n_heads = options.n_heads,
                              .n_kv_heads = options.n_kv_heads,
                              .head_dim = options.head_dim,
                              .scale = 0.125f};
  for (const int64_t depth : options.depths) {
    const Roof roof = MeasureRoof(options.threads, options.seconds / 2);
    FilledLayers layers(ops, spec, options.kv_format, depth, options.cycle_bytes);
    const int64_t rows = std::min(options.rows, depth);
    const double prefill = MedianSeconds(ops, spec, layers, depth, rows, options.seconds);
    // Pairs of a query and a key that it sees, of all heads.
    const auto pairs = static_cast<double>(spec.n_heads * rows * (2 * depth - rows + 1) / 2);
    const double flops = 4 * pairs * static_cast<double>(spec.head_dim) / prefill;
    PrintRow(out, "%s, %6ld tokens: %ld rows %.2f ms, %.0f GFLOP/s = %.0f %% of f32's %.0f",
             std::string(engine::Kernels().key).c_str(), depth, rows, 1e3 * prefill, flops / 1e9,
             100 * flops / roof.f32_flops, roof.f32_flops / 1e9);
    const double decode = MedianSeconds(ops, spec, layers, depth, 1, options.seconds);
    const double rate = layers.BytesOf(depth) / decode;
    PrintRow(out, "    one row %.3f ms, %.1f GB/s: %.2f x the read loop's time at %.1f GB/s",
             1e3 * decode, rate / 1e9, roof.read_bytes / rate, roof.read_bytes / 1e9);
  }
  return 0;
}

}  // namespace tandem::bench
