// Attention over one sample of 8,192 tokens: gradients compared with the plain formula in f64.

#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"
#include "training/ops/attention.h"

namespace tandem::training {
namespace {

constexpr int64_t kHeadDim = 8;

struct LongSample {
  int64_t rows;
  engine::AttentionSpec spec;
  Floats q, k, v, dout;

  explicit LongSample(int64_t n, int64_t window = 0) : rows(n) {
    spec = {.n_heads = 1, .n_kv_heads = 1, .head_dim = kHeadDim, .window = window};
    spec.scale = 1 / std::sqrt(static_cast<float>(kHeadDim));
    q = RandomFloats(rows * kHeadDim, 1);
    k = RandomFloats(rows * kHeadDim, 2);
    v = RandomFloats(rows * kHeadDim, 3);
    dout = RandomFloats(rows * kHeadDim, 4);
  }
};

struct FlashGradients {
  Floats dq, dk, dv;
};

FlashGradients Flash(engine::OpsContext& ops, LongSample& s) {
  const auto matrix = [&](Floats& x) {
    return engine::Matrix{x.data(), engine::DType::kF32, s.rows, kHeadDim, kHeadDim};
  };
  const std::vector<Segment> segments = {{0, s.rows}};
  Floats out(s.q.size());
  Floats lse(static_cast<size_t>(s.rows));
  AlignedBuffer kv(
      static_cast<size_t>(AttentionScratchBytes(s.spec, engine::DType::kF32, s.rows, 1)));
  FlashGradients g{Floats(s.q.size()), Floats(s.q.size()), Floats(s.q.size())};
  AttentionForward(ops, s.spec, matrix(s.q), matrix(s.k), matrix(s.v), segments, kv.data(),
                   matrix(out), lse.data());
  AttentionBackward(ops, s.spec, matrix(s.q), matrix(s.k), matrix(s.v), matrix(out), lse.data(),
                    s.dout.data(), segments, g.dq.data(), g.dk.data(), g.dv.data());
  return g;
}

double Dot(const float* a, const float* b) {
  double sum = 0;
  for (int64_t d = 0; d < kHeadDim; ++d) sum += static_cast<double>(a[d]) * b[d];
  return sum;
}

// The plain formula, one row of the score matrix at a time.
struct NaiveGradients {
  Doubles dq, dk, dv;

  explicit NaiveGradients(const LongSample& s) : dq(s.q.size()), dk(s.q.size()), dv(s.q.size()) {
    Doubles p(static_cast<size_t>(s.rows)), dp(static_cast<size_t>(s.rows));
    for (int64_t i = 0; i < s.rows; ++i) AddRow(s, i, p, dp);
  }

  void AddRow(const LongSample& s, int64_t i, Doubles& p, Doubles& dp) {
    const int64_t first = s.spec.window > 0 ? std::max<int64_t>(0, i - s.spec.window + 1) : 0;
    double sum = 0;
    for (int64_t j = first; j <= i; ++j) {
      p[j] = std::exp(Dot(&s.q[i * kHeadDim], &s.k[j * kHeadDim]) * s.spec.scale);
      sum += p[j];
    }
    double delta = 0;
    for (int64_t j = first; j <= i; ++j) {
      p[j] /= sum;
      dp[j] = Dot(&s.dout[i * kHeadDim], &s.v[j * kHeadDim]);
      delta += p[j] * dp[j];
    }
    for (int64_t j = first; j <= i; ++j) {
      const double ds = p[j] * (dp[j] - delta) * s.spec.scale;
      for (int64_t d = 0; d < kHeadDim; ++d) {
        dq[i * kHeadDim + d] += ds * s.k[j * kHeadDim + d];
        dk[j * kHeadDim + d] += ds * s.q[i * kHeadDim + d];
        dv[j * kHeadDim + d] += p[j] * s.dout[i * kHeadDim + d];
      }
    }
  }
};

TEST(LongAttention, GradientsOf8192TokensAreThoseOfTheWholeSquare) {
  LongSample sample(8192);
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  const FlashGradients got = Flash(ops, sample);
  const NaiveGradients want(sample);
  EXPECT_LT(RelativeError(got.dq, want.dq), 1e-5);
  EXPECT_LT(RelativeError(got.dk, want.dk), 1e-5);
  EXPECT_LT(RelativeError(got.dv, want.dv), 1e-5);
}

// Chunks of keys before every window of a block of queries are skipped whole.
TEST(LongAttention, GradientsWithAWindowAreThoseOfTheBand) {
  for (const auto& [rows, window] :
       {std::pair{1101, 2}, {1101, 24}, {1024, 128}, {1103, 130}, {1030, 700}, {900, 900}}) {
    LongSample sample(rows, window);
    const NaiveGradients want(sample);
    OnEveryTable([&, rows = rows, window = window](engine::OpsContext& ops) {
      const FlashGradients got = Flash(ops, sample);
      EXPECT_LT(RelativeError(got.dq, want.dq), 1e-5) << rows << " " << window;
      EXPECT_LT(RelativeError(got.dk, want.dk), 1e-5) << rows << " " << window;
      EXPECT_LT(RelativeError(got.dv, want.dv), 1e-5) << rows << " " << window;
    });
  }
}

// 128 rows of scores at a time for any length: memory is not quadratic.
TEST(LongAttention, ScratchOfTheBackwardPassIsLinearInTheRows) {
  const engine::AttentionSpec spec = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 64};
  const auto bytes = [&](int64_t rows) {
    return AttentionBackwardScratchBytes(spec, engine::DType::kBF16, rows);
  };
  EXPECT_LT(bytes(32768), 100 << 20);
  EXPECT_LE(bytes(32768), 4 * bytes(8192));
  EXPECT_LE(bytes(1 << 20), 32 * bytes(32768));
}

}  // namespace
}  // namespace tandem::training
