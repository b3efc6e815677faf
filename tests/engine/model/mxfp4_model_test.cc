// A checkpoint as published in 2025: dense parts as floats, experts in blocks of MXFP4.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/formats/model_dir.h"
#include "engine/model/model.h"
#include "tests/engine/model/same_bits.h"
#include "tests/support/model_harness.h"
#include "tests/support/mxfp4_checkpoint.h"

namespace tandem::engine {
namespace {

class Mxfp4ModelTest : public ::testing::Test {
 protected:
  tests::Mxfp4Checkpoint model_;
};

std::vector<TokenId> Mxfp4Tokens() {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 45; ++i) tokens.push_back(i * 29 % 250);
  return tokens;
}

TEST_F(Mxfp4ModelTest, ExpertsAreServedWithTheNumbersOfTheFile) {
  ThreadPool pool(2);
  OpsContext ops(Kernels(), pool);
  const auto model = Model::Load(ModelDir::Open(model_.blocks()), {}, ops);
  const ModelDir decoded = ModelDir::Open(model_.decoded());
  int n_experts = 0;
  for (const Weight& weight : model->weights()) {
    if (weight.spec->kind == WeightKind::kVector) continue;
    const bool is_expert = weight.spec->name.find(".experts.") != std::string::npos;
    ASSERT_EQ(weight.panels.block, is_expert ? BlockFormat::kMxfp4 : BlockFormat::kNone)
        << weight.spec->name;
    if (!is_expert) continue;
    ++n_experts;
    std::vector<float> unpacked(static_cast<size_t>(weight.spec->n * weight.spec->k));
    UnpackPanels(weight.panels, unpacked.data());
    EXPECT_TRUE(SameBits(unpacked, DecodeTensor(*decoded.FindStored(weight.spec->name))))
        << weight.spec->name;
  }
  EXPECT_EQ(n_experts, 3 * model_.config().n_layers * model_.config().experts.router.n_experts);
}

TEST_F(Mxfp4ModelTest, InF32ItIsTheModelOfItsDecodedNumbers) {
  tests::ModelHarness blocks(model_.blocks(), {.dtype = DType::kF32});
  tests::ModelHarness decoded(model_.decoded(), {.dtype = DType::kF32});
  EXPECT_TRUE(SameBits(blocks.Prefill(Mxfp4Tokens(), 0), decoded.Prefill(Mxfp4Tokens(), 0)));
}

TEST_F(Mxfp4ModelTest, BlocksGiveTheSameBitsInAnyChunksAndComeNearBf16) {
  for (const KernelTable* kernels : RunnableKernelTables()) {
    SCOPED_TRACE(kernels->key);
    tests::ModelHarness blocks(model_.blocks(), {.kernels = kernels, .n_threads = 2});
    const std::vector<float> whole = blocks.Prefill(Mxfp4Tokens(), 0);
    for (const size_t chunk : {1, 7, 16}) {
      EXPECT_TRUE(SameBits(blocks.Prefill(Mxfp4Tokens(), chunk), whole)) << "chunks of " << chunk;
    }
  }
  tests::ModelHarness blocks(model_.blocks(), {});
  tests::ModelHarness bf16(model_.blocks(), {.dtype = DType::kBF16});
  const std::vector<float> a = bf16.Prefill(Mxfp4Tokens(), 0), b = blocks.Prefill(Mxfp4Tokens(), 0);
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{a[i]}, 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.1);
}

TEST_F(Mxfp4ModelTest, AScaleThatIsNoNumberIsRefusedByNameInEveryType) {
  model_.SpoilScale();
  ThreadPool pool(1);
  OpsContext ops(Kernels(), pool);
  const std::vector<LoadOptions> all = {{},
                                        {.dtype = DType::kF32},
                                        {.dtype = DType::kBF16},
                                        {.block = BlockFormat::kInt8},
                                        {.block = BlockFormat::kInt4}};
  for (const LoadOptions& options : all) {
    SCOPED_TRACE(std::to_string(&options - all.data()));
    try {
      Model::Load(ModelDir::Open(model_.blocks()), options, ops);
      ADD_FAILURE() << "was loaded";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("model.layers.0.mlp.experts.0."), std::string::npos) << what;
    }
  }
}

}  // namespace
}  // namespace tandem::engine
