#include "engine/ops/recurrence.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/engine/ops/ops_test_support.h"

namespace tandem::engine {
namespace {

constexpr int64_t kTextRows = 70;

// Runs one op over given runs of rows: (runs, offset of the state, y).
using RecurrentOp = std::function<void(OpsContext&, std::span<const StateRows>, int64_t, float*)>;

struct OpCase {
  const char* name;
  int64_t outputs;
  int64_t state_floats;
  RecurrentOp run;
  std::function<std::vector<double>()> plain;  // the formula in f64, row after row
};

double SigmoidF64(double x) { return 1 / (1 + std::exp(-x)); }
double SoftplusF64(double x) { return std::log1p(std::exp(x)); }

OpCase ConvCase(ConvForm form, int64_t channels, int64_t kernel, bool with_bias) {
  const ConvSpec spec{.channels = channels, .kernel = kernel, .form = form};
  const auto x = RandomFloats(kTextRows * spec.inputs(), 1);
  const auto w = RandomFloats(channels * kernel, 2);
  const auto bias = RandomFloats(channels, 3);
  const float* bias_data = nullptr;
  OpCase result{"conv", channels, spec.state_floats(), {}, {}};
  result.run = [=](OpsContext& ops, std::span<const StateRows> rows, int64_t offset, float* y) {
    CausalConv(ops, spec, x.data(), w.data(), with_bias ? bias.data() : bias_data, rows, offset, y);
  };
  result.plain = [=] {
    std::vector<double> y;
    for (int64_t t = 0; t < kTextRows; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        double sum = with_bias ? bias[static_cast<size_t>(c)] : 0;
        for (int64_t j = 0; j < kernel; ++j) {
          const int64_t row = t - kernel + 1 + j;
          if (row < 0) continue;
          const float* in = x.data() + row * spec.inputs() + c;
          const double u = form == ConvForm::kGated ? double{in[0]} * in[2 * channels] : in[0];
          sum += w[static_cast<size_t>(c * kernel + j)] * u;
        }
        if (form == ConvForm::kSilu) sum *= SigmoidF64(sum);
        if (form == ConvForm::kGated) {
          sum *= x[static_cast<size_t>(t * spec.inputs() + channels + c)];
        }
        y.push_back(sum);
      }
    }
    return y;
  };
  return result;
}

OpCase DeltaCase(const DeltaSpec& spec) {
  const auto qkv = RandomFloats(kTextRows * spec.inputs(), 4);
  const auto a = RandomFloats(kTextRows * spec.n_v_heads, 5);
  const auto b = RandomFloats(kTextRows * spec.n_v_heads, 6);
  const auto a_log = RandomFloats(spec.n_v_heads, 7), dt_bias = RandomFloats(spec.n_v_heads, 8);
  OpCase result{"delta", spec.outputs(), spec.state_floats(), {}, {}};
  result.run = [=](OpsContext& ops, std::span<const StateRows> rows, int64_t offset, float* y) {
    GatedDelta(ops, spec, {qkv.data(), a.data(), b.data(), a_log.data(), dt_bias.data()}, rows,
               offset, y);
  };
  result.plain = [=] {
    std::vector<double> y(static_cast<size_t>(kTextRows * spec.outputs()));
    const int64_t group = spec.n_v_heads / spec.n_k_heads;
    for (int64_t head = 0; head < spec.n_v_heads; ++head) {
      std::vector<double> s(static_cast<size_t>(spec.k_dim * spec.v_dim));
      for (int64_t t = 0; t < kTextRows; ++t) {
        const float* q = qkv.data() + t * spec.inputs() + head / group * spec.k_dim;
        const float* k = q + spec.n_k_heads * spec.k_dim;
        const float* v =
            qkv.data() + t * spec.inputs() + 2 * spec.n_k_heads * spec.k_dim + head * spec.v_dim;
        double qq = 1e-6, kk = 1e-6;
        for (int64_t i = 0; i < spec.k_dim; ++i) {
          qq += double{q[i]} * q[i];
          kk += double{k[i]} * k[i];
        }
        const auto h = static_cast<size_t>(head);
        const auto at = static_cast<size_t>(t * spec.n_v_heads + head);
        const double decay =
            std::exp(-std::exp(double{a_log[h]}) * SoftplusF64(double{a[at]} + dt_bias[h]));
        for (int64_t c = 0; c < spec.v_dim; ++c) {
          const auto cell = [&](int64_t i) -> double& {
            return s[static_cast<size_t>(i * spec.v_dim + c)];
          };
          double known = 0, out = 0;
          for (int64_t i = 0; i < spec.k_dim; ++i) {
            cell(i) *= decay;
            known += cell(i) * k[i] / std::sqrt(kk);
          }
          const double delta = SigmoidF64(b[at]) * (v[c] - known);
          for (int64_t i = 0; i < spec.k_dim; ++i) {
            cell(i) += k[i] / std::sqrt(kk) * delta;
            out += cell(i) * q[i] / std::sqrt(qq * static_cast<double>(spec.k_dim));
          }
          y[static_cast<size_t>(t * spec.outputs() + head * spec.v_dim + c)] = out;
        }
      }
    }
    return y;
  };
  return result;
}

OpCase ScanCase(const ScanSpec& spec) {
  const auto xbc = RandomFloats(kTextRows * spec.inputs(), 9);
  const auto dt = RandomFloats(kTextRows * spec.n_heads, 10);
  const auto a_log = RandomFloats(spec.n_heads, 11), dt_bias = RandomFloats(spec.n_heads, 12);
  const auto d = RandomFloats(spec.n_heads, 13);
  OpCase result{"scan", spec.outputs(), spec.state_floats(), {}, {}};
  result.run = [=](OpsContext& ops, std::span<const StateRows> rows, int64_t offset, float* y) {
    SelectiveScan(ops, spec, {xbc.data(), dt.data(), a_log.data(), dt_bias.data(), d.data()}, rows,
                  offset, y);
  };
  result.plain = [=] {
    std::vector<double> y(static_cast<size_t>(kTextRows * spec.outputs()));
    const int64_t group = spec.n_heads / spec.n_groups;
    for (int64_t head = 0; head < spec.n_heads; ++head) {
      const auto h = static_cast<size_t>(head);
      std::vector<double> s(static_cast<size_t>(spec.state_dim * spec.head_dim));
      for (int64_t t = 0; t < kTextRows; ++t) {
        const float* row = xbc.data() + t * spec.inputs();
        const float* b = row + spec.outputs() + head / group * spec.state_dim;
        const float* c = b + spec.n_groups * spec.state_dim;
        const double step = std::clamp(
            SoftplusF64(double{dt[static_cast<size_t>(t * spec.n_heads + head)]} + dt_bias[h]),
            double{spec.least_dt}, double{spec.most_dt});
        const double decay = std::exp(-std::exp(double{a_log[h]}) * step);
        for (int64_t i = 0; i < spec.head_dim; ++i) {
          const double x = row[head * spec.head_dim + i];
          double out = d[h] * x;
          for (int64_t n = 0; n < spec.state_dim; ++n) {
            double& cell = s[static_cast<size_t>(n * spec.head_dim + i)];
            cell = cell * decay + b[n] * step * x;
            out += cell * c[n];
          }
          y[static_cast<size_t>(t * spec.outputs() + head * spec.head_dim + i)] = out;
        }
      }
    }
    return y;
  };
  return result;
}

std::vector<OpCase> RecurrentCases() {
  return {ConvCase(ConvForm::kGated, 300, 3, false),
          ConvCase(ConvForm::kSilu, 37, 4, true),
          ConvCase(ConvForm::kPlain, 5, 1, true),
          DeltaCase({.n_k_heads = 2, .n_v_heads = 4, .k_dim = 20, .v_dim = 37}),
          DeltaCase({.n_k_heads = 3, .n_v_heads = 3, .k_dim = 5, .v_dim = 64}),
          ScanCase({.n_heads = 4, .head_dim = 18, .n_groups = 2, .state_dim = 9}),
          ScanCase({.n_heads = 2,
                    .head_dim = 33,
                    .n_groups = 1,
                    .state_dim = 16,
                    .least_dt = 0.5f,
                    .most_dt = 1.0f})};
}

std::vector<float> AtOnce(OpsContext& ops, const OpCase& op) {
  std::vector<float> y(static_cast<size_t>(kTextRows * op.outputs));
  const StateRows all{.first_row = 0, .n_rows = kTextRows};
  op.run(ops, {&all, 1}, 0, y.data());
  return y;
}

class RecurrenceTest : public TableTest {};

TEST_P(RecurrenceTest, IsTheFormula) {
  TestOps ops(table(), 2);
  for (const OpCase& op : RecurrentCases()) {
    const std::vector<float> y = AtOnce(ops, op);
    const std::vector<double> want = op.plain();
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += (y[i] - want[i]) * (y[i] - want[i]);
      size += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(difference / size), 2e-6) << op.name;
  }
}

TEST_P(RecurrenceTest, NoSplitOfATextAndNoThreadChangesABit) {
  constexpr int64_t kOffset = 48;
  for (const OpCase& op : RecurrentCases()) {
    TestOps one(table(), 1), three(table(), 3);
    const std::vector<float> want = AtOnce(one, op);
    const auto n_floats = static_cast<size_t>(kOffset + op.state_floats);
    std::vector<float> end(n_floats, NAN);
    const StateRows whole{.n_rows = kTextRows, .state = end.data()};
    std::vector<float> y(want.size());
    op.run(one, {&whole, 1}, kOffset, y.data());
    ASSERT_EQ(std::memcmp(y.data(), want.data(), want.size() * sizeof(float)), 0) << op.name;

    for (int64_t split = 1; split < kTextRows; ++split) {
      // A fresh state is not zero: the first run must not read it.
      std::vector<float> state(n_floats, NAN), saved(n_floats, NAN);
      std::fill(y.begin(), y.end(), NAN);
      const StateSave save{.position = split, .state = saved.data()};
      const StateRows head{.n_rows = split, .state = state.data()};
      op.run(three, {&head, 1}, kOffset, y.data());
      const std::vector<float> after_head = state;
      const StateRows tail{.first_row = split,
                           .n_rows = kTextRows - split,
                           .first_position = split,
                           .state = state.data()};
      op.run(split % 2 == 0 ? one : three, {&tail, 1}, kOffset, y.data());

      EXPECT_EQ(std::memcmp(y.data(), want.data(), want.size() * sizeof(float)), 0)
          << op.name << " split at " << split;
      const auto same_state = [&](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data() + kOffset, b.data() + kOffset,
                           static_cast<size_t>(op.state_floats) * sizeof(float)) == 0;
      };
      EXPECT_TRUE(same_state(state, end)) << op.name << " split at " << split;

      // A snapshot taken on the way is the state of a text that ends there.
      std::vector<float> third(n_floats, NAN);
      const StateRows saving{
          .n_rows = kTextRows, .state = third.data(), .saves = std::span(&save, 1)};
      op.run(three, {&saving, 1}, kOffset, y.data());
      EXPECT_TRUE(same_state(saved, after_head)) << op.name << " saved at " << split;
      EXPECT_TRUE(same_state(third, end)) << op.name << " saved at " << split;
    }
  }
}

TEST_P(RecurrenceTest, SegmentsBeginWithZeroState) {
  TestOps ops(table(), 2);
  for (const OpCase& op : RecurrentCases()) {
    const std::vector<float> alone = AtOnce(ops, op);
    // The second segment begins in the middle: its rows differ from those of the whole text.
    std::vector<float> y(alone.size());
    const StateRows segments[] = {{.n_rows = 30}, {.first_row = 30, .n_rows = 40}};
    op.run(ops, segments, 0, y.data());
    const auto first = static_cast<size_t>(30 * op.outputs);
    EXPECT_EQ(std::memcmp(y.data(), alone.data(), first * sizeof(float)), 0) << op.name;

    std::vector<float> second(alone.size());
    std::vector<float> state(static_cast<size_t>(op.state_floats), 0.0f);
    const StateRows zero{.first_row = 30, .n_rows = 40, .first_position = 7, .state = state.data()};
    op.run(ops, {&zero, 1}, 0, second.data());
    EXPECT_EQ(std::memcmp(y.data() + first, second.data() + first,
                          (alone.size() - first) * sizeof(float)),
              0)
        << op.name;
  }
}

TEST_P(RecurrenceTest, GatesMultiplyBySigmoidOrSilu) {
  TestOps ops(table());
  constexpr int64_t kRows = 5, kCols = 33;
  const auto x = RandomFloats(kRows * kCols, 20), gate = RandomFloats(kRows * kCols, 21);
  for (const DType dtype : kComputeTypes) {
    const TestMatrix matrix(dtype, kRows, kCols, x);
    for (const GateForm form : {GateForm::kSigmoid, GateForm::kSilu}) {
      std::vector<float> y(x.size());
      GateRows(ops, matrix, gate.data(), form, y.data());
      for (size_t i = 0; i < x.size(); ++i) {
        const double factor = SigmoidF64(gate[i]) * (form == GateForm::kSilu ? gate[i] : 1.0);
        EXPECT_NEAR(y[i], x[i] * factor, dtype == DType::kF32 ? 1e-6 : 2e-2);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tables, RecurrenceTest, testing::ValuesIn(AllTables()), TableName);

}  // namespace
}  // namespace tandem::engine
