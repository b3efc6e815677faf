// The output head over tiles of rows: sizes, memory, skipped rows.

#include <algorithm>

#include "engine/ops/rows.h"
#include "tests/training/ops/gradient_check.h"
#include "training/ops/cross_entropy.h"

namespace tandem::training {
namespace {

using engine::DType;

struct Head {
  int64_t rows;
  int64_t dim;
  int64_t vocab;
  DType dtype;
  int64_t stride = engine::RowStride(dtype, dim);
  AlignedBuffer hidden;
  AlignedBuffer panels;
  std::vector<TokenId> targets;
  Floats weights;

  Head(engine::OpsContext& ops, int64_t n_rows, int64_t n_dim, int64_t n_vocab, DType type)
      : rows(n_rows), dim(n_dim), vocab(n_vocab), dtype(type) {
    const Floats x = RandomFloats(rows * dim, 1);
    const Floats w = RandomFloats(vocab * dim, 2, 0.5f);
    hidden = AlignedBuffer(static_cast<size_t>(rows * stride) * engine::DTypeBytes(dtype));
    engine::RoundRows(ops, x.data(), dim, {hidden.data(), dtype, rows, dim, stride});
    panels = AlignedBuffer(static_cast<size_t>(engine::PanelBytes(dtype, vocab, dim)));
    engine::PackPanels(ops,
                       {reinterpret_cast<const std::byte*>(w.data()), DType::kF32, {vocab, dim}},
                       engine::SourceLayout::kOutIn, vocab, dim, dtype, panels.data());
    for (int64_t r = 0; r < rows; ++r) {
      targets.push_back(r % 7 == 3 ? -1 : static_cast<TokenId>(r * 31 % vocab));
      weights.push_back(r % 4 == 1 ? 0.0f : 0.5f + 0.25f * static_cast<float>(r % 3));
    }
  }

  CrossEntropyArgs Args(int64_t tile_rows) const {
    CrossEntropyArgs args;
    args.hidden = {hidden.data(), dtype, rows, dim, stride};
    args.head = {panels.data(), dtype, vocab, dim};
    args.targets = targets;
    args.weights = weights;
    args.scale = 1.0f / 64;
    args.tile_rows = tile_rows;
    return args;
  }
};

struct TiledOutcome {
  CrossEntropyResult result;
  Floats dhidden, dhead, logprobs;
};

TiledOutcome RunTiles(engine::OpsContext& ops, const Head& head, int64_t tile_rows, bool frozen) {
  TiledOutcome outcome;
  outcome.dhidden.resize(static_cast<size_t>(head.rows * head.dim));
  outcome.dhead.resize(static_cast<size_t>(head.vocab * head.dim));
  outcome.logprobs.resize(static_cast<size_t>(head.rows));
  CrossEntropyWorkspace workspace;
  outcome.result =
      CrossEntropy(ops, workspace, head.Args(tile_rows), outcome.dhidden.data(),
                   frozen ? nullptr : outcome.dhead.data(), nullptr, outcome.logprobs.data());
  return outcome;
}

TEST(CrossEntropyTiles, TheirSizeMovesNoBitOfLossesAndOfWhatFlowsOn) {
  OnEveryTable([](engine::OpsContext& ops) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const Head head(ops, 150, 24, 301, dtype);
      const TiledOutcome whole = RunTiles(ops, head, 0, false);
      for (const int64_t tile_rows : {1, 13, 64, 149}) {
        const TiledOutcome tiles = RunTiles(ops, head, tile_rows, false);
        EXPECT_EQ(tiles.result.weighted_loss, whole.result.weighted_loss) << tile_rows;
        EXPECT_EQ(tiles.result.weight, whole.result.weight);
        EXPECT_EQ(tiles.result.correct_weight, whole.result.correct_weight);
        EXPECT_EQ(tiles.logprobs, whole.logprobs) << tile_rows;
        EXPECT_EQ(tiles.dhidden, whole.dhidden) << tile_rows;
        EXPECT_LT(RelativeError(tiles.dhead, Widen(whole.dhead)), 1e-5) << tile_rows;
      }
    }
  });
}

// Every second row has its likeliest token as the target.
TEST(CrossEntropyTiles, TrainingCountsTheHitsThatEvaluationCounts) {
  OnEveryTable([](engine::OpsContext& ops) {
    for (const int64_t vocab : {1, 5, 255, 257, 1000}) {
      Head head(ops, 60, 24, vocab, DType::kF32);
      CrossEntropyWorkspace workspace;
      Floats logits(static_cast<size_t>(head.rows * vocab));
      const CrossEntropyArgs args = head.Args(0);
      engine::MatMul(ops, args.hidden, args.head, nullptr, logits.data(), vocab);
      double want = 0;
      for (int64_t r = 0; r < head.rows; ++r) {
        const auto i = static_cast<size_t>(r);
        const float* row = logits.data() + r * vocab;
        const auto likeliest = static_cast<TokenId>(std::max_element(row, row + vocab) - row);
        if (r % 2 == 0 && head.targets[i] >= 0) head.targets[i] = likeliest;
        if (head.targets[i] == likeliest) want += static_cast<double>(head.weights[i]);
      }
      const CrossEntropyResult evaluated =
          CrossEntropy(ops, workspace, head.Args(0), nullptr, nullptr, nullptr, nullptr);
      EXPECT_EQ(evaluated.correct_weight, want) << vocab;
      EXPECT_EQ(RunTiles(ops, head, 13, false).result.correct_weight, want) << vocab;
    }
  });
}

TEST(CrossEntropyTiles, OfEqualLogitsTheFirstIsTheHit) {
  OnEveryTable([](engine::OpsContext& ops) {
    for (const TokenId target : {0, 1, 299}) {
      Head head(ops, 4, 8, 300, DType::kF32);
      std::fill_n(head.hidden.as<float>(), 4 * head.stride, 0.0f);  // all logits are zero
      head.targets.assign(4, target);
      head.weights.assign(4, 1.0f);
      EXPECT_EQ(RunTiles(ops, head, 0, false).result.correct_weight, target == 0 ? 4 : 0);
    }
  });
}

TEST(CrossEntropyTiles, AFrozenHeadGetsNoGradientAndTheOthersStayAsTheyWere) {
  OnEveryTable([](engine::OpsContext& ops) {
    const Head head(ops, 40, 16, 99, DType::kBF16);
    const TiledOutcome trained = RunTiles(ops, head, 0, false);
    const TiledOutcome frozen = RunTiles(ops, head, 0, true);
    EXPECT_EQ(frozen.dhidden, trained.dhidden);
    EXPECT_EQ(frozen.result.weighted_loss, trained.result.weighted_loss);
    EXPECT_EQ(frozen.dhead, Floats(frozen.dhead.size(), 0.0f));
  });
}

// Gemma's vocabulary: the whole logits of these rows would take 560 MiB, and their gradient as much
// again.
TEST(CrossEntropyTiles, AVocabularyOf256kStaysWithin256MiB) {
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Head head(ops, 560, 8, 256000, dtype);
    CrossEntropyWorkspace workspace;
    Floats dhidden(static_cast<size_t>(head.rows * head.dim));
    const CrossEntropyResult result =
        CrossEntropy(ops, workspace, head.Args(0), dhidden.data(), nullptr, nullptr, nullptr);
    EXPECT_GT(result.weight, 0);
    EXPECT_LE(workspace.bytes(), kCrossEntropyBytes);
    EXPECT_GT(workspace.bytes(), kCrossEntropyBytes / 4);  // tiles are not needlessly small
  }
}

// Untrained rows are removed before the product: with one trained row the workspace is that of one
// row.
TEST(CrossEntropyTiles, UntrainedRowsTakeNoPartInTheProduct) {
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  Head head(ops, 64, 8, 5000, DType::kF32);
  std::fill(head.weights.begin(), head.weights.end(), 0.0f);
  head.weights[9] = 1;
  CrossEntropyWorkspace workspace;
  Floats dhidden(static_cast<size_t>(head.rows * head.dim));
  CrossEntropy(ops, workspace, head.Args(0), dhidden.data(), nullptr, nullptr, nullptr);
  EXPECT_EQ(workspace.logits.size(), 5000 * sizeof(float));
}

}  // namespace
}  // namespace tandem::training
