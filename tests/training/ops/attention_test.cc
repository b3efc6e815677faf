#include "training/ops/attention.h"

#include <algorithm>
#include <cstring>

#include "engine/tensor/bfloat16.h"
#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

struct AttentionCase {
  engine::AttentionSpec spec;
  std::vector<Segment> segments;
  int64_t rows = 0;
  Floats q, k, v, dout;
  Floats sinks = {};  // by head; empty: none

  AttentionCase(int64_t heads, int64_t kv_heads, int64_t dim, std::vector<int64_t> lengths,
                int64_t window = 0, float soft_cap = 0, int64_t v_dim = 0) {
    spec = {.n_heads = heads,
            .n_kv_heads = kv_heads,
            .head_dim = dim,
            .v_head_dim = v_dim,
            .scale = 1 / std::sqrt(static_cast<float>(dim)),
            .window = window,
            .soft_cap = soft_cap};
    for (const int64_t length : lengths) {
      segments.push_back({rows, length});
      rows += length;
    }
    q = RandomFloats(rows * heads * dim, 1);
    k = RandomFloats(rows * kv_heads * dim, 2);
    v = RandomFloats(rows * kv_heads * spec.value_dim(), 3);
    dout = RandomFloats(rows * heads * spec.value_dim(), 4);
  }

  double Loss(const Doubles& q_at, const Doubles& k_at, const Doubles& v_at) const {
    return Loss(q_at, k_at, v_at, Widen(sinks));
  }

  double Loss(const Doubles& q_at, const Doubles& k_at, const Doubles& v_at,
              const Doubles& sinks_at) const {
    double loss = 0;
    const int64_t dim = spec.head_dim;
    const int64_t v_dim = spec.value_dim();
    for (const Segment& segment : segments) {
      for (int64_t h = 0; h < spec.n_heads; ++h) {
        const int64_t kv = h / (spec.n_heads / spec.n_kv_heads);
        for (int64_t i = 0; i < segment.n_rows; ++i) {
          const int64_t row = segment.first_row + i;
          int64_t first = spec.window > 0 ? std::max<int64_t>(0, i - spec.window + 1) : 0;
          if (spec.chunk > 0) first = i / spec.chunk * spec.chunk;
          Doubles p;
          double sum = sinks_at.empty() ? 0 : std::exp(sinks_at[h]);
          for (int64_t j = first; j <= i; ++j) {
            double s = 0;
            for (int64_t d = 0; d < dim; ++d) {
              s += q_at[(row * spec.n_heads + h) * dim + d] *
                   k_at[((segment.first_row + j) * spec.n_kv_heads + kv) * dim + d];
            }
            s *= spec.scale;
            if (spec.soft_cap > 0) s = spec.soft_cap * std::tanh(s / spec.soft_cap);
            p.push_back(std::exp(s));
            sum += p.back();
          }
          for (int64_t j = first; j <= i; ++j) {
            for (int64_t d = 0; d < v_dim; ++d) {
              loss += dout[(row * spec.n_heads + h) * v_dim + d] * p[j - first] / sum *
                      v_at[((segment.first_row + j) * spec.n_kv_heads + kv) * v_dim + d];
            }
          }
        }
      }
    }
    return loss;
  }
};

struct Gradients {
  Floats dq, dk, dv, dsinks;
};

// Forward and backward in f32, or in bf16 with inputs rounded first.
Gradients Backward(engine::OpsContext& ops, const AttentionCase& c, engine::DType dtype) {
  const int64_t q_cols = c.spec.n_heads * c.spec.head_dim;
  const int64_t k_cols = c.spec.n_kv_heads * c.spec.head_dim;
  const int64_t v_cols = c.spec.n_kv_heads * c.spec.value_dim();
  const size_t element = engine::DTypeBytes(dtype);
  const auto matrix = [&](AlignedBuffer& buffer, int64_t cols) {
    const int64_t stride = engine::RowStride(dtype, cols);
    buffer = AlignedBuffer(static_cast<size_t>(c.rows * stride) * element);
    return engine::Matrix{buffer.data(), dtype, c.rows, cols, stride};
  };
  AlignedBuffer buffers[4];
  const engine::Matrix q = matrix(buffers[0], q_cols);
  const engine::Matrix k = matrix(buffers[1], k_cols);
  const engine::Matrix v = matrix(buffers[2], v_cols);
  const engine::Matrix out = matrix(buffers[3], c.spec.n_heads * c.spec.value_dim());
  engine::RoundRows(ops, c.q.data(), q_cols, q);
  engine::RoundRows(ops, c.k.data(), k_cols, k);
  engine::RoundRows(ops, c.v.data(), v_cols, v);
  AlignedBuffer kv(static_cast<size_t>(
      AttentionScratchBytes(c.spec, dtype, c.rows, static_cast<int64_t>(c.segments.size()))));
  Floats lse(c.rows * c.spec.n_heads);
  const float* sinks = c.sinks.empty() ? nullptr : c.sinks.data();
  AttentionForward(ops, c.spec, q, k, v, c.segments, kv.data(), out, lse.data(), sinks);
  Gradients g{Floats(c.q.size()), Floats(c.k.size()), Floats(c.v.size()), Floats(c.sinks.size())};
  AttentionBackward(ops, c.spec, q, k, v, out, lse.data(), c.dout.data(), c.segments, g.dq.data(),
                    g.dk.data(), g.dv.data());
  if (sinks != nullptr) {
    SinkBackward(ops, c.spec, sinks, out, lse.data(), c.dout.data(), g.dsinks.data());
  }
  return g;
}

void ExpectGradients(const AttentionCase& c) {
  const Doubles q = Widen(c.q);
  const Doubles k = Widen(c.k);
  const Doubles v = Widen(c.v);
  const Doubles want_dq = NumericGradient([&](const Doubles& at) { return c.Loss(at, k, v); }, q);
  const Doubles want_dk = NumericGradient([&](const Doubles& at) { return c.Loss(q, at, v); }, k);
  const Doubles want_dv = NumericGradient([&](const Doubles& at) { return c.Loss(q, k, at); }, v);

  const Doubles want_dsinks =
      NumericGradient([&](const Doubles& at) { return c.Loss(q, k, v, at); }, Widen(c.sinks));

  OnEveryTable([&](engine::OpsContext& ops) {
    const Gradients f32 = Backward(ops, c, engine::DType::kF32);
    EXPECT_LT(RelativeError(f32.dsinks, want_dsinks), 1e-5);
    EXPECT_LT(RelativeError(f32.dq, want_dq), 1e-5);
    EXPECT_LT(RelativeError(f32.dk, want_dk), 1e-5);
    EXPECT_LT(RelativeError(f32.dv, want_dv), 1e-5);

    // bf16 has 8 bits: 2^-9 per rounding, over a few roundings.
    const Gradients bf16 = Backward(ops, c, engine::DType::kBF16);
    EXPECT_LT(RelativeError(bf16.dq, want_dq), 2e-2);
    EXPECT_LT(RelativeError(bf16.dk, want_dk), 2e-2);
    EXPECT_LT(RelativeError(bf16.dv, want_dv), 2e-2);
    EXPECT_LT(RelativeError(bf16.dsinks, want_dsinks), 2e-2);
  });
}

TEST(AttentionBackward, AgreesWithFiniteDifferences) {
  ExpectGradients(AttentionCase(2, 2, 8, {9}));
}
TEST(AttentionBackward, GroupedHeadsAndPackedSegments) {
  ExpectGradients(AttentionCase(4, 2, 12, {5, 1, 11}));
}
TEST(AttentionBackward, Window) { ExpectGradients(AttentionCase(2, 1, 8, {13}, 4)); }
TEST(AttentionBackward, ValuesNarrowerAndWiderThanKeys) {
  ExpectGradients(AttentionCase(4, 2, 12, {5, 11}, 0, 0, 7));
  ExpectGradients(AttentionCase(2, 1, 6, {13}, 4, 0, 10));
}
TEST(AttentionBackward, WideHeadsWithSinks) {
  AttentionCase c(1, 1, 40, {5}, 0, 0, 1024);
  c.sinks = RandomFloats(1, 5);
  ExpectGradients(c);
}
TEST(AttentionBackward, SoftCap) { ExpectGradients(AttentionCase(2, 1, 8, {10}, 0, 2.0f)); }

TEST(AttentionBackward, RowsOfAChunkGiveNoGradientToKeysOfAnother) {
  AttentionCase c(4, 2, 6, {35, 7, 19});
  c.spec.chunk = 16;
  ExpectGradients(c);
}

TEST(AttentionBackward, SinksWithGroupedHeadsPackedSegmentsAndAWindow) {
  for (const int64_t window : {0, 4}) {
    AttentionCase c(4, 2, 12, {5, 1, 11}, window);
    c.sinks = {-1.5f, 0.25f, 1.0f, 3.0f};
    ExpectGradients(c);
  }
}

// Longer than a query block and a key chunk, with ragged ends: every path of the blocking. Too
// large for finite differences, so f32 tables are compared with each other.
TEST(AttentionBackward, LongSegmentsAgreeBetweenTables) {
  const AttentionCase c(2, 1, 20, {300, 131, 128});
  std::vector<Gradients> results;
  OnEveryTable(
      [&](engine::OpsContext& ops) { results.push_back(Backward(ops, c, engine::DType::kF32)); });
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_LT(RelativeError(results[i].dq, Widen(results[0].dq)), 1e-5);
    EXPECT_LT(RelativeError(results[i].dk, Widen(results[0].dk)), 1e-5);
    EXPECT_LT(RelativeError(results[i].dv, Widen(results[0].dv)), 1e-5);
  }
}

// More keys than exist as scores at a time, in both dtypes.
TEST(AttentionBackward, SegmentsOfSeveralGroupsOfKeysAgreeBetweenDTypes) {
  const AttentionCase c(2, 1, 20, {611, 257});
  OnEveryTable([&](engine::OpsContext& ops) {
    const Gradients want = Backward(ops, c, engine::DType::kF32);
    const Gradients got = Backward(ops, c, engine::DType::kBF16);
    EXPECT_LT(RelativeError(got.dq, Widen(want.dq)), 2e-2);
    EXPECT_LT(RelativeError(got.dk, Widen(want.dk)), 2e-2);
    EXPECT_LT(RelativeError(got.dv, Widen(want.dv)), 2e-2);
  });
}

// The rows of a document alone, at positions from 0.
AttentionCase Document(const AttentionCase& c, const Segment& segment) {
  AttentionCase alone(c.spec.n_heads, c.spec.n_kv_heads, c.spec.head_dim, {segment.n_rows});
  const auto cut = [&](const Floats& from, int64_t cols, Floats& to) {
    std::copy_n(from.begin() + segment.first_row * cols, segment.n_rows * cols, to.begin());
  };
  const int64_t q_cols = c.spec.n_heads * c.spec.head_dim;
  cut(c.q, q_cols, alone.q);
  cut(c.dout, q_cols, alone.dout);
  cut(c.k, c.spec.n_kv_heads * c.spec.head_dim, alone.k);
  cut(c.v, c.spec.n_kv_heads * c.spec.head_dim, alone.v);
  return alone;
}

// Documents of a packed row neither see each other nor share a sum: each costs and gives what it
// would alone. One is longer than a strip of queries.
TEST(AttentionBackward, DocumentsOfAPackedRowHaveTheBitsOfEachAlone) {
  const AttentionCase c(2, 1, 16, {3, 1300, 40, 600});
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  for (const engine::DType dtype : {engine::DType::kF32, engine::DType::kBF16}) {
    const Gradients packed = Backward(ops, c, dtype);
    for (const Segment& segment : c.segments) {
      const Gradients alone = Backward(ops, Document(c, segment), dtype);
      const auto expect_equal = [&](const Floats& all, const Floats& part) {
        const int64_t cols = static_cast<int64_t>(all.size()) / c.rows;
        EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + segment.first_row * cols));
      };
      expect_equal(packed.dq, alone.dq);
      expect_equal(packed.dk, alone.dk);
      expect_equal(packed.dv, alone.dv);
    }
  }
}

// Several strips of queries, tiles of keys that begin before a block's window, and ragged ends.
TEST(AttentionBackward, SegmentsOfSeveralStripsAgreeBetweenTables) {
  struct Form {
    int64_t window, chunk, v_dim;
    float soft_cap;
  };
  for (const auto& [window, chunk, v_dim, soft_cap] :
       {Form{0, 0, 0, 0}, Form{200, 0, 12, 0}, Form{0, 592, 0, 0}, Form{0, 0, 28, 2.0f}}) {
    AttentionCase c(2, 1, 20, {1301, 700}, window, soft_cap, v_dim);
    c.spec.chunk = chunk;
    SCOPED_TRACE("window " + std::to_string(window) + ", chunk " + std::to_string(chunk));
    std::vector<Gradients> results;
    OnEveryTable([&](engine::OpsContext& ops) {
      results.push_back(Backward(ops, c, engine::DType::kF32));
      results.push_back(Backward(ops, c, engine::DType::kBF16));
    });
    for (size_t i = 1; i < results.size(); ++i) {
      const double bound = i % 2 == 0 ? 1e-5 : 2e-2;
      EXPECT_LT(RelativeError(results[i].dq, Widen(results[0].dq)), bound);
      EXPECT_LT(RelativeError(results[i].dk, Widen(results[0].dk)), bound);
      EXPECT_LT(RelativeError(results[i].dv, Widen(results[0].dv)), bound);
    }
  }
}

// An odd number of rows once read a column of scratch that nothing had written.
TEST(AttentionBackward, NumbersLeftInScratchChangeNoBit) {
  const AttentionCase c(2, 1, 10, {131, 7});
  for (const engine::DType dtype : {engine::DType::kF32, engine::DType::kBF16}) {
    OnEveryTable([&](engine::OpsContext& ops) {
      const auto bytes = static_cast<size_t>(AttentionBackwardScratchBytes(c.spec, dtype, 131));
      const auto fill = [&](int value) {
        for (int worker = 0; worker < ops.pool().n_threads(); ++worker) {
          std::memset(ops.WorkerScratch(worker, bytes), value, bytes);
        }
      };
      fill(0);
      const Gradients want = Backward(ops, c, dtype);
      fill(0xff);  // NaN
      const Gradients got = Backward(ops, c, dtype);
      EXPECT_EQ(got.dq, want.dq);
      EXPECT_EQ(got.dk, want.dk);
      EXPECT_EQ(got.dv, want.dv);
    });
  }
}

TEST(AttentionBackward, DirectionalDerivativeOfALongSegment) {
  const AttentionCase c(1, 1, 8, {270});
  const Doubles q = Widen(c.q);
  const Doubles k = Widen(c.k);
  const Doubles v = Widen(c.v);
  const Doubles direction = Widen(RandomFloats(static_cast<int64_t>(k.size()), 9));
  constexpr double kStep = 1e-5;
  const auto at = [&](double step) {
    Doubles moved_q = q;
    Doubles moved_k = k;
    Doubles moved_v = v;
    for (size_t i = 0; i < k.size(); ++i) {
      moved_q[i] += step * direction[i];
      moved_k[i] -= step * direction[i];
      moved_v[i] += 2 * step * direction[i];
    }
    return c.Loss(moved_q, moved_k, moved_v);
  };
  const double want = (at(kStep) - at(-kStep)) / (2 * kStep);

  OnEveryTable([&](engine::OpsContext& ops) {
    const Gradients g = Backward(ops, c, engine::DType::kF32);
    double got = 0;
    for (size_t i = 0; i < k.size(); ++i) {
      got += direction[i] * (g.dq[i] - g.dk[i] + 2.0 * g.dv[i]);
    }
    EXPECT_NEAR(got, want, 1e-4 * std::abs(want) + 1e-4);
  });
}

TEST(AttentionBackward, ThreadCountChangesNoBit) {
  AttentionCase c(4, 2, 16, {70, 33, 140});
  c.sinks = {0.5f, -1.0f, 2.0f, 0.0f};
  std::vector<Gradients> results;
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    results.push_back(Backward(ops, c, engine::DType::kBF16));
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].dq, results[0].dq);
    EXPECT_EQ(results[i].dk, results[0].dk);
    EXPECT_EQ(results[i].dv, results[0].dv);
    EXPECT_EQ(results[i].dsinks, results[0].dsinks);
  }
}

}  // namespace
}  // namespace tandem::training
