#include "bench/mlp_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ostream>

#include "bench/measure/paired.h"
#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/kernels/peak.h"
#include "training/ops/pointwise.h"
#include "training/ops/relu_save.h"

namespace tandem::bench {
namespace {

using engine::ConstMatrix;
using engine::DType;
using engine::Matrix;
using engine::PanelMatrix;

constexpr int64_t kSumRows = 1024;  // rows per sum of a weight gradient

int64_t Width(DType dtype) { return static_cast<int64_t>(engine::DTypeBytes(dtype)); }

AlignedBuffer Take(int64_t elements, int64_t width) {
  return AlignedBuffer(static_cast<size_t>(elements * width));
}

// Fills with uniform values in [-scale, scale), fast enough for a billion values.
void Fill(DType dtype, int64_t elements, float scale, uint32_t seed, std::byte* data) {
  uint32_t state = seed;
  for (int64_t i = 0; i < elements; ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f * scale;
    if (dtype == DType::kF32) {
      std::memcpy(data + i * 4, &value, 4);
    } else {
      const engine::Bf16 rounded = engine::FloatToBf16(value);
      std::memcpy(data + i * 2, &rounded, 2);
    }
  }
}

std::vector<float> Widened(DType dtype, const AlignedBuffer& buffer, int64_t elements) {
  std::vector<float> values(static_cast<size_t>(elements));
  engine::ConvertToF32({buffer.data(), dtype, {elements}}, values);
  return values;
}

const char* NameOf(MlpSave save) {
  switch (save) {
    case MlpSave::kPlain:
      return "plain";
    case MlpSave::kMask1:
      return "mask1";
    case MlpSave::kRecompute:
      return "recompute";
  }
  return "";
}

MlpBenchOptions Checked(MlpBenchOptions options) {
  options.chunk = std::min(options.chunk, options.seq);
  const auto refuse = [](const std::string& message) {
    throw Error(ErrorCode::kInvalidArgument, "bench mlp: " + message);
  };
  if (options.d % 8 != 0 || options.ff % 8 != 0) refuse("--d and --ff must be multiples of 8");
  if (options.chunk < options.seq && options.chunk % kSumRows != 0) {
    refuse("--chunk must be a multiple of 1024 or equal to --seq");
  }
  return options;
}

}  // namespace

MlpWorkload::MlpWorkload(const MlpBenchOptions& options, engine::OpsContext& ops)
    : options_(Checked(options)), ops_(ops) {
  const MlpBenchOptions& o = options_;
  const int64_t width = Width(o.dtype);
  const int64_t weights = o.d * o.ff;
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  x_ = Take(o.batch * o.seq * o.d, width);
  Fill(o.dtype, o.batch * o.seq * o.d, 1, 1, x_.data());
  // This variance keeps the variance of activations.
  up_master_ = Take(weights, width);
  Fill(o.dtype, weights, std::sqrt(3 / static_cast<float>(o.d)), 2, up_master_.data());
  down_ = Take(weights, width);
  Fill(o.dtype, weights, std::sqrt(3 / static_cast<float>(o.ff)), 3, down_.data());
  gradient_ = Take(weights, kFloat);
  up_.elements = weights;
  up_.gradient = gradient_.as<float>();
  if (o.dtype == DType::kBF16) {
    up_low_ = Take(weights, 2);
    up_.high = up_master_.as<engine::Bf16>();
    up_.low = up_low_.as<int16_t>();
  } else {
    up_.master = up_master_.as<float>();
  }
  Pack({up_master_.data(), o.dtype, o.ff, o.d, o.d}, up_panels_);
  Pack({down_.data(), o.dtype, o.d, o.ff, o.ff}, down_panels_);
  if (o.save == MlpSave::kPlain) kept_ = Take(o.seq * o.ff, kFloat);
  if (o.save == MlpSave::kMask1) kept_ = Take(training::ReluMaskBytes(o.seq * o.ff), 1);
  dout_ = Take(o.seq * o.d, width);
  wide_ = Take(o.chunk * o.ff, kFloat);
  wide_gradient_ = Take(o.chunk * o.ff, kFloat);
  wide_rounded_ = Take(o.chunk * o.ff, width);
  out_ = Take(o.chunk * o.d, kFloat);
}

Matrix MlpWorkload::Rows(AlignedBuffer& buffer, int64_t first, int64_t rows, int64_t cols) {
  return {buffer.data() + first * cols * Width(options_.dtype), options_.dtype, rows, cols, cols};
}

void MlpWorkload::Pack(const Matrix& w, AlignedBuffer& panels) {
  const auto bytes = static_cast<size_t>(engine::PanelBytes(w.dtype, w.rows, w.cols));
  if (panels.size() == 0) panels = AlignedBuffer(bytes);
  engine::PackPanels(ops_, {static_cast<const std::byte*>(w.data), w.dtype, {w.rows, w.cols}},
                     engine::SourceLayout::kOutIn, w.rows, w.cols, w.dtype, panels.data());
}

PanelMatrix MlpWorkload::Up() const {
  return {up_panels_.data(), options_.dtype, options_.ff, options_.d};
}
PanelMatrix MlpWorkload::Down() const {
  return {down_panels_.data(), options_.dtype, options_.d, options_.ff};
}

void MlpWorkload::Product(int64_t first, int64_t rows) {
  engine::MatMul(ops_, Rows(x_, first, rows, options_.d), Up(), nullptr, wide_.as<float>(),
                 options_.ff);
}

// Runs some rows of a sequence forward and adds the sum of squares of `out` to `sum`. Stores the
// kept values and d(loss)/d(out).
void MlpWorkload::Forward(int64_t sequence, int64_t first, int64_t rows, double* sum) {
  const int64_t d = options_.d;
  const int64_t elements = rows * options_.ff;
  const int64_t at = first * options_.ff;
  Product(sequence * options_.seq + first, rows);
  if (options_.save == MlpSave::kPlain) {
    engine::RoundRows(ops_, wide_.as<float>(), options_.ff,  // f32 to f32: a copy
                      {kept_.as<float>() + at, DType::kF32, rows, options_.ff, options_.ff});
  } else if (options_.save == MlpSave::kMask1) {
    training::ReluMask(ops_, wide_.as<float>(), elements, kept_.as<uint8_t>() + at / 8);
  }
  const Matrix h = Rows(wide_rounded_, 0, rows, options_.ff);
  engine::Activate(ops_, wide_.as<float>(), options_.ff, engine::Activation::kRelu, h);
  auto* out = out_.as<float>();
  engine::MatMul(ops_, h, Down(), nullptr, out, d);

  std::vector<double> sums(static_cast<size_t>(rows), 0.0);
  ops_.pool().ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t i = row * d; i < (row + 1) * d; ++i) {
      sums[static_cast<size_t>(row)] += static_cast<double>(out[i]) * static_cast<double>(out[i]);
    }
  });
  const auto n = static_cast<double>(options_.batch * options_.seq * d);
  engine::ScaleRows(ops_, out, static_cast<float>(2 / n), rows * d, out);
  engine::RoundRows(ops_, out, d, Rows(dout_, first, rows, d));
  for (const double of_row : sums) *sum += of_row;
}

void MlpWorkload::Backward(int64_t sequence, int64_t first, int64_t rows) {
  const int64_t elements = rows * options_.ff;
  const int64_t at = first * options_.ff;
  const int64_t row = sequence * options_.seq + first;
  auto* da = wide_gradient_.as<float>();
  auto* wide = wide_.as<float>();
  std::vector<uint8_t> mask;
  if (options_.save == MlpSave::kRecompute) {
    Product(row, rows);
    mask.resize(static_cast<size_t>(training::ReluMaskBytes(elements)));
    training::ReluMask(ops_, wide, elements, mask.data());  // dh replaces a
  }
  engine::MatMulInputGrad(ops_, Rows(dout_, first, rows, options_.d), Down(), wide, options_.ff,
                          false);
  std::memset(da, 0, static_cast<size_t>(elements) * sizeof(float));
  switch (options_.save) {
    case MlpSave::kPlain:
      training::ActivateBackward(ops_, kept_.as<float>() + at, engine::Activation::kRelu, wide,
                                 elements, da);
      break;
    case MlpSave::kMask1:
      training::ReluMaskBackward(ops_, kept_.as<uint8_t>() + at / 8, wide, elements, da);
      break;
    case MlpSave::kRecompute:
      training::ReluMaskBackward(ops_, mask.data(), wide, elements, da);
      break;
  }
  const Matrix rounded = Rows(wide_rounded_, 0, rows, options_.ff);
  engine::RoundRows(ops_, da, options_.ff, rounded);
  engine::MatMulWeightGrad(ops_, rounded, Rows(x_, row, rows, options_.d), gradient_.as<float>(),
                           true);
}

double MlpWorkload::Step() {
  std::memset(gradient_.data(), 0, gradient_.size());
  double sum = 0;
  for (int64_t sequence = 0; sequence < options_.batch; ++sequence) {
    for (int64_t first = 0; first < options_.seq; first += options_.chunk) {
      Forward(sequence, first, std::min(options_.chunk, options_.seq - first), &sum);
    }
    for (int64_t first = 0; first < options_.seq; first += options_.chunk) {
      Backward(sequence, first, std::min(options_.chunk, options_.seq - first));
    }
  }
  const training::OptimizerSpec sgd{.kind = training::OptimizerKind::kSgd, .clip_norm = 0};
  training::ApplyOptimizer(ops_, sgd, options_.learning_rate, n_steps_++, 1, {&up_, 1});
  Pack({up_master_.data(), options_.dtype, options_.ff, options_.d, options_.d}, up_panels_);
  return sum / static_cast<double>(options_.batch * options_.seq * options_.d);
}

// Products: a, out, dh and dW; a second time a if it is recomputed.
double MlpWorkload::flops() const {
  const double product = 2.0 * static_cast<double>(options_.batch * options_.seq) *
                         static_cast<double>(options_.d) * static_cast<double>(options_.ff);
  return product * (options_.save == MlpSave::kRecompute ? 5 : 4);
}

std::vector<float> MlpWorkload::x() const {
  return Widened(options_.dtype, x_, options_.batch * options_.seq * options_.d);
}

std::vector<float> MlpWorkload::w_up() const {
  std::vector<float> w = Widened(options_.dtype, up_master_, up_.elements);
  for (size_t i = 0; i < w.size() && up_.low != nullptr; ++i) {
    w[i] = training::JoinMaster(up_.high[i], up_.low[i]);
  }
  return w;
}

std::vector<float> MlpWorkload::w_down() const {
  return Widened(options_.dtype, down_, up_.elements);
}

int RunMlpBench(std::ostream& out, const MlpBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  MlpWorkload workload(options, ops);
  const auto print = [&](const char* format, auto... values) {
    char line[240];
    std::snprintf(line, sizeof line, format, values...);
    out << line << std::endl;
  };
  const bool bf16 = options.dtype == DType::kBF16;
  print(
      "d %lld, ff %lld, %lld sequences of %lld tokens, chunks of %lld, %s, save %s, %d threads,"
      " %s",
      static_cast<long long>(options.d), static_cast<long long>(options.ff),
      static_cast<long long>(options.batch), static_cast<long long>(options.seq),
      static_cast<long long>(std::min(options.chunk, options.seq)), bf16 ? "bf16" : "f32",
      NameOf(options.save), pool.n_threads(), std::string(ops.kernels().key).c_str());
  const double plain = static_cast<double>(options.seq * options.ff) * 4 / 0x1p20;
  const double kept = static_cast<double>(workload.kept_bytes()) / 0x1p20;
  print(
      "ReLU activations saved for the backward pass, per sequence: %.1f MiB of %.1f MiB in f32 "
      "(%.3f %% "
      "less)",
      kept, plain, 100 * (1 - kept / plain));

  std::vector<double> times;
  std::vector<double> shares;
  for (int64_t step = 0; step < options.steps; ++step) {
    const auto from = std::chrono::steady_clock::now();
    const double loss = workload.Step();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - from;
    // Measures the roof next to each step, because a shared machine's roof moves within minutes.
    const double roof =
        engine::PeakRate(pool, bf16 ? engine::PeakKind::kBf16 : engine::PeakKind::kF32, 0.3);
    const double rate = workload.flops() / seconds.count();
    times.push_back(seconds.count());
    shares.push_back(rate / roof);
    print("step %lld: loss %.9g, %.3f s, %.1f GFLOP/s of %.1f (%.0f %% of the roof)",
          static_cast<long long>(step), loss, seconds.count(), rate / 1e9, roof / 1e9,
          100 * rate / roof);
  }
  const double median = Median(times);
  const auto tokens = static_cast<double>(options.batch * options.seq);
  print("%.4g it/s, %.0f tokens/s, %.1f GFLOP/s, %.0f %% of the roof (medians of %lld steps)",
        1 / median, tokens / median, workload.flops() / median / 1e9, 100 * Median(shares),
        static_cast<long long>(options.steps));
  return 0;
}

}  // namespace tandem::bench
