#include <algorithm>
#include <cmath>
#include <vector>

#include "training/optim/master_values.h"
#include "training/optim/update_rules.h"

namespace tandem::training {
namespace {

constexpr double kLeastSquare = 1e-30;  // epsilon 1 of the paper
constexpr double kLeastRms = 1e-3;      // epsilon 2
constexpr double kDecayPower = -0.8;
constexpr int64_t kColumnsPerTask = 256;
constexpr int64_t kVectorBlock = 4096;

// A tensor as rows. A vector is cut into rows of one block, the last one shorter.
struct AdafactorRows {
  explicit AdafactorRows(const ParameterState& parameter)
      : elements(parameter.elements),
        width(parameter.factored ? parameter.columns : kVectorBlock) {}

  int64_t count() const { return (elements + width - 1) / width; }
  int64_t first(int64_t row) const { return row * width; }
  int64_t end(int64_t row) const { return std::min(elements, (row + 1) * width); }

  int64_t elements;
  int64_t width;
};

// Sum over rows of sum_of(first, end), rows in order.
template <class SumOf>
double SumOverRows(engine::OpsContext& ops, const AdafactorRows& rows, const SumOf& sum_of) {
  std::vector<double> sums(static_cast<size_t>(rows.count()));
  ops.pool().ParallelFor(rows.count(), [&](int64_t row, int) {
    sums[static_cast<size_t>(row)] = sum_of(row, rows.first(row), rows.end(row));
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

class AdafactorUpdate {
 public:
  AdafactorUpdate(engine::OpsContext& ops, const UpdateStep& step, const ParameterState& parameter)
      : ops_(ops),
        p_(parameter),
        rows_(parameter),
        scale_(step.gradient_scale),
        rate_(step.learning_rate),
        decay_(1 - std::pow(static_cast<double>(step.t + 1), kDecayPower)) {}

  void Run() {
    p_.factored ? UpdateFactors() : UpdateSquares();
    const double n = static_cast<double>(p_.elements);
    const double update_rms = std::sqrt(SumOverRows(ops_, rows_,
                                                    [&](int64_t row, int64_t first, int64_t end) {
                                                      double sum = 0;
                                                      for (int64_t i = first; i < end; ++i)
                                                        sum +=
                                                            Direction(row, i) * Direction(row, i);
                                                      return sum;
                                                    }) /
                                        n);
    const double weight_rms = std::sqrt(SumOverRows(ops_, rows_,
                                                    [&](int64_t, int64_t first, int64_t end) {
                                                      double sum = 0;
                                                      for (int64_t i = first; i < end; ++i) {
                                                        const double w = MasterAt(p_, i);
                                                        sum += w * w;
                                                      }
                                                      return sum;
                                                    }) /
                                        n);
    const double size = rate_ * std::max(kLeastRms, weight_rms) / std::max(1.0, update_rms);
    ops_.pool().ParallelFor(rows_.count(), [&](int64_t row, int) {
      for (int64_t i = rows_.first(row); i < rows_.end(row); ++i) {
        SetMasterAt(p_, i, static_cast<float>(MasterAt(p_, i) - size * Direction(row, i)));
      }
    });
  }

 private:
  double Gradient(int64_t i) const { return p_.gradient[i] * scale_; }
  double Square(int64_t i) const { return Gradient(i) * Gradient(i) + kLeastSquare; }
  float Mixed(float before, double now) const {
    return static_cast<float>(decay_ * before + (1 - decay_) * now);
  }

  void UpdateSquares() {
    ops_.pool().ParallelFor(rows_.count(), [&](int64_t row, int) {
      for (int64_t i = rows_.first(row); i < rows_.end(row); ++i)
        p_.v[i] = Mixed(p_.v[i], Square(i));
    });
  }

  // v holds the decayed sums of squares: of every row, then of every column.
  void UpdateFactors() {
    const int64_t n_rows = rows_.count();
    ops_.pool().ParallelFor(n_rows, [&](int64_t row, int) {
      double sum = 0;
      for (int64_t i = rows_.first(row); i < rows_.end(row); ++i) sum += Square(i);
      p_.v[row] = Mixed(p_.v[row], sum);
    });
    float* columns = p_.v + n_rows;
    const int64_t n_tasks = (p_.columns + kColumnsPerTask - 1) / kColumnsPerTask;
    ops_.pool().ParallelFor(n_tasks, [&](int64_t task, int) {
      const int64_t first = task * kColumnsPerTask;
      const int64_t count = std::min(kColumnsPerTask, p_.columns - first);
      double sums[kColumnsPerTask] = {};
      for (int64_t row = 0; row < n_rows; ++row) {
        for (int64_t c = 0; c < count; ++c) sums[c] += Square(row * p_.columns + first + c);
      }
      for (int64_t c = 0; c < count; ++c) columns[first + c] = Mixed(columns[first + c], sums[c]);
    });
    row_sum_ = 0;
    for (int64_t row = 0; row < n_rows; ++row) row_sum_ += p_.v[row];
  }

  // The gradient over the root of its estimated second moment.
  double Direction(int64_t row, int64_t i) const {
    const double square =
        p_.factored
            ? p_.v[row] * static_cast<double>(p_.v[rows_.count() + i - rows_.first(row)]) / row_sum_
            : p_.v[i];
    return Gradient(i) / std::sqrt(square);
  }

  engine::OpsContext& ops_;
  const ParameterState& p_;
  const AdafactorRows rows_;
  const double scale_;
  const double rate_;
  const double decay_;
  double row_sum_ = 0;
};

}  // namespace

void UpdateByAdafactor(engine::OpsContext& ops, const UpdateStep& step,
                       const ParameterState& parameter) {
  AdafactorUpdate(ops, step, parameter).Run();
}

}  // namespace tandem::training
