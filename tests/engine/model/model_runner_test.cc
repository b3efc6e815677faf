#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "tests/engine/model/format_turns.h"
#include "tests/engine/model/same_bits.h"
#include "tests/support/families.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

// Load invariance: the logits of a sequence do not depend on how its rows are batched, bit for bit.

namespace tandem::engine {
namespace {

using tests::ModelHarness;
using Rows = ModelHarness::Rows;

std::vector<TokenId> RandomTokens(uint32_t seed, size_t n, int64_t vocab_size) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(n);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % static_cast<uint32_t>(vocab_size));
  }
  return tokens;
}

class LoadInvariance : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(GetParam());
    bench::WriteRandomModel(spec, model_dir());
  }
  std::filesystem::path model_dir() const { return dir_.path() / "model"; }

  template <class Check>
  void OnEveryTable(const Check& check) {
    const std::vector<std::string> names = tests::FamilyNames();
    const auto family =
        static_cast<size_t>(std::find(names.begin(), names.end(), GetParam()) - names.begin());
    for (const KernelTable* kernels : RunnableKernelTables()) {
      const ModelHarness::Options formats[] = {{.dtype = DType::kF32, .kernels = kernels},
                                               {.dtype = DType::kBF16, .kernels = kernels},
                                               {.block = BlockFormat::kInt8, .kernels = kernels},
                                               {.block = BlockFormat::kInt4, .kernels = kernels}};
      for (size_t i = 0; i < std::size(formats); ++i) {
        if (!HasTurn(family, *kernels, i, std::size(formats))) continue;
        SCOPED_TRACE(std::string(kernels->key) + " format " + std::to_string(i));
        check(formats[i]);
      }
    }
  }

  tests::TemporaryDir dir_;
};

TEST_P(LoadInvariance, PrefillInChunksGivesTheBitsOfPrefillAtOnce) {
  OnEveryTable([&](const ModelHarness::Options& options) {
    ModelHarness harness(model_dir(), options);
    const std::vector<TokenId> tokens = RandomTokens(1, 150, harness.vocab_size());
    const std::vector<float> whole = harness.Prefill(tokens, 0);

    for (const size_t chunk : {1, 13, 64, 149}) {
      EXPECT_TRUE(SameBits(harness.Prefill(tokens, chunk), whole)) << "chunk " << chunk;
    }
  });
}

TEST_P(LoadInvariance, NeighboursInTheBatchChangeNothing) {
  OnEveryTable([&](const ModelHarness::Options& options) {
    ModelHarness harness(model_dir(), options);
    const std::vector<TokenId> mine = RandomTokens(1, 90, harness.vocab_size());
    const std::vector<TokenId> first_part(mine.begin(), mine.begin() + 70);
    const std::vector<float> alone = harness.Prefill(mine, 0);
    const auto vocab = static_cast<size_t>(harness.vocab_size());

    // `me` is prefilled between two others, then decoded token by token during their prefill.
    ModelHarness::Sequence a, me, b;
    std::vector<float> logits = harness.Step({{&a, RandomTokens(2, 33, harness.vocab_size())},
                                              {&me, first_part},
                                              {&b, RandomTokens(3, 5, harness.vocab_size())}},
                                             Rows::kAll);
    std::vector<float> together(logits.begin() + static_cast<ptrdiff_t>(33 * vocab),
                                logits.begin() + static_cast<ptrdiff_t>(103 * vocab));
    for (size_t i = 70; i < mine.size(); ++i) {
      logits = harness.Step({{&b, RandomTokens(static_cast<uint32_t>(i), 1 + i % 3, 272)},
                             {&me, {mine[i]}},
                             {&a, RandomTokens(static_cast<uint32_t>(i), 1, 272)}},
                            Rows::kLastOfEach);
      together.insert(together.end(), logits.begin() + static_cast<ptrdiff_t>(vocab),
                      logits.begin() + static_cast<ptrdiff_t>(2 * vocab));
    }

    EXPECT_TRUE(SameBits(together, alone));
  });
}

TEST_P(LoadInvariance, TwoThreadsGiveTheBitsOfOne) {
  OnEveryTable([&](const ModelHarness::Options& options) {
    ModelHarness::Options two = options;
    two.n_threads = 2;
    ModelHarness harness(model_dir(), options), harness_of_two(model_dir(), two);
    const std::vector<TokenId> tokens = RandomTokens(4, 100, harness.vocab_size());

    EXPECT_TRUE(SameBits(harness.Prefill(tokens, 0), harness_of_two.Prefill(tokens, 0)));
    EXPECT_TRUE(SameBits(harness.Prefill(tokens, 1), harness_of_two.Prefill(tokens, 1)));
  });
}

TEST_P(LoadInvariance, AskingForFewerLogitRowsDoesNotChangeThem) {
  OnEveryTable([&](const ModelHarness::Options& options) {
    ModelHarness harness(model_dir(), options);
    const std::vector<TokenId> tokens = RandomTokens(5, 40, harness.vocab_size());
    const std::vector<float> all = harness.Prefill(tokens, 0);
    const auto vocab = static_cast<ptrdiff_t>(harness.vocab_size());

    ModelHarness::Sequence one, two;
    const std::vector<float> last =
        harness.Step({{&one, tokens}, {&two, tokens}}, Rows::kLastOfEach);

    EXPECT_TRUE(SameBits({last.begin(), last.begin() + vocab}, {all.end() - vocab, all.end()}));
    EXPECT_TRUE(SameBits({last.end() - vocab, last.end()}, {all.end() - vocab, all.end()}));
  });
}

INSTANTIATE_TEST_SUITE_P(Families, LoadInvariance, ::testing::ValuesIn(tests::FamilyNames()),
                         [](const auto& param_info) { return param_info.param; });

TEST(ModelRunner, AChunkWithoutLogitRowsStillFillsTheCache) {
  tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig()}, dir.path() / "model");
  ModelHarness harness(dir.path() / "model", {});
  const std::vector<TokenId> tokens = RandomTokens(1, 20, harness.vocab_size());
  const std::vector<float> whole = harness.Prefill(tokens, 0);
  KvCache kv(ModelRunner::KvShape(harness.model(), 2));
  ModelRunner runner(harness.shared_model(), harness.ops(), 32, 1);
  std::vector<int32_t> positions(20);
  for (int32_t i = 0; i < 20; ++i) positions[static_cast<size_t>(i)] = i;
  const std::vector<BlockId> blocks{BlockId{1}, BlockId{0}};
  const std::span<const TokenId> all(tokens);
  const std::span<const int32_t> all_positions(positions);

  const AttentionSlice head{.n_rows = 19, .first_position = 0, .blocks = blocks};
  const auto none = runner.Forward({.tokens = all.first(19),
                                    .positions = all_positions.first(19),
                                    .slices = {&head, 1},
                                    .logit_rows = {}},
                                   kv);
  const AttentionSlice tail{.n_rows = 1, .first_position = 19, .blocks = blocks};
  const int32_t row = 0;
  const auto logits = runner.Forward({.tokens = all.last(1),
                                      .positions = all_positions.last(1),
                                      .slices = {&tail, 1},
                                      .logit_rows = {&row, 1}},
                                     kv);

  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(
      SameBits({logits.begin(), logits.end()}, {whole.end() - harness.vocab_size(), whole.end()}));
}

TEST(ModelRunner, ABatchThatLiesIsOurBugAndWritesNothing) {
  tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig()}, dir.path() / "model");
  ModelHarness harness(dir.path() / "model", {});
  KvCache kv(ModelRunner::KvShape(harness.model(), 2));
  ModelRunner runner(harness.shared_model(), harness.ops(), 4, 4);
  const auto run = [&](std::vector<TokenId> tokens, std::vector<int32_t> positions,
                       std::vector<BlockId> blocks, std::vector<int32_t> logit_rows) {
    const AttentionSlice slice{.n_rows = static_cast<int64_t>(tokens.size()),
                               .first_position = positions.at(0),
                               .blocks = blocks};
    runner.Forward(
        {.tokens = tokens, .positions = positions, .slices = {&slice, 1}, .logit_rows = logit_rows},
        kv);
  };

  EXPECT_NO_THROW(run({1, 2}, {0, 1}, {BlockId{0}}, {1}));
  EXPECT_THROW(run({1, 2}, {0, 2}, {BlockId{0}}, {1}), Error) << "positions that jump";
  EXPECT_THROW(run({1, 272}, {0, 1}, {BlockId{0}}, {1}), Error) << "a token past the vocabulary";
  EXPECT_THROW(run({1, 2}, {0, 1}, {BlockId{2}}, {1}), Error) << "a block past the cache";
  EXPECT_THROW(run({1, 2}, {15, 16}, {BlockId{0}}, {1}), Error) << "a missing block";
  EXPECT_THROW(run({1, 2}, {255, 256}, std::vector<BlockId>(17), {1}), Error) << "past the context";
  EXPECT_THROW(run({1, 2}, {0, 1}, {BlockId{0}}, {1, 1}), Error) << "a logit row twice";
  EXPECT_THROW(run({1, 2, 3, 4, 5}, {0, 1, 2, 3, 4}, {BlockId{0}}, {}), Error) << "too many rows";
}

}  // namespace
}  // namespace tandem::engine
