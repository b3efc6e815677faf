// Seam S1 for adapters of experts and routers on quantised experts (QLoRA): int8, int4, and the
// MXFP4 of a published checkpoint.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "tests/seams/trained_adapter.h"
#include "tests/support/mxfp4_checkpoint.h"

namespace tandem {
namespace {

using engine::BlockFormat;

constexpr const char* kEveryLinearLayer = ".*";  // with routers, which only an expression names

// Whether all experts are in such blocks, and the adapter of every linear layer has them and the
// routers.
void ExpectQuantisedExperts(const std::filesystem::path& model, const engine::LoadOptions& load,
                            BlockFormat block) {
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  const auto base = engine::Model::Load(engine::ModelDir::Open(model), load, ops);
  training::LoraOptions options;
  options.module_path = kEveryLinearLayer;
  const auto targets = training::ChooseLoraTargets(options, base->family(), base->config());
  const auto is_target = [&](int32_t weight) {
    return std::ranges::any_of(targets, [&](const auto& one) { return one.weight == weight; });
  };
  int64_t n_experts = 0;
  for (const engine::Weight& weight : base->weights()) {
    const std::string& name = weight.spec->name;
    if (weight.spec->kind == engine::WeightKind::kVector) continue;
    if (name.find(".experts.") == std::string::npos) continue;
    EXPECT_EQ(weight.panels.block, block) << name;
    EXPECT_TRUE(is_target(weight.index)) << name;
    ++n_experts;
  }
  EXPECT_GE(n_experts, 2 * base->config().experts.router.n_experts);
  const auto routers = engine::RouterWeights(base->family(), base->config(), base->weight_specs());
  EXPECT_GT(std::ranges::count_if(
                targets, [&](const auto& one) { return routers[static_cast<size_t>(one.weight)]; }),
            0);
}

class QuantisedExperts : public testing::TestWithParam<std::string> {};

TEST_P(QuantisedExperts, AdaptersAreServedAsTrained) {
  const tests::TemporaryDir dir;
  const auto model = dir.path() / "model";
  bench::WriteRandomModel({.config = bench::TinyModelConfig(GetParam())}, model);
  for (const BlockFormat block : {BlockFormat::kInt8, BlockFormat::kInt4}) {
    SCOPED_TRACE(engine::BlockFormatName(block));
    const engine::LoadOptions load{.dtype = engine::DType::kBF16, .block = block};
    ExpectQuantisedExperts(model, load, block);
    tests::ExpectTrainedAdapterIsServed(model, load, kEveryLinearLayer);
  }
}

std::vector<std::string> FamiliesWithExperts() {
  std::vector<std::string> names;
  for (const engine::FamilySpec* family : engine::Families()) {
    if (bench::TinyModelConfig(family->name).experts.router.n_experts > 1) {
      names.emplace_back(family->name);
    }
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, QuantisedExperts, testing::ValuesIn(FamiliesWithExperts()),
                         [](const auto& family) { return family.param; });

TEST(QuantisedExpertsOfAFile, InMxfp4AreServedAsTrained) {
  const tests::Mxfp4Checkpoint checkpoint;
  ExpectQuantisedExperts(checkpoint.blocks(), {}, BlockFormat::kMxfp4);
  tests::ExpectTrainedAdapterIsServed(checkpoint.blocks(), {}, kEveryLinearLayer);
}

}  // namespace
}  // namespace tandem
