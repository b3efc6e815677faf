#include "training/ops/row_mix.h"

#include <algorithm>
#include <array>

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

constexpr int64_t kMixedRows = 3, kMixedCols = 21;
constexpr int64_t kMixedCount = kMixedRows * kMixedCols;

// The root of the mean square of one row.
double RootMeanSquare(const double* row) {
  double sum = 0;
  for (int64_t c = 0; c < kMixedCols; ++c) sum += row[c] * row[c];
  return std::sqrt(sum / kMixedCols);
}

TEST(RowMixBackward, MixesAgreeWithFiniteDifferences) {
  constexpr int64_t kWeightCols = 4, kFirst = 1;
  constexpr double kOffset = 0.5;
  const Floats a = RandomFloats(kMixedCount, 1), b = RandomFloats(kMixedCount, 2);
  const Floats weights = RandomFloats(kMixedRows * kWeightCols, 3);
  const Floats dy = RandomFloats(kMixedCount, 4);
  const auto loss = [&](const Doubles& a_at, const Doubles& b_at, const Doubles& w_at) {
    double sum = 0;
    for (int64_t i = 0; i < kMixedCount; ++i) {
      const int64_t w = i / kMixedCols * kWeightCols + kFirst;
      sum += dy[i] * ((w_at[w] + kOffset) * a_at[i] + (w_at[w + 1] + kOffset) * b_at[i]);
    }
    return sum;
  };
  const Doubles wide_a = Widen(a), wide_b = Widen(b), wide_w = Widen(weights);
  const Doubles want_b =
      NumericGradient([&](const Doubles& at) { return loss(wide_a, at, wide_w); }, wide_b);
  const Doubles want_w =
      NumericGradient([&](const Doubles& at) { return loss(wide_a, wide_b, at); }, wide_w);
  const std::array<const float*, 2> xs = {a.data(), b.data()};

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats da(kMixedCount), db(kMixedCount), dw(weights.size());
    const std::array<float*, 2> dxs = {da.data(), db.data()};
    const MixGradient mix{.xs = xs,
                          .dxs = dxs,
                          .weights = weights.data(),
                          .dweights = dw.data(),
                          .weight_cols = kWeightCols,
                          .first = kFirst,
                          .offset = kOffset};

    MixBackward(ops, mix, dy.data(), kMixedRows, kMixedCols);

    EXPECT_LT(RelativeError(db, want_b), 1e-5);
    EXPECT_LT(RelativeError(dw, want_w), 1e-5);
    EXPECT_EQ(dw[0], 0) << "the weight of no stream";
  });
}

TEST(RowMixBackward, MatchedMagnitudesAgreeWithFiniteDifferences) {
  const Floats x = RandomFloats(kMixedCount, 5), like = RandomFloats(kMixedCount, 6);
  const Floats dy = RandomFloats(kMixedCount, 7);
  for (const float least : {1e-5f, 100.0f}) {  // the second holds for no row
    const auto loss = [&](const Doubles& x_at, const Doubles& like_at) {
      double sum = 0;
      for (int64_t i = 0; i < kMixedCount; ++i) {
        const int64_t row = i / kMixedCols * kMixedCols;
        const double own = RootMeanSquare(x_at.data() + row);
        const double factor = RootMeanSquare(like_at.data() + row) /
                              std::max(own, std::sqrt(static_cast<double>(least)));
        sum += dy[i] * factor * x_at[i];
      }
      return sum;
    };
    const Doubles want_x =
        NumericGradient([&](const Doubles& at) { return loss(at, Widen(like)); }, Widen(x));
    const Doubles want_like =
        NumericGradient([&](const Doubles& at) { return loss(Widen(x), at); }, Widen(like));

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dx(kMixedCount), dlike(kMixedCount);
      MatchMagnitudeBackward(ops, x.data(), like.data(), least, dy.data(), kMixedRows, kMixedCols,
                             dx.data(), dlike.data());

      EXPECT_LT(RelativeError(dx, want_x), 1e-5);
      EXPECT_LT(RelativeError(dlike, want_like), 1e-5);
    });
  }
}

TEST(RowMixBackward, CutsAgreeWithFiniteDifferences) {
  const Floats x = RandomFloats(kMixedCount, 8), dy = RandomFloats(kMixedCount, 9);
  for (const float deviations : {-0.4f, 0.0f, 1.1f}) {
    const Doubles want = NumericGradient(
        [&](const Doubles& at) {
          double sum = 0;
          for (int64_t row = 0; row < kMixedCount; row += kMixedCols) {
            double mean = 0, squares = 0;
            for (int64_t c = row; c < row + kMixedCols; ++c) mean += at[c] / kMixedCols;
            for (int64_t c = row; c < row + kMixedCols; ++c) {
              squares += (at[c] - mean) * (at[c] - mean) / kMixedCols;
            }
            const double cut = mean + static_cast<double>(deviations) * std::sqrt(squares);
            for (int64_t c = row; c < row + kMixedCols; ++c) {
              sum += dy[c] * std::max(0.0, at[c] - cut);
            }
          }
          return sum;
        },
        Widen(x));

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dx(kMixedCount);
      AboveCutBackward(ops, x.data(), deviations, dy.data(), kMixedRows, kMixedCols, dx.data());

      EXPECT_LT(RelativeError(dx, want), 1e-5);
    });
  }
}

TEST(RowMixBackward, ScaledColumnsGiveTheirGradientToValuesAndScales) {
  const Floats x = RandomFloats(kMixedCount, 10), dy = RandomFloats(kMixedCount, 11);
  const Floats w = RandomFloats(kMixedCols, 12);
  Floats want_w(kMixedCols);
  for (int64_t i = 0; i < kMixedCount; ++i) want_w[i % kMixedCols] += dy[i] * x[i];

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats dx(kMixedCount), dw(kMixedCols);
    ScaleColumnsBackward(ops, x.data(), w.data(), dy.data(), kMixedRows, kMixedCols, dx.data(),
                         dw.data());
    ScaleColumnsBackward(ops, x.data(), w.data(), dy.data(), kMixedRows, kMixedCols, dx.data(),
                         nullptr);

    EXPECT_LT(RelativeError(dw, Widen(want_w)), 1e-6);
    for (int64_t i = 0; i < kMixedCount; ++i) {
      EXPECT_NEAR(dx[i], 2 * w[i % kMixedCols] * dy[i], 1e-5f);
    }
  });
}

TEST(RowMixBackward, ScaledExpertsGiveTheirGradientToWeightsAndScalesButNotToIds) {
  const Floats routing = {2, 0, 0.75f, 0.25f, 1, 2, 0.5f, 0.5f};  // 2 rows of 2 slots
  const Floats scales = {10, 100, 1000}, dy = {7, 7, 1, 2, 7, 7, 3, 4};

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats drouting(routing.size()), dscales(scales.size());
    ScaleExpertsBackward(ops, routing.data(), scales.data(), dy.data(), 2, 2, drouting.data(),
                         dscales.data());

    EXPECT_EQ(drouting, (Floats{0, 0, 1000, 20, 0, 0, 300, 4000}));
    EXPECT_EQ(dscales, (Floats{0.5f, 1.5f, 0.75f + 2}));
  });
}

TEST(RowMixBackward, CapsAgreeWithFiniteDifferences) {
  constexpr double kCap = 1.5;
  const Floats x = RandomFloats(kMixedCount, 13, 2), dy = RandomFloats(kMixedCount, 14);
  const auto capped = [](double at) { return kCap * std::tanh(at / kCap); };
  const Doubles want = NumericGradient(
      [&](const Doubles& at) {
        double sum = 0;
        for (int64_t i = 0; i < kMixedCount; ++i) sum += dy[i] * capped(at[i]);
        return sum;
      },
      Widen(x));
  Floats y(kMixedCount);
  for (int64_t i = 0; i < kMixedCount; ++i) y[i] = static_cast<float>(capped(x[i]));

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats dx(kMixedCount);
    SoftCapBackward(ops, y.data(), kCap, dy.data(), kMixedCount, dx.data());

    EXPECT_LT(RelativeError(dx, want), 1e-5);
  });
}

}  // namespace
}  // namespace tandem::training
