#include "bench/gemm_bench.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <ostream>
#include <random>
#include <string>

#include "bench/measure/paired.h"
#include "bench/measure/print_formatted.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/peak.h"
#include "engine/ops/matmul.h"

namespace tandem::bench {
namespace {

using engine::BlockFormat;
using engine::ConstMatrix;
using engine::DType;
using engine::OpsContext;
using engine::PanelMatrix;
using Clock = std::chrono::steady_clock;

double Since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the median time of step(index), with `index` cycling below `cycle`.
double MedianSeconds(int64_t cycle, double seconds, const std::function<void(int64_t)>& step) {
  for (int64_t i = 0; i < std::min<int64_t>(cycle, 2); ++i) step(i);
  std::vector<double> times;
  const auto start = Clock::now();
  do {
    for (int64_t i = 0; i < cycle; ++i) {
      const auto from = Clock::now();
      step(i);
      times.push_back(Since(from));
    }
  } while (Since(start) < seconds);
  return Median(std::move(times));
}

// Four words, for any instruction set.
using FourWords [[gnu::vector_size(32), gnu::aligned(1), gnu::may_alias]] = int64_t;

// Sums the bytes, so that no load can be dropped.
int64_t ReadAll(const std::byte* data, size_t bytes) {
  FourWords sum[4] = {};
  for (size_t i = 0; i + 128 <= bytes; i += 128) {
    __builtin_prefetch(data + i + 4096);
    __builtin_prefetch(data + i + 4096 + 64);
    for (size_t j = 0; j < 4; ++j) sum[j] += *reinterpret_cast<const FourWords*>(data + i + 32 * j);
  }
  const FourWords all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return all[0] + all[1] + all[2] + all[3];
}

double ReadRate(ThreadPool& pool, const AlignedBuffer& buffer, double seconds) {
  // Pieces have the size of a matrix kernel's tasks.
  constexpr size_t kPiece = 1 << 20;
  volatile int64_t sink = 0;
  const auto task = [&](int64_t index, int) {
    sink = ReadAll(buffer.data() + static_cast<size_t>(index) * kPiece, kPiece);
  };
  const auto pieces = static_cast<int64_t>(buffer.size() / kPiece);
  const double step =
      MedianSeconds(1, seconds, [&](int64_t) { pool.ParallelFor(pieces, std::cref(task)); });
  return static_cast<double>(pieces) * kPiece / step;
}

// Touches every page, each with its own value, because equal pages could be merged.
void Fill(AlignedBuffer& buffer) {
  for (size_t i = 0; i < buffer.size(); i += 64) buffer.data()[i] = static_cast<std::byte>(i >> 8);
}

// Fills with bf16 or f32 values in [-1, 1) from a small generator; packing real weights would
// dominate.
void FillOperand(DType dtype, std::byte* data, int64_t elements) {
  uint32_t state = 1;
  for (int64_t i = 0; i < elements; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
    if (dtype == DType::kF32) {
      std::memcpy(data + i * 4, &value, 4);
    } else {
      const engine::Bf16 bits = engine::FloatToBf16(value);
      std::memcpy(data + i * 2, &bits, 2);
    }
  }
}

struct Operand {
  Operand(DType type, int64_t rows, int64_t cols)
      : bytes(static_cast<size_t>(rows * engine::RowStride(type, cols)) * engine::DTypeBytes(type)),
        matrix{bytes.data(), type, rows, cols, engine::RowStride(type, cols)} {
    FillOperand(type, bytes.data(), rows * matrix.stride);
  }
  AlignedBuffer bytes;
  ConstMatrix matrix;
};

double RoofFlops(const Roof& roof, DType dtype) {
  return dtype == DType::kF32 ? roof.f32_flops : roof.bf16_flops;
}

// Type of the weights.
struct WeightType {
  DType dtype;  // dtype of the other operand
  BlockFormat block = BlockFormat::kNone;

  std::string name() const {
    return block == BlockFormat::kNone ? std::string(engine::DTypeName(dtype))
                                       : engine::BlockFormatName(block);
  }
  int64_t bytes(const GemmBenchOptions::Shape& s) const {
    return block == BlockFormat::kNone ? engine::PanelBytes(dtype, s.n, s.k)
                                       : engine::PanelBytes(block, s.n, s.k);
  }
  double roof(const Roof& roof) const {
    return block == BlockFormat::kNone ? RoofFlops(roof, dtype) : roof.int8_ops;
  }
};

// Fills with arbitrary integers and normal numbers as scales.
void FillBlocks(BlockFormat block, const GemmBenchOptions::Shape& shape, std::byte* panels) {
  std::mt19937 rng(1);
  const int64_t panel_bytes = engine::BlockPanelBytes(block, shape.k);
  const auto scale = engine::FloatToF16(0.01f);
  for (int64_t row = 0; row < shape.n; ++row) {
    std::byte* panel = panels + row / engine::kLanes * panel_bytes;
    const int64_t lane = row % engine::kLanes;
    if (block == BlockFormat::kInt4K) {
      for (int64_t b = 0; b < shape.k / engine::kSuperSize; ++b) {
        std::array<std::byte, engine::kQ4KBytes> super_block;
        for (std::byte& byte : super_block) byte = static_cast<std::byte>(rng());
        std::memcpy(super_block.data(), &scale, sizeof(scale));
        std::memcpy(super_block.data() + sizeof(scale), &scale, sizeof(scale));
        engine::PutQ4K(panel, shape.k, b, lane, super_block.data());
      }
      continue;
    }
    for (int64_t g = 0; g < engine::GroupsOf(shape.k); ++g) {
      engine::BlockGroup group{.scale = scale};
      for (int8_t& q : group.q) q = static_cast<int8_t>(rng() % 16 - 8);
      if (block == BlockFormat::kMxfp4) {
        group.scale = 121;
        for (int8_t& q : group.q) {
          q = static_cast<int8_t>(engine::kMxfp4Numbers[rng() % 16] - engine::kMxfp4Offset);
        }
      }
      engine::PutGroup(block, panel, shape.k, g, lane, group);
    }
  }
}

void BenchForward(std::ostream& out, OpsContext& ops, const GemmBenchOptions& options,
                  const GemmBenchOptions::Shape& shape, const WeightType& type, const Roof& roof) {
  const DType dtype = type.dtype;
  const int64_t weight_bytes = type.bytes(shape);
  const int64_t copies = std::max<int64_t>(2, (options.cycle_bytes - 1) / weight_bytes + 1);
  AlignedBuffer weights(static_cast<size_t>(weight_bytes * copies));
  if (type.block != BlockFormat::kNone) {
    FillBlocks(type.block, shape, weights.data());
  } else {
    FillOperand(dtype, weights.data(),
                weight_bytes / static_cast<int64_t>(engine::DTypeBytes(dtype)));
  }
  for (int64_t c = 1; c < copies; ++c) {
    std::memcpy(weights.data() + c * weight_bytes, weights.data(),
                static_cast<size_t>(weight_bytes));
  }
  for (const int64_t m : options.rows) {
    const Operand x(dtype, m, shape.k);
    AlignedBuffer y(static_cast<size_t>(m * shape.n) * sizeof(float));
    const double seconds = MedianSeconds(copies, options.seconds, [&](int64_t i) {
      const PanelMatrix w{weights.data() + i * weight_bytes, dtype, shape.n, shape.k, type.block};
      engine::MatMul(ops, x.matrix, w, nullptr, y.as<float>(), shape.n);
    });
    const double flops = 2.0 * static_cast<double>(m * shape.n * shape.k) / seconds;
    const double rate = static_cast<double>(weight_bytes) / seconds;
    PrintLine(out,
              "%-4s M %4ld K %5ld N %6ld: %9.1f us  %7.1f GOP/s (%3.0f %% of roof)  weights %5.1f "
              "GB/s "
              "(%3.0f %%)",
              type.name().c_str(), m, shape.k, shape.n, seconds * 1e6, flops / 1e9,
              100 * flops / type.roof(roof), rate / 1e9, 100 * rate / roof.read_bytes);
  }
}

struct GradShape {
  int64_t rows, n, k;
};

void BenchGradients(std::ostream& out, OpsContext& ops, const GemmBenchOptions& options,
                    const GradShape& s, DType dtype, const Roof& roof) {
  const Operand x(dtype, s.rows, s.k);
  const Operand dy(dtype, s.rows, s.n);
  AlignedBuffer panels(static_cast<size_t>(engine::PanelBytes(dtype, s.n, s.k)));
  FillOperand(dtype, panels.data(),
              static_cast<int64_t>(panels.size() / engine::DTypeBytes(dtype)));
  AlignedBuffer gradient(static_cast<size_t>(std::max(s.rows, s.n) * s.k) * sizeof(float));
  const auto report = [&](const char* name, double seconds) {
    const double flops = 2.0 * static_cast<double>(s.rows * s.n * s.k) / seconds;
    PrintLine(out, "%-4s %-12s rows %5ld N %6ld K %5ld: %9.1f ms  %7.1f GOP/s (%3.0f %% of roof)",
              std::string(engine::DTypeName(dtype)).c_str(), name, s.rows, s.n, s.k, seconds * 1e3,
              flops / 1e9, 100 * flops / RoofFlops(roof, dtype));
  };
  report("input grad", MedianSeconds(1, options.seconds, [&](int64_t) {
           engine::MatMulInputGrad(ops, dy.matrix, {panels.data(), dtype, s.n, s.k},
                                   gradient.as<float>(), s.k, false);
         }));
  report("weight grad", MedianSeconds(1, options.seconds, [&](int64_t) {
           engine::MatMulWeightGrad(ops, dy.matrix, x.matrix, gradient.as<float>(), true);
         }));
}

Roof PrintRoof(std::ostream& out, const GemmBenchOptions& options) {
  ThreadPool pool(options.threads);
  const Roof roof = MeasureRoof(options.threads, options.seconds);
  PrintLine(
      out,
      "%s, %d threads: f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, int8 %.0f GOP/s, memory read %.1f "
      "GB/s",
      std::string(engine::Kernels().key).c_str(), pool.n_threads(), roof.f32_flops / 1e9,
      roof.bf16_flops / 1e9, roof.int8_ops / 1e9, roof.read_bytes / 1e9);
  return roof;
}

}  // namespace

Roof MeasureRoof(int threads, double seconds) {
  ThreadPool pool(threads);
  Roof roof;
  roof.f32_flops = engine::PeakRate(pool, engine::PeakKind::kF32, seconds);
  roof.bf16_flops = engine::PeakRate(pool, engine::PeakKind::kBf16, seconds);
  roof.int8_ops = engine::PeakRate(pool, engine::PeakKind::kBytes, seconds);
  AlignedBuffer buffer(size_t{1} << 30);
  Fill(buffer);
  roof.read_bytes = ReadRate(pool, buffer, seconds);
  return roof;
}

int RunRoofBench(std::ostream& out, const GemmBenchOptions& options) {
  PrintRoof(out, options);
  return 0;
}

int RunGemmBench(std::ostream& out, const GemmBenchOptions& options) {
  ThreadPool pool(options.threads);
  OpsContext ops(engine::Kernels(), pool);
  const auto wanted = [&](const WeightType& type) {
    return std::find(options.types.begin(), options.types.end(), type.name()) !=
           options.types.end();
  };
  for (const WeightType& type :
       {WeightType{DType::kBF16}, WeightType{DType::kF32},
        WeightType{DType::kBF16, BlockFormat::kInt8}, WeightType{DType::kBF16, BlockFormat::kInt4},
        WeightType{DType::kBF16, BlockFormat::kInt6}, WeightType{DType::kBF16, BlockFormat::kInt4K},
        WeightType{DType::kBF16, BlockFormat::kMxfp4}}) {
    if (!wanted(type)) continue;
    for (const GemmBenchOptions::Shape& shape : options.shapes) {
      // Measures the roof next to each group, because a shared machine's roof moves within minutes.
      const Roof roof = PrintRoof(out, options);
      BenchForward(out, ops, options, shape, type, roof);
    }
    if (!options.gradients || type.block != BlockFormat::kNone) continue;
    const Roof roof = PrintRoof(out, options);
    for (const GradShape& shape :
         {GradShape{4096, 50257, 256}, GradShape{2048, 2048, 8192}, GradShape{2048, 8192, 2048}}) {
      BenchGradients(out, ops, options, shape, type.dtype, roof);
    }
  }
  return 0;
}

}  // namespace tandem::bench
