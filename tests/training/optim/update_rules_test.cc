#include "training/optim/update_rules.h"

#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>
#include <random>
#include <vector>

#include "engine/kernels/kernels.h"

// Each rule against its paper's formulas, computed here in f64 with Eigen.
namespace tandem::training {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

std::vector<float> Draws(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(rng);
  return values;
}

Matrix Wide(const std::vector<float>& values, int64_t rows) {
  const auto columns = static_cast<int64_t>(values.size()) / rows;
  return Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(values.data(), rows,
                                                                         columns)
      .cast<double>();
}

// A tensor and its state after some steps.
struct Stepped {
  Stepped(const OptimizerSpec& spec, int64_t rows, int64_t columns, int threads, int steps,
          bool split = false)
      : w(Draws(rows * columns, 1)) {
    ThreadPool pool(threads);
    engine::OpsContext ops(engine::Kernels(), pool);
    const TensorForm form{.rows = rows, .columns = columns, .is_matrix = true};
    const MomentLayout layout = MomentsOf(spec, form);
    m.resize(layout.first ? w.size() : 0);
    v.resize(layout.second ? static_cast<size_t>(SecondMomentElements(layout, rows * columns)) : 0);
    high.resize(w.size());
    low.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) SplitMaster(w[i], &high[i], &low[i]);
    for (int t = 0; t < steps; ++t) {
      const std::vector<float> g = Draws(rows * columns, 100 + static_cast<uint32_t>(t));
      const ParameterState state{.elements = rows * columns,
                                 .columns = columns,
                                 .factored = layout.factors > 0,
                                 .orthogonalised = IsOrthogonalised(spec, form),
                                 .master = split ? nullptr : w.data(),
                                 .high = split ? high.data() : nullptr,
                                 .low = split ? low.data() : nullptr,
                                 .m = m.empty() ? nullptr : m.data(),
                                 .v = v.empty() ? nullptr : v.data(),
                                 .gradient = g.data()};
      ApplyOptimizer(ops, spec, 1e-2, t, 0.5, {&state, 1});
    }
    for (size_t i = 0; split && i < w.size(); ++i) w[i] = JoinMaster(high[i], low[i]);
  }
  std::vector<float> w, m, v;
  std::vector<engine::Bf16> high;
  std::vector<int16_t> low;
};

void ExpectClose(const std::vector<float>& got, const Matrix& want, double tolerance) {
  ASSERT_EQ(static_cast<Eigen::Index>(got.size()), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want.data()[i], tolerance) << i;
  }
}

TEST(Lion, FollowsThePaper) {
  OptimizerSpec spec{.kind = OptimizerKind::kLion};
  spec.b2 = 0.99;
  Matrix w = Wide(Draws(6 * 7, 1), 6);
  Matrix m = Matrix::Zero(6, 7);
  for (uint32_t t = 0; t < 5; ++t) {
    const Matrix g = 0.5 * Wide(Draws(6 * 7, 100 + t), 6);
    const Matrix c = 0.9 * m + 0.1 * g;
    w -= 1e-2 * (c.cwiseSign() + 0.1 * w);
    m = 0.99 * m + 0.01 * g;
  }
  ExpectClose(Stepped(spec, 6, 7, 1, 5).w, w, 1e-5);
}

TEST(Adafactor, FollowsThePaper) {
  const OptimizerSpec spec{.kind = OptimizerKind::kAdafactor};
  Matrix w = Wide(Draws(5 * 9, 1), 5);
  Eigen::VectorXd r = Eigen::VectorXd::Zero(5);
  Eigen::RowVectorXd c = Eigen::RowVectorXd::Zero(9);
  for (uint32_t t = 0; t < 5; ++t) {
    const Matrix g = 0.5 * Wide(Draws(5 * 9, 100 + t), 5);
    const double b2 = 1 - std::pow(t + 1.0, -0.8);
    const Matrix squares = g.array().square() + 1e-30;
    r = b2 * r + (1 - b2) * squares.rowwise().sum();
    c = b2 * c + (1 - b2) * squares.colwise().sum();
    const Matrix v = r * c / r.sum();
    const Matrix u = g.array() / v.array().sqrt();
    const double rms_u = std::sqrt(u.squaredNorm() / 45);
    const double rms_w = std::sqrt(w.squaredNorm() / 45);
    w -= 1e-2 * std::max(1e-3, rms_w) * u / std::max(1.0, rms_u);
  }
  const Stepped stepped(spec, 5, 9, 1, 5);
  EXPECT_EQ(stepped.v.size(), 14u);
  ExpectClose(stepped.w, w, 1e-5);
}

TEST(Adafactor, KeepsASquarePerElementOfAVector) {
  const OptimizerSpec spec{.kind = OptimizerKind::kAdafactor};
  Matrix w = Wide(Draws(9, 1), 9);
  Matrix v = Matrix::Zero(9, 1);
  for (uint32_t t = 0; t < 4; ++t) {
    const Matrix g = 0.5 * Wide(Draws(9, 100 + t), 9);
    const double b2 = 1 - std::pow(t + 1.0, -0.8);
    v = b2 * v.array() + (1 - b2) * (g.array().square() + 1e-30);
    const Matrix u = g.array() / v.array().sqrt();
    const double rms_w = std::sqrt(w.squaredNorm() / 9);
    w -= 1e-2 * std::max(1e-3, rms_w) * u / std::max(1.0, std::sqrt(u.squaredNorm() / 9));
  }
  ExpectClose(Stepped(spec, 9, 1, 1, 4).w, w, 1e-5);
}

Matrix NewtonSchulz(Matrix x) {
  const bool tall = x.rows() > x.cols();
  if (tall) x.transposeInPlace();
  x /= x.norm() + 1e-7;
  for (int i = 0; i < 5; ++i) {
    const Matrix a = x * x.transpose();
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a * a) * x;
  }
  if (tall) x.transposeInPlace();
  return x;
}

TEST(Muon, FollowsItsDefinition) {
  for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{6, 10}, {33, 17}}) {
    for (const double rms : {0.2, 0.0}) {
      OptimizerSpec spec{.kind = OptimizerKind::kMuon};
      spec.muon_consistent_rms = rms;
      Matrix w = Wide(Draws(rows * columns, 1), rows);
      Matrix m = Matrix::Zero(rows, columns);
      for (uint32_t t = 0; t < 3; ++t) {
        const Matrix g = 0.5 * Wide(Draws(rows * columns, 100 + t), rows);
        m = 0.95 * m + 0.05 * g;
        const double longer = static_cast<double>(std::max(rows, columns));
        const double factor = rms > 0 ? rms * std::sqrt(longer)
                                      : std::sqrt(std::max(1.0, static_cast<double>(rows) /
                                                                    static_cast<double>(columns)));
        w = (1 - 1e-2 * 0.1) * w - 1e-2 * factor * NewtonSchulz(0.95 * m + 0.05 * g);
      }
      const Stepped stepped(spec, rows, columns, 1, 3);
      EXPECT_TRUE(stepped.v.empty());
      ExpectClose(stepped.w, w, 1e-4);
    }
  }
}

TEST(Muon, LeavesHeadsAndVectorsToAdamW) {
  const OptimizerSpec spec{.kind = OptimizerKind::kMuon};
  EXPECT_TRUE(
      MomentsOf(spec, {.rows = 8, .columns = 8, .is_matrix = true, .is_of_layer = false}).second);
  EXPECT_TRUE(MomentsOf(spec, {.rows = 8, .columns = 8}).second);
  const std::vector<float> adamw = Stepped({}, 40, 1, 1, 3).w;
  EXPECT_EQ(Stepped(spec, 40, 1, 1, 3).w, adamw);
}

TEST(UpdateRules, ThreadsChangeNoBitAndSplitMastersFollow) {
  for (const OptimizerKind kind :
       {OptimizerKind::kAdafactor, OptimizerKind::kLion, OptimizerKind::kMuon}) {
    const OptimizerSpec spec{.kind = kind};
    const Stepped one(spec, 130, 301, 1, 3);
    const Stepped three(spec, 130, 301, 3, 3);
    EXPECT_EQ(one.w, three.w);
    EXPECT_EQ(one.m, three.m);
    EXPECT_EQ(one.v, three.v);
    EXPECT_EQ(one.w, Stepped(spec, 130, 301, 2, 3, true).w);
  }
}

TEST(UpdateRules, TheirStateIsWhatThePapersSay) {
  const TensorForm matrix{.rows = 100, .columns = 300, .is_matrix = true};
  const auto bytes = [&](OptimizerKind kind) {
    return MomentBytes(MomentsOf({.kind = kind}, matrix), 30000);
  };
  EXPECT_EQ(bytes(OptimizerKind::kAdamW), 8 * 30000);
  EXPECT_EQ(bytes(OptimizerKind::kLion), 4 * 30000);
  EXPECT_EQ(bytes(OptimizerKind::kMuon), 4 * 30000);
  EXPECT_EQ(bytes(OptimizerKind::kAdafactor), 4 * 400);
}

}  // namespace
}  // namespace tandem::training
