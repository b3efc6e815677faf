#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/matmul.h"
#include "training/optim/master_values.h"
#include "training/optim/update_rules.h"

namespace tandem::training {
namespace {

using engine::DType;

// Jordan's coefficients: x <- a x + (b s + c s^2) x with s = x x'.
constexpr float kA = 3.4445f;
constexpr float kB = -4.7750f;
constexpr float kC = 2.0315f;
constexpr int kNewtonSchulzSteps = 5;
constexpr double kLeastNorm = 1e-7;

int64_t FloatBytes(int64_t elements) { return elements * static_cast<int64_t>(sizeof(float)); }

// Rows of the shorter side and columns of the longer one, so that s is small.
struct MuonShape {
  MuonShape(int64_t rows, int64_t columns)
      : transposed(rows > columns), n(std::min(rows, columns)), k(std::max(rows, columns)) {}
  bool transposed;
  int64_t n;
  int64_t k;
};

// out [rows, n] = x [rows, k] times the transpose of w [n, k] (kOutIn), or times w [k, n] (kInOut).
void Product(engine::OpsContext& ops, const float* x, int64_t rows, const float* w,
             engine::SourceLayout layout, int64_t n, int64_t k, AlignedBuffer* panels, float* out) {
  const bool out_in = layout == engine::SourceLayout::kOutIn;
  engine::PackPanels(
      ops, {reinterpret_cast<const std::byte*>(w), DType::kF32, {out_in ? n : k, out_in ? k : n}},
      layout, n, k, DType::kF32, panels->data());
  engine::MatMul(ops, {x, DType::kF32, rows, k, k}, {panels->data(), DType::kF32, n, k}, nullptr,
                 out, n);
}

// Nearly orthogonalises x [n, k], n <= k.
void Orthogonalise(engine::OpsContext& ops, int64_t n, int64_t k, float* x) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    double row = 0;
    for (int64_t c = 0; c < k; ++c) row += static_cast<double>(x[i * k + c]) * x[i * k + c];
    sum += row;
  }
  const auto inverse = static_cast<float>(1 / (std::sqrt(sum) + kLeastNorm));
  for (int64_t i = 0; i < n * k; ++i) x[i] *= inverse;

  AlignedBuffer panels(static_cast<size_t>(
      std::max(engine::PanelBytes(DType::kF32, n, k), engine::PanelBytes(DType::kF32, k, n))));
  AlignedBuffer s_buffer(static_cast<size_t>(FloatBytes(n * n)));
  AlignedBuffer b_buffer(static_cast<size_t>(FloatBytes(n * n)));
  AlignedBuffer y_buffer(static_cast<size_t>(FloatBytes(n * k)));
  float* s = s_buffer.as<float>();
  float* b = b_buffer.as<float>();
  float* y = y_buffer.as<float>();
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    Product(ops, x, n, x, engine::SourceLayout::kOutIn, n, k, &panels, s);
    Product(ops, s, n, s, engine::SourceLayout::kInOut, n, n, &panels, b);
    for (int64_t i = 0; i < n * n; ++i) b[i] = kB * s[i] + kC * b[i];
    Product(ops, b, n, x, engine::SourceLayout::kInOut, k, n, &panels, y);
    for (int64_t i = 0; i < n * k; ++i) x[i] = kA * x[i] + y[i];
  }
}

}  // namespace

int64_t MuonScratchBytes(int64_t rows, int64_t columns) {
  const MuonShape shape(rows, columns);
  return 2 * FloatBytes(shape.n * shape.k) + 2 * FloatBytes(shape.n * shape.n) +
         std::max(engine::PanelBytes(DType::kF32, shape.n, shape.k),
                  engine::PanelBytes(DType::kF32, shape.k, shape.n));
}

void UpdateByMuon(engine::OpsContext& ops, const UpdateStep& step,
                  const ParameterState& parameter) {
  const OptimizerSpec& spec = *step.spec;
  const int64_t columns = parameter.columns;
  const int64_t rows = parameter.elements / columns;
  const MuonShape shape(rows, columns);
  const auto beta = static_cast<float>(spec.muon_beta);
  const auto scale = static_cast<float>(step.gradient_scale);
  AlignedBuffer direction(static_cast<size_t>(FloatBytes(parameter.elements)));
  float* x = direction.as<float>();
  const auto place = [&](int64_t row, int64_t column) {
    return shape.transposed ? column * rows + row : row * columns + column;
  };
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = row * columns + c;
      const float g = parameter.gradient[i] * scale;
      const float m = beta * parameter.m[i] + (1 - beta) * g;
      parameter.m[i] = m;
      x[place(row, c)] = beta * m + (1 - beta) * g;
    }
  });
  Orthogonalise(ops, shape.n, shape.k, x);

  const double factor =
      spec.muon_consistent_rms > 0
          ? spec.muon_consistent_rms * std::sqrt(static_cast<double>(shape.k))
          : std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
  const auto size = static_cast<float>(step.learning_rate * factor);
  const float kept =
      1 - (parameter.decays ? static_cast<float>(step.learning_rate * spec.weight_decay) : 0);
  ops.pool().ParallelFor(rows, [&](int64_t row, int) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t i = row * columns + c;
      SetMasterAt(parameter, i, kept * MasterAt(parameter, i) - size * x[place(row, c)]);
    }
  });
}

}  // namespace tandem::training
