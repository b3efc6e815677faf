#include "training/ops/pointwise.h"

#include <algorithm>
#include <map>

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

double ActivationOf(engine::Activation activation, double x) {
  switch (activation) {
    case engine::Activation::kSilu:
      return x / (1 + std::exp(-x));
    case engine::Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case engine::Activation::kRelu:
      return x > 0 ? x : 0;
    case engine::Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::sqrt(2));
    case engine::Activation::kRelu2:
      return x > 0 ? x * x : 0;
    case engine::Activation::kClampedSwiglu:
      break;
  }
  return 0;
}

constexpr engine::Activation kActivations[] = {
    engine::Activation::kSilu, engine::Activation::kGeluTanh, engine::Activation::kRelu,
    engine::Activation::kGelu, engine::Activation::kRelu2};

TEST(PointwiseBackward, ActivationsAgreeWithFiniteDifferences) {
  constexpr int64_t kCount = 203;
  const Floats x = RandomFloats(kCount, 1, 3);
  const Floats dy = RandomFloats(kCount, 2);
  for (const engine::Activation activation : kActivations) {
    const Doubles want = NumericGradient(
        [&](const Doubles& at) {
          double loss = 0;
          for (int64_t i = 0; i < kCount; ++i) loss += dy[i] * ActivationOf(activation, at[i]);
          return loss;
        },
        Widen(x));

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dx(kCount);
      ActivateBackward(ops, x.data(), activation, dy.data(), kCount, dx.data());

      EXPECT_LT(RelativeError(dx, want), 1e-5);
    });
  }
}

TEST(PointwiseBackward, GatedActivationsAgreeWithFiniteDifferences) {
  constexpr int64_t kCount = 77;
  const Floats gate = RandomFloats(kCount, 3, 2);
  const Floats up = RandomFloats(kCount, 4, 2);
  const Floats dh = RandomFloats(kCount, 5);
  for (const engine::Activation activation : kActivations) {
    const auto loss = [&](const Doubles& g, const Doubles& u) {
      double sum = 0;
      for (int64_t i = 0; i < kCount; ++i) sum += dh[i] * ActivationOf(activation, g[i]) * u[i];
      return sum;
    };
    const Doubles want_gate =
        NumericGradient([&](const Doubles& at) { return loss(at, Widen(up)); }, Widen(gate));
    const Doubles want_up =
        NumericGradient([&](const Doubles& at) { return loss(Widen(gate), at); }, Widen(up));

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dgate(kCount);
      Floats dup(kCount);
      GatedActivationBackward(ops, gate.data(), up.data(), activation, dh.data(), kCount,
                              dgate.data(), dup.data());

      EXPECT_LT(RelativeError(dgate, want_gate), 1e-5);
      EXPECT_LT(RelativeError(dup, want_up), 1e-5);
    });
  }
}

// The inputs lie on both sides of every limit.
TEST(PointwiseBackward, ClampedSwigluAgreesWithFiniteDifferences) {
  constexpr int64_t kCount = 211;
  const Floats gate = RandomFloats(kCount, 13, 6);
  const Floats up = RandomFloats(kCount, 14, 6);
  const Floats dh = RandomFloats(kCount, 15);
  const auto loss = [&](const Doubles& g, const Doubles& u) {
    double sum = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      const double at = std::min(g[i], 7.0);
      sum += dh[i] * (std::clamp(u[i], -7.0, 7.0) + 1) * at / (1 + std::exp(-1.702 * at));
    }
    return sum;
  };
  const Doubles want_gate =
      NumericGradient([&](const Doubles& at) { return loss(at, Widen(up)); }, Widen(gate));
  const Doubles want_up =
      NumericGradient([&](const Doubles& at) { return loss(Widen(gate), at); }, Widen(up));

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats dgate(kCount);
    Floats dup(kCount);
    GatedActivationBackward(ops, gate.data(), up.data(), engine::Activation::kClampedSwiglu,
                            dh.data(), kCount, dgate.data(), dup.data());

    EXPECT_LT(RelativeError(dgate, want_gate), 1e-5);
    EXPECT_LT(RelativeError(dup, want_up), 1e-5);
  });
}

TEST(PointwiseBackward, RopeBackwardUndoesTheRotation) {
  constexpr int64_t kRows = 6;
  constexpr int64_t kHeads = 3;
  constexpr int64_t kDim = 12;
  Doubles frequencies;
  for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(std::pow(100.0, -i / 6.0));
  const engine::RopeTable table(frequencies, 64);
  const std::vector<int32_t> positions = {0, 1, 5, 17, 2, 63};
  const Floats x = RandomFloats(kRows * kHeads * kDim, 6);

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats rotated(x.size());
    engine::Rope(ops, x.data(), kHeads * kDim, positions, table,
                 {rotated.data(), engine::DType::kF32, kRows, kHeads * kDim, kHeads * kDim});
    Floats back(x.size());
    RopeBackward(ops, rotated.data(), positions, table, kRows, kHeads * kDim, back.data());

    // A rotation's gradient is its inverse.
    EXPECT_LT(RelativeError(back, Widen(x)), 1e-6);
    EXPECT_NE(rotated, x);
  });
}

TEST(PointwiseBackward, PartialAndInterleavedRopeBackwardUndoesTheRotation) {
  constexpr int64_t kRows = 6, kHeads = 3, kDim = 22;
  const std::vector<int32_t> positions = {0, 1, 5, 17, 2, 63};
  const Floats x = RandomFloats(kRows * kHeads * kDim, 6);
  for (const bool interleaved : {false, true}) {
    for (const int pairs : {1, 4, 11}) {
      Doubles frequencies;
      for (int i = 0; i < pairs; ++i) frequencies.push_back(std::pow(100.0, -i / 6.0));
      const engine::RopeTable table(frequencies, 64, 1, {kDim, interleaved});

      OnEveryTable([&](engine::OpsContext& ops) {
        Floats rotated(x.size());
        engine::Rope(ops, x.data(), kHeads * kDim, positions, table,
                     {rotated.data(), engine::DType::kF32, kRows, kHeads * kDim, kHeads * kDim});
        Floats back(x.size());
        RopeBackward(ops, rotated.data(), positions, table, kRows, kHeads * kDim, back.data());

        EXPECT_LT(RelativeError(back, Widen(x)), 1e-6) << interleaved << pairs;
        EXPECT_NE(rotated, x);
      });
    }
  }
}

TEST(PointwiseBackward, MultiplyClampAndSigmoidAgreeWithFiniteDifferences) {
  constexpr int64_t kCount = 203;
  constexpr double kLimit = 1.5;
  const Floats a = RandomFloats(kCount, 1, 2);
  const Floats b = RandomFloats(kCount, 2, 2);
  const Floats dy = RandomFloats(kCount, 3);
  const auto gradient = [&](const Floats& x, const std::function<double(double, int64_t)>& f) {
    return NumericGradient(
        [&](const Doubles& at) {
          double loss = 0;
          for (int64_t i = 0; i < kCount; ++i) loss += dy[i] * f(at[i], i);
          return loss;
        },
        Widen(x));
  };
  const Doubles want_a = gradient(a, [&](double x, int64_t i) { return x * b[i]; });
  const Doubles want_b = gradient(b, [&](double x, int64_t i) { return x * a[i]; });
  const Doubles want_clamp =
      gradient(a, [&](double x, int64_t) { return std::clamp(x, -kLimit, kLimit); });
  const Doubles want_sigmoid =
      gradient(a, [&](double x, int64_t) { return 1 / (1 + std::exp(-x)); });

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats da(kCount), db(kCount), dclamp(kCount), dsigmoid(kCount), y(kCount);
    MultiplyBackward(ops, a.data(), b.data(), dy.data(), kCount, da.data(), db.data());
    ClampBackward(ops, a.data(), kLimit, dy.data(), kCount, dclamp.data());
    engine::SigmoidRows(ops, a.data(), kCount, y.data());
    SigmoidBackward(ops, y.data(), dy.data(), kCount, dsigmoid.data());

    EXPECT_LT(RelativeError(da, want_a), 1e-5);
    EXPECT_LT(RelativeError(db, want_b), 1e-5);
    EXPECT_LT(RelativeError(dclamp, want_clamp), 1e-5);
    EXPECT_LT(RelativeError(dsigmoid, want_sigmoid), 1e-5);
  });
}

TEST(PointwiseBackward, ScaledAndColumnsAreAddedWhereTheyBelong) {
  constexpr int64_t kRows = 70, kCols = 19, kWide = 40, kFirst = 11;
  const Floats from = RandomFloats(kRows * kCols, 9);
  const Floats before = RandomFloats(kRows * kWide, 10);

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats scaled(before.begin(), before.begin() + kRows * kCols);
    AccumulateScaled(ops, from.data(), 2.5f, kRows * kCols, scaled.data());
    Floats columns = before;
    AccumulateColumns(ops, from.data(), kRows, kCols, columns.data() + kFirst, kWide);

    for (int64_t i = 0; i < kRows * kCols; ++i) {
      ASSERT_NEAR(scaled[i], before[i] + 2.5f * from[i], 1e-6f * (1 + std::abs(scaled[i])));
    }
    for (int64_t i = 0; i < kRows * kWide; ++i) {
      const int64_t column = i % kWide - kFirst;
      const bool inside = column >= 0 && column < kCols;
      ASSERT_EQ(columns[i], before[i] + (inside ? from[i / kWide * kCols + column] : 0.0f));
    }
  });
}

TEST(PointwiseBackward, EmbedBackwardAddsRowsOfEqualIdsInOrderAndIdsBeyondTheTableToRow0) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kCols = 19;
  constexpr int64_t kTable = 11;
  std::mt19937 rng(7);
  std::vector<TokenId> ids(kRows);
  for (TokenId& id : ids) id = static_cast<TokenId>(rng() % (kTable + 3));
  const Floats dy = RandomFloats(kRows * kCols, 8);
  Floats want(kTable * kCols);
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t id = ids[r] < kTable ? ids[r] : 0;
    for (int64_t i = 0; i < kCols; ++i) want[id * kCols + i] += dy[r * kCols + i];
  }

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats got(kTable * kCols);
    EmbedBackward(ops, ids, dy.data(), kCols, kTable, got.data());

    EXPECT_EQ(got, want);  // the same additions in the same order
  });
}

TEST(PointwiseBackward, ColumnSumsAddRowsInOrder) {
  constexpr int64_t kRows = 41;
  constexpr int64_t kCols = 300;
  const Floats dy = RandomFloats(kRows * kCols, 9);
  Floats want(kCols, 2.0f);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kCols; ++i) want[i] += dy[r * kCols + i];
  }

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats got(kCols, 2.0f);
    ColumnSums(ops, dy.data(), kRows, kCols, got.data());

    EXPECT_EQ(got, want);
  });
}

TEST(Dropout, DependsOnSampleAndPositionAloneAndKeepsTheMean) {
  constexpr int64_t kCols = 250;
  const Floats x(2 * kCols, 1.0f);
  const DropoutKey key{.seed = 42, .op = 7};
  const std::vector<DropoutRow> rows = {{.sample = 3, .position = 9}, {.sample = 4, .position = 9}};
  const std::vector<DropoutRow> swapped = {rows[1], rows[0]};

  OnEveryTable([&](engine::OpsContext& ops) {
    Floats y(2 * kCols);
    Floats z(2 * kCols);
    Dropout(ops, x.data(), rows, kCols, 0.25f, key, y.data(), false);
    Dropout(ops, x.data(), swapped, kCols, 0.25f, key, z.data(), false);

    const Floats first(y.begin(), y.begin() + kCols);
    EXPECT_EQ(first, Floats(z.begin() + kCols, z.end()));
    EXPECT_NE(first, Floats(y.begin() + kCols, y.end()));
    int64_t kept = 0;
    for (const float value : y) {
      if (value != 0) {
        EXPECT_FLOAT_EQ(value, 1 / 0.75f);
        ++kept;
      }
    }
    EXPECT_NEAR(static_cast<double>(kept) / (2 * kCols), 0.75, 0.08);
  });
}

TEST(Dropout, OfRoundedRowsIsThatOfTheirValuesRoundedOnce) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kCols = 37;
  constexpr int64_t kStride = 38;
  const DropoutKey key{.seed = 42, .op = 7};
  std::vector<DropoutRow> rows;
  for (uint32_t r = 0; r < kRows; ++r) rows.push_back({.sample = r / 7, .position = r});
  const Floats random = RandomFloats(kRows * kCols, 6);
  std::vector<engine::Bf16> x(kRows * kStride);
  Floats wide(kRows * kCols);
  for (int64_t i = 0; i < kRows * kCols; ++i) {
    engine::Bf16& to = x[i / kCols * kStride + i % kCols];
    to = engine::FloatToBf16(random[i]);
    wide[i] = engine::Bf16ToFloat(to);
  }

  OnEveryTable([&](engine::OpsContext& ops) {
    std::vector<engine::Bf16> y(kRows * kStride, 1);
    DropoutRounded(ops, {x.data(), engine::DType::kBF16, kRows, kCols, kStride}, rows, 0.25f, key,
                   {y.data(), engine::DType::kBF16, kRows, kCols, kStride});
    Floats want(kRows * kCols);
    Dropout(ops, wide.data(), rows, kCols, 0.25f, key, want.data(), false);

    for (int64_t i = 0; i < kRows * kCols; ++i) {
      ASSERT_EQ(y[i / kCols * kStride + i % kCols], engine::FloatToBf16(want[i])) << i;
    }
    EXPECT_EQ(y[kStride - 1], 0);
  });
}

// The same sample has another number in every epoch.
TEST(Dropout, OtherOpsSeedsAndSampleNumbersDrawOtherMasks) {
  constexpr int64_t kCols = 128;
  const Floats x(kCols, 1.0f);
  struct Case {
    DropoutKey key;
    uint64_t sample;
  };
  ThreadPool pool(1);
  engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
  std::vector<Floats> seen;
  for (const Case& c : {Case{{.seed = 1, .op = 0}, 0}, Case{{.seed = 1, .op = 1}, 0},
                        Case{{.seed = 2, .op = 0}, 0}, Case{{.seed = 1, .op = 0}, 5}}) {
    const std::vector<DropoutRow> rows = {{.sample = c.sample, .position = 0}};
    Floats y(kCols);
    Dropout(ops, x.data(), rows, kCols, 0.5f, c.key, y.data(), false);
    for (const Floats& other : seen) EXPECT_NE(y, other);
    seen.push_back(y);
  }
}

}  // namespace
}  // namespace tandem::training
