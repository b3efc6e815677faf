#include "training/ops/recurrence.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

// Three segments; the longest has more rows than the backward pass keeps between two states.
const std::vector<Segment>& PackedTexts() {
  static const std::vector<Segment> segments = {{0, 7}, {7, 69}, {76, 1}};
  return segments;
}
constexpr int64_t kPackedRows = 77;

double SigmoidAt(double x) { return 1 / (1 + std::exp(-x)); }
double SoftplusAt(double x) { return std::log1p(std::exp(x)); }

// The gradient of every part in turn, by central differences; parts are f32 vectors.
template <class Loss>
std::vector<Doubles> NumericGradients(const Loss& loss, const std::vector<Floats>& parts) {
  std::vector<Doubles> wide;
  for (const Floats& part : parts) wide.push_back(Widen(part));
  std::vector<Doubles> gradients;
  for (size_t i = 0; i < parts.size(); ++i) {
    gradients.push_back(NumericGradient(
        [&](const Doubles& at) {
          std::vector<Doubles> all = wide;
          all[i] = at;
          return loss(all);
        },
        wide[i]));
  }
  return gradients;
}

TEST(RecurrenceBackward, ConvolutionsAgreeWithFiniteDifferences) {
  for (const engine::ConvForm form :
       {engine::ConvForm::kPlain, engine::ConvForm::kSilu, engine::ConvForm::kGated}) {
    const engine::ConvSpec spec{.channels = 3, .kernel = 4, .form = form};
    const int64_t in = spec.inputs();
    const std::vector<Floats> parts = {RandomFloats(kPackedRows * in, 1), RandomFloats(12, 2),
                                       RandomFloats(3, 3)};
    const Floats dy = RandomFloats(kPackedRows * 3, 4);
    const auto loss = [&](const std::vector<Doubles>& p) {
      double sum = 0;
      for (const Segment& segment : PackedTexts()) {
        for (int64_t t = 0; t < segment.n_rows; ++t) {
          for (int64_t c = 0; c < 3; ++c) {
            double y = p[2][static_cast<size_t>(c)];
            for (int64_t j = 0; j < 4; ++j) {
              if (t - 3 + j < 0) continue;
              const auto at = static_cast<size_t>((segment.first_row + t - 3 + j) * in + c);
              const double u =
                  form == engine::ConvForm::kGated ? p[0][at] * p[0][at + 6] : p[0][at];
              y += p[1][static_cast<size_t>(c * 4 + j)] * u;
            }
            if (form == engine::ConvForm::kSilu) y *= SigmoidAt(y);
            const int64_t row = segment.first_row + t;
            if (form == engine::ConvForm::kGated) y *= p[0][static_cast<size_t>(row * in + 3 + c)];
            sum += dy[static_cast<size_t>(row * 3 + c)] * y;
          }
        }
      }
      return sum;
    };
    const std::vector<Doubles> want = NumericGradients(loss, parts);

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dx(parts[0].size()), dw(12), dbias(3);
      CausalConvBackward(ops, spec, parts[0].data(), parts[1].data(), parts[2].data(), dy.data(),
                         PackedTexts(), dx.data(), dw.data(), dbias.data());
      EXPECT_LT(RelativeError(dx, want[0]), 1e-5);
      EXPECT_LT(RelativeError(dw, want[1]), 1e-5);
      EXPECT_LT(RelativeError(dbias, want[2]), 1e-5);
    });
  }
}

TEST(RecurrenceBackward, TheDeltaRuleAgreesWithFiniteDifferences) {
  const engine::DeltaSpec spec{.n_k_heads = 2, .n_v_heads = 4, .k_dim = 3, .v_dim = 2};
  const int64_t in = spec.inputs();
  const std::vector<Floats> parts = {
      RandomFloats(kPackedRows * in, 1), RandomFloats(kPackedRows * 4, 2),
      RandomFloats(kPackedRows * 4, 3), RandomFloats(4, 4), RandomFloats(4, 5)};
  const Floats dy = RandomFloats(kPackedRows * spec.outputs(), 6);
  const auto loss = [&](const std::vector<Doubles>& p) {
    double sum = 0;
    for (const Segment& segment : PackedTexts()) {
      for (int64_t head = 0; head < 4; ++head) {
        double s[3][2] = {};
        for (int64_t t = 0; t < segment.n_rows; ++t) {
          const int64_t row = segment.first_row + t;
          const double* q = p[0].data() + row * in + head / 2 * 3;
          const double* k = q + 6;
          const double* v = p[0].data() + row * in + 12 + head * 2;
          double qq = 1e-6, kk = 1e-6;
          for (int i = 0; i < 3; ++i) {
            qq += q[i] * q[i];
            kk += k[i] * k[i];
          }
          const auto h = static_cast<size_t>(head);
          const auto at = static_cast<size_t>(row * 4 + head);
          const double decay = std::exp(-std::exp(p[3][h]) * SoftplusAt(p[1][at] + p[4][h]));
          for (int c = 0; c < 2; ++c) {
            double known = 0, y = 0;
            for (int i = 0; i < 3; ++i) {
              s[i][c] *= decay;
              known += s[i][c] * k[i] / std::sqrt(kk);
            }
            const double delta = SigmoidAt(p[2][at]) * (v[c] - known);
            for (int i = 0; i < 3; ++i) {
              s[i][c] += k[i] / std::sqrt(kk) * delta;
              y += s[i][c] * q[i] / std::sqrt(3 * qq);
            }
            sum += dy[static_cast<size_t>(row * spec.outputs() + head * 2 + c)] * y;
          }
        }
      }
    }
    return sum;
  };
  const std::vector<Doubles> want = NumericGradients(loss, parts);

  OnEveryTable([&](engine::OpsContext& ops) {
    std::vector<Floats> got;
    for (const Floats& part : parts) got.emplace_back(part.size());
    GatedDeltaBackward(
        ops, spec,
        {parts[0].data(), parts[1].data(), parts[2].data(), parts[3].data(), parts[4].data()},
        dy.data(), PackedTexts(),
        {got[0].data(), got[1].data(), got[2].data(), got[3].data(), got[4].data()});
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_LT(RelativeError(got[i], want[i]), 2e-5) << "part " << i;
    }
  });
}

TEST(RecurrenceBackward, TheSelectiveScanAgreesWithFiniteDifferences) {
  const engine::ScanSpec spec{.n_heads = 4,
                              .head_dim = 2,
                              .n_groups = 2,
                              .state_dim = 3,
                              .least_dt = 0.3f,
                              .most_dt = 1.5f};
  const int64_t in = spec.inputs();
  const std::vector<Floats> parts = {RandomFloats(kPackedRows * in, 1),
                                     RandomFloats(kPackedRows * 4, 2), RandomFloats(4, 3),
                                     RandomFloats(4, 4), RandomFloats(4, 5)};
  const Floats dy = RandomFloats(kPackedRows * spec.outputs(), 6);
  const auto loss = [&](const std::vector<Doubles>& p) {
    double sum = 0;
    for (const Segment& segment : PackedTexts()) {
      for (int64_t head = 0; head < 4; ++head) {
        double s[3][2] = {};
        const auto h = static_cast<size_t>(head);
        for (int64_t t = 0; t < segment.n_rows; ++t) {
          const int64_t row = segment.first_row + t;
          const double* first = p[0].data() + row * in;
          const double* b = first + 8 + head / 2 * 3;
          const double* c = b + 6;
          const double raw = SoftplusAt(p[1][static_cast<size_t>(row * 4 + head)] + p[3][h]);
          const double dt = std::clamp(raw, double{spec.least_dt}, double{spec.most_dt});
          const double decay = std::exp(-std::exp(p[2][h]) * dt);
          for (int i = 0; i < 2; ++i) {
            const double x = first[head * 2 + i];
            double y = p[4][h] * x;
            for (int n = 0; n < 3; ++n) {
              s[n][i] = s[n][i] * decay + b[n] * dt * x;
              y += s[n][i] * c[n];
            }
            sum += dy[static_cast<size_t>(row * spec.outputs() + head * 2 + i)] * y;
          }
        }
      }
    }
    return sum;
  };
  const std::vector<Doubles> want = NumericGradients(loss, parts);

  OnEveryTable([&](engine::OpsContext& ops) {
    std::vector<Floats> got;
    for (const Floats& part : parts) got.emplace_back(part.size());
    SelectiveScanBackward(
        ops, spec,
        {parts[0].data(), parts[1].data(), parts[2].data(), parts[3].data(), parts[4].data()},
        dy.data(), PackedTexts(),
        {got[0].data(), got[1].data(), got[2].data(), got[3].data(), got[4].data()});
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_LT(RelativeError(got[i], want[i]), 2e-5) << "part " << i;
    }
  });
}

TEST(RecurrenceBackward, GatesAgreeWithFiniteDifferences) {
  constexpr int64_t kRows = 5, kCols = 7;
  const std::vector<Floats> parts = {RandomFloats(kRows * kCols, 1),
                                     RandomFloats(kRows * kCols, 2)};
  const Floats dy = RandomFloats(kRows * kCols, 3);
  for (const engine::GateForm form : {engine::GateForm::kSigmoid, engine::GateForm::kSilu}) {
    const auto loss = [&](const std::vector<Doubles>& p) {
      double sum = 0;
      for (size_t i = 0; i < dy.size(); ++i) {
        const double gate = p[1][i];
        sum += dy[i] * p[0][i] * SigmoidAt(gate) * (form == engine::GateForm::kSilu ? gate : 1);
      }
      return sum;
    };
    const std::vector<Doubles> want = NumericGradients(loss, parts);

    OnEveryTable([&](engine::OpsContext& ops) {
      Floats dx(dy.size()), dgate(dy.size());
      const engine::ConstMatrix x{parts[0].data(), engine::DType::kF32, kRows, kCols, kCols};
      GateRowsBackward(ops, x, parts[1].data(), form, dy.data(), dx.data(), dgate.data());
      EXPECT_LT(RelativeError(dx, want[0]), 1e-5);
      EXPECT_LT(RelativeError(dgate, want[1]), 1e-5);
    });
  }
}

TEST(RecurrenceBackward, ThreadCountChangesNoBit) {
  const engine::DeltaSpec spec{.n_k_heads = 4, .n_v_heads = 8, .k_dim = 9, .v_dim = 11};
  const Floats qkv = RandomFloats(kPackedRows * spec.inputs(), 1);
  const Floats a = RandomFloats(kPackedRows * 8, 2), b = RandomFloats(kPackedRows * 8, 3);
  const Floats a_log = RandomFloats(8, 4), dt_bias = RandomFloats(8, 5);
  const Floats dy = RandomFloats(kPackedRows * spec.outputs(), 6);
  const auto run = [&](int threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(engine::Kernels(), pool);
    Floats all(qkv.size() + a.size() + b.size() + 16);
    float* next = all.data();
    DeltaGradients out{};
    out.qkv = next;
    out.a = next + qkv.size();
    out.b = out.a + a.size();
    out.a_log = out.b + b.size();
    out.dt_bias = out.a_log + 8;
    GatedDeltaBackward(ops, spec, {qkv.data(), a.data(), b.data(), a_log.data(), dt_bias.data()},
                       dy.data(), PackedTexts(), out);
    return all;
  };
  const Floats one = run(1), three = run(3);
  EXPECT_EQ(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tandem::training
