#include "training/ops/experts.h"

#include <algorithm>
#include <numeric>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"

namespace tandem::training {
namespace {

using engine::DType;
using engine::GroupScore;
using engine::RouterScore;
using engine::RouterSpec;

constexpr int64_t kRouted = 9;  // rows
constexpr int64_t kChoices = 6;
constexpr int64_t kTopK = 3;

// The weights of chosen experts in f64, as the formulas of RouterSpec state them.
Doubles RouterWeights(const RouterSpec& spec, const double* logits, const float* ids) {
  Doubles scores(static_cast<size_t>(spec.n_experts));
  double sum = 0;
  for (int64_t e = 0; e < spec.n_experts; ++e) {
    const bool sigmoid = spec.score == RouterScore::kSigmoid;
    scores[static_cast<size_t>(e)] = sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]);
    const bool counts = !spec.softmax_of_chosen ||
                        std::find(ids, ids + spec.top_k, static_cast<float>(e)) != ids + spec.top_k;
    if (!sigmoid && counts) sum += std::exp(logits[e]);
  }
  Doubles weights;
  for (int64_t s = 0; s < spec.top_k; ++s) {
    const double score = scores[static_cast<size_t>(ids[s])];
    weights.push_back(spec.score == RouterScore::kSigmoid ? score : score / sum);
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 1e-20);
  for (double& weight : weights) weight *= (spec.normalise ? 1 / total : 1) * spec.scale;
  return weights;
}

std::vector<RouterSpec> RouterSpecs() {
  std::vector<RouterSpec> specs;
  for (const bool normalise : {false, true}) {
    for (const float scale : {1.0f, 2.5f}) {
      RouterSpec spec{.n_experts = kChoices, .top_k = kTopK};
      spec.normalise = normalise;
      spec.scale = scale;
      specs.push_back(spec);
      spec.score = RouterScore::kSigmoid;
      specs.push_back(spec);
      spec.n_groups = 2;
      spec.top_groups = 1;
      spec.group_score = GroupScore::kTop2Sum;
      specs.push_back(spec);
    }
  }
  RouterSpec chosen{.n_experts = kChoices, .top_k = kTopK};
  chosen.softmax_of_chosen = true;
  specs.push_back(chosen);
  return specs;
}

TEST(RouteBackward, AgreesWithFiniteDifferencesForEveryRouter) {
  const Floats logits = RandomFloats(kRouted * kChoices, 1, 2);
  const Floats bias = RandomFloats(kChoices, 2);
  const Floats drouting = RandomFloats(kRouted * 2 * kTopK, 3);
  for (const RouterSpec& spec : RouterSpecs()) {
    for (const bool biased : {false, true}) {
      OnEveryTable([&](engine::OpsContext& ops) {
        Floats routing(kRouted * 2 * kTopK);
        const engine::Matrix routed{routing.data(), DType::kF32, kRouted, 2 * kTopK, 2 * kTopK};
        engine::Route(ops, logits.data(), kChoices, biased ? bias.data() : nullptr, spec, routed);
        const auto loss = [&](const Doubles& at) {
          double sum = 0;
          for (int64_t r = 0; r < kRouted; ++r) {
            const Doubles weights =
                RouterWeights(spec, at.data() + r * kChoices, routing.data() + r * 2 * kTopK);
            for (int64_t s = 0; s < kTopK; ++s) {
              sum += weights[static_cast<size_t>(s)] *
                     static_cast<double>(drouting[static_cast<size_t>((r * 2 + 1) * kTopK + s)]);
            }
          }
          return sum;
        };
        Floats dlogits(kRouted * kChoices);
        RouteBackward(ops, logits.data(), spec, routed, drouting.data(), dlogits.data());

        EXPECT_LT(RelativeError(dlogits, NumericGradient(loss, Widen(logits))), 1e-5);
      });
    }
  }
}

// A routing of random distinct experts; the last expert is never chosen.
Floats RandomRouting(int64_t rows, int64_t top_k, int64_t n_experts, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Floats routing = RandomFloats(rows * 2 * top_k, seed);
  std::vector<int64_t> ids(static_cast<size_t>(n_experts - 1));
  std::iota(ids.begin(), ids.end(), 0);
  for (int64_t r = 0; r < rows; ++r) {
    std::shuffle(ids.begin(), ids.end(), rng);
    for (int64_t s = 0; s < top_k; ++s) {
      routing[static_cast<size_t>(r * 2 * top_k + s)] =
          static_cast<float>(ids[static_cast<size_t>(s)]);
    }
  }
  return routing;
}

engine::ConstMatrix RoutingMatrix(const Floats& routing, int64_t rows, int64_t top_k) {
  return {routing.data(), DType::kF32, rows, 2 * top_k, 2 * top_k};
}

TEST(CombineBackward, AgreesWithFiniteDifferences) {
  constexpr int64_t kCols = 21;
  const Floats routing = RandomRouting(kRouted, kTopK, kChoices, 4);
  const Floats y = RandomFloats(kRouted * kTopK * kCols, 5);
  const Floats dout = RandomFloats(kRouted * kCols, 6);
  const auto loss = [&](const Doubles& y_at, const Doubles& weights) {
    double sum = 0;
    for (int64_t r = 0; r < kRouted; ++r) {
      for (int64_t s = 0; s < kTopK; ++s) {
        for (int64_t i = 0; i < kCols; ++i) {
          sum += weights[static_cast<size_t>((r * 2 + 1) * kTopK + s)] *
                 y_at[static_cast<size_t>((r * kTopK + s) * kCols + i)] *
                 static_cast<double>(dout[static_cast<size_t>(r * kCols + i)]);
        }
      }
    }
    return sum;
  };
  const Doubles want_dy =
      NumericGradient([&](const Doubles& at) { return loss(at, Widen(routing)); }, Widen(y));
  const Doubles want_drouting =
      NumericGradient([&](const Doubles& at) { return loss(Widen(y), at); }, Widen(routing));

  OnEveryTable([&](engine::OpsContext& ops) {
    for (const bool accumulate : {false, true}) {
      Floats dy(y.size(), accumulate ? 0.0f : 7.0f);
      Floats drouting(routing.size());
      CombineBackward(ops, y.data(), RoutingMatrix(routing, kRouted, kTopK), dout.data(), kCols,
                      dy.data(), accumulate, drouting.data());

      EXPECT_LT(RelativeError(dy, want_dy), 1e-5);
      EXPECT_LT(RelativeError(drouting, want_drouting), 1e-5);
    }
  });
}

// A projection of all experts with random values.
struct ExpertCase {
  int64_t rows, top_k, n_experts, n, k;
  bool shared;
  Floats routing, x, w, dy;

  ExpertCase(int64_t r, int64_t top, int64_t experts, int64_t out, int64_t in, bool one_input)
      : rows(r),
        top_k(top),
        n_experts(experts),
        n(out),
        k(in),
        shared(one_input),
        routing(RandomRouting(r, top, experts, 7)),
        x(RandomFloats(r * (one_input ? 1 : top) * in, 8)),
        w(RandomFloats(experts * out * in, 9)),
        dy(RandomFloats(r * top * out, 10)) {}

  int64_t input_cols() const { return shared ? k : top_k * k; }

  // Of sum(dy * y); `bias` may be empty.
  double Loss(const Doubles& x_at, const Doubles& w_at, const Doubles& bias) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < top_k; ++s) {
        const auto e = static_cast<int64_t>(routing[static_cast<size_t>(r * 2 * top_k + s)]);
        const double* row = x_at.data() + r * input_cols() + (shared ? 0 : s * k);
        for (int64_t o = 0; o < n; ++o) {
          double y = bias.empty() ? 0 : bias[static_cast<size_t>(e * n + o)];
          for (int64_t i = 0; i < k; ++i) {
            y += row[i] * w_at[static_cast<size_t>((e * n + o) * k + i)];
          }
          sum += y * static_cast<double>(dy[static_cast<size_t>((r * top_k + s) * n + o)]);
        }
      }
    }
    return sum;
  }
};

struct ExpertGradients {
  Floats dx, dw, db;
};

// `first_row`, `count`: the rows that take part, for splitting a batch.
void RunExpertBackward(engine::OpsContext& ops, const ExpertCase& c, DType dtype, int64_t first_row,
                       int64_t count, ExpertGradients* g) {
  const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
  const int64_t cols = c.input_cols();
  const int64_t stride = engine::RowStride(dtype, cols);
  AlignedBuffer x(static_cast<size_t>(count * stride * width));
  const engine::Matrix rounded{x.data(), dtype, count, cols, stride};
  engine::RoundRows(ops, c.x.data() + first_row * cols, cols, rounded);
  const int64_t panel_bytes = engine::PanelBytes(dtype, c.n, c.k);
  AlignedBuffer panels(static_cast<size_t>(c.n_experts * panel_bytes));
  std::vector<engine::PanelMatrix> weights;
  for (int64_t e = 0; e < c.n_experts; ++e) {
    const auto* source = reinterpret_cast<const std::byte*>(c.w.data() + e * c.n * c.k);
    std::byte* own = panels.data() + e * panel_bytes;
    engine::PackPanels(ops, {source, DType::kF32, {c.n, c.k}}, engine::SourceLayout::kOutIn, c.n,
                       c.k, dtype, own);
    weights.push_back({own, dtype, c.n, c.k});
  }
  ExpertLinearGradient gradient;
  gradient.x = rounded;
  gradient.routing = {c.routing.data() + first_row * 2 * c.top_k, DType::kF32, count, 2 * c.top_k,
                      2 * c.top_k};
  gradient.n_experts = c.n_experts;
  gradient.n = c.n;
  gradient.k = c.k;
  gradient.dy = c.dy.data() + first_row * c.top_k * c.n;
  gradient.weight = [&](int64_t e) -> const engine::PanelMatrix& {
    return weights[static_cast<size_t>(e)];
  };
  gradient.dw = [&](int64_t e) { return g->dw.data() + e * c.n * c.k; };
  gradient.db = [&](int64_t e) { return g->db.data() + e * c.n; };
  gradient.dx = g->dx.data() + first_row * cols;
  AlignedBuffer scratch(
      static_cast<size_t>(ExpertGradientScratch(dtype, count, c.top_k, c.n_experts, c.n, c.k)));
  ExpertLinearBackward(ops, gradient, scratch.data());
}

ExpertGradients AllExpertGradients(engine::OpsContext& ops, const ExpertCase& c, DType dtype) {
  ExpertGradients g{Floats(c.x.size(), 99.0f), Floats(c.w.size()),
                    Floats(static_cast<size_t>(c.n_experts * c.n))};
  RunExpertBackward(ops, c, dtype, 0, c.rows, &g);
  return g;
}

TEST(ExpertLinearBackward, AgreesWithFiniteDifferences) {
  for (const bool shared : {true, false}) {
    const ExpertCase c(11, 2, 5, 7, 6, shared);
    const Doubles x = Widen(c.x);
    const Doubles w = Widen(c.w);
    const Doubles bias(static_cast<size_t>(c.n_experts * c.n), 0.5);
    const Doubles dx = NumericGradient([&](const Doubles& at) { return c.Loss(at, w, bias); }, x);
    const Doubles dw = NumericGradient([&](const Doubles& at) { return c.Loss(x, at, bias); }, w);
    const Doubles db = NumericGradient([&](const Doubles& at) { return c.Loss(x, w, at); }, bias);

    OnEveryTable([&](engine::OpsContext& ops) {
      const ExpertGradients f32 = AllExpertGradients(ops, c, DType::kF32);
      EXPECT_LT(RelativeError(f32.dx, dx), 1e-5);
      EXPECT_LT(RelativeError(f32.dw, dw), 1e-5);
      EXPECT_LT(RelativeError(f32.db, db), 1e-5);

      // bf16 has 8 bits: 2^-9 per rounding, over a few roundings.
      const ExpertGradients bf16 = AllExpertGradients(ops, c, DType::kBF16);
      EXPECT_LT(RelativeError(bf16.dx, dx), 2e-2);
      EXPECT_LT(RelativeError(bf16.dw, dw), 2e-2);
      EXPECT_LT(RelativeError(bf16.db, db), 1e-5);
    });
  }
}

TEST(ExpertLinearBackward, AnExpertWithoutRowsGetsNoGradient) {
  const ExpertCase c(11, 2, 5, 7, 6, true);
  OnEveryTable([&](engine::OpsContext& ops) {
    const ExpertGradients g = AllExpertGradients(ops, c, DType::kBF16);
    const auto last = static_cast<size_t>((c.n_experts - 1) * c.n);
    EXPECT_EQ(Floats(g.dw.begin() + static_cast<long>(last) * c.k, g.dw.end()),
              Floats(static_cast<size_t>(c.n * c.k)));
    EXPECT_EQ(Floats(g.db.begin() + static_cast<long>(last), g.db.end()),
              Floats(static_cast<size_t>(c.n)));
  });
}

// Rows of an expert span several blocks; the batch is cut between two of them.
TEST(ExpertLinearBackward, SplittingABatchAt1024RowsChangesNoBit) {
  for (const bool shared : {true, false}) {
    const ExpertCase c(2500, 2, 4, 9, 10, shared);
    OnEveryTable([&](engine::OpsContext& ops) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const ExpertGradients whole = AllExpertGradients(ops, c, dtype);
        ExpertGradients parts{Floats(c.x.size()), Floats(c.w.size()), Floats(whole.db.size())};
        RunExpertBackward(ops, c, dtype, 0, 1024, &parts);
        RunExpertBackward(ops, c, dtype, 1024, c.rows - 1024, &parts);

        EXPECT_EQ(parts.dx, whole.dx);
        EXPECT_EQ(parts.dw, whole.dw);
        EXPECT_EQ(parts.db, whole.db);
      }
    });
  }
}

TEST(ExpertLinearBackward, ThreadCountChangesNoBit) {
  const ExpertCase c(700, 3, 6, 33, 40, true);
  std::vector<ExpertGradients> results;
  for (int threads = 1; threads <= 3; ++threads) {
    ThreadPool pool(threads);
    engine::OpsContext ops(*engine::RunnableKernelTables().back(), pool);
    results.push_back(AllExpertGradients(ops, c, DType::kBF16));
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_EQ(results[i].dx, results[0].dx);
    EXPECT_EQ(results[i].dw, results[0].dw);
    EXPECT_EQ(results[i].db, results[0].db);
  }
}

}  // namespace
}  // namespace tandem::training
