// Seam S1: training's logits for packed segments equal serving's for the same tokens, bit for bit,
// on every table of kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/ops/softmax.h"
#include "tests/seams/packed_segments.h"
#include "tests/seams/trained_adapter.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"
#include "training/step/trainer.h"

namespace tandem {
namespace {

using engine::DType;
using tests::Export;
using tests::ModelHarness;
using tests::Pack;
using tests::Segments;

struct Case {
  std::string model;
  DType dtype;
  engine::BlockFormat block = engine::BlockFormat::kNone;
};

class TrainEqualsServe : public testing::TestWithParam<Case> {};

TEST_P(TrainEqualsServe, LogitsOfPackedSegmentsAreBitwiseThoseOfServing) {
  const tests::Golden golden = tests::LoadGolden(GetParam().model);
  const engine::ModelDir source = engine::ModelDir::Open(golden.dir);
  const std::string config_text = *source.ReadText("config.json");
  const auto json = engine::ParseUntrustedJson(config_text, golden.name);
  const engine::FamilySpec& family = engine::FindFamily(json, golden.name);
  const engine::ModelConfig config = family.parse_config(json, golden.name);
  const auto segments = Segments(config.vocab_size);
  const training::MicroBatch batch = Pack(segments);

  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    SCOPED_TRACE(table->isa);
    training::TrainerOptions options;
    options.row_length = static_cast<int64_t>(batch.tokens.size());
    options.max_segments = 3;
    ThreadPool pool(2);
    engine::OpsContext ops(*table, pool);
    training::Trainer trainer(family, config, GetParam().dtype, options, ops);
    trainer.parameters().LoadFrom(source);
    trainer.MastersChanged();
    std::vector<float> trained(batch.tokens.size() * static_cast<size_t>(config.vocab_size));
    trainer.executor().ForwardLogits(batch.View(0), trained.data());

    const tests::TemporaryDir exported;
    Export(trainer.parameters(), config_text, exported.path());
    ModelHarness harness(exported.path(), {.dtype = GetParam().dtype, .kernels = table});
    std::vector<float> served;
    for (const auto& tokens : segments) {
      const std::vector<float> logits = harness.Prefill(tokens, 7);  // in chunks, as serving may
      served.insert(served.end(), logits.begin(), logits.end());
    }

    ASSERT_EQ(trained.size(), served.size());
    size_t differing = 0;
    for (size_t i = 0; i < trained.size(); ++i) {
      differing += std::memcmp(&trained[i], &served[i], sizeof(float)) != 0 ? 1 : 0;
    }
    EXPECT_EQ(differing, 0u) << "of " << trained.size() << " logits";
  }
}

// Preference optimisation: training compares log-probabilities of packed answers. They equal the
// log-probabilities that a server computes for the same texts.
TEST_P(TrainEqualsServe, LogProbabilitiesOfPairsAreBitwiseThoseOfServing) {
  const tests::Golden golden = tests::LoadGolden(GetParam().model);
  const engine::ModelDir source = engine::ModelDir::Open(golden.dir);
  const std::string config_text = *source.ReadText("config.json");
  const auto json = engine::ParseUntrustedJson(config_text, golden.name);
  const engine::FamilySpec& family = engine::FindFamily(json, golden.name);
  const engine::ModelConfig config = family.parse_config(json, golden.name);
  const auto segments = Segments(config.vocab_size);
  training::MicroBatch batch = Pack(segments);
  // From the second row of a segment on, the next token is the target, as in an answer behind a
  // prompt.
  for (const training::Segment& segment : batch.segments) {
    for (int64_t i = 1; i + 1 < segment.n_rows; ++i) {
      const auto row = static_cast<size_t>(segment.first_row + i);
      batch.targets[row] = batch.tokens[row + 1];
      batch.weights[row] = 1;
    }
  }
  batch.pairs.push_back({batch.segments[0], batch.segments[2], 0, {}});

  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  training::TrainerOptions options;
  options.row_length = static_cast<int64_t>(batch.tokens.size());
  options.max_segments = 3;
  options.dpo.emplace();
  training::Trainer trainer(family, config, GetParam().dtype, options, ops);
  trainer.parameters().LoadFrom(source);
  trainer.MastersChanged();
  const auto trained = training::LogProbsOfPairs(trainer.executor(), batch);
  // The model is its own reference, so the loss is log 2.
  batch.pairs[0].reference = trained.at(0);
  EXPECT_DOUBLE_EQ(trainer.Evaluate({&batch, 1}).loss, std::log(2.0));

  const tests::TemporaryDir exported;
  Export(trainer.parameters(), config_text, exported.path());
  ModelHarness harness(exported.path(), {.dtype = GetParam().dtype});
  const auto served = [&](const std::vector<TokenId>& tokens) {
    const auto rows = static_cast<int64_t>(tokens.size());
    const int64_t vocab = config.vocab_size;
    const std::vector<float> logits = harness.Prefill(tokens, 7);
    std::vector<float> lse(tokens.size());
    engine::LogSumExp(harness.ops(), logits.data(), rows, vocab, vocab, lse.data());
    double sum = 0;
    for (int64_t i = 1; i + 1 < rows; ++i) {
      const auto next = static_cast<int64_t>(tokens[static_cast<size_t>(i + 1)]);
      const float logprob =
          logits[static_cast<size_t>(i * vocab + next)] - lse[static_cast<size_t>(i)];
      sum += static_cast<double>(logprob);
    }
    return sum;
  };
  EXPECT_EQ(trained.at(0).chosen, served(segments[0]));
  EXPECT_EQ(trained.at(0).rejected, served(segments[2]));
}

// S1 with an adapter of every linear layer, after two training steps. It is exported,
// loaded beside the base, and served among rows of the base alone. The base may be quantised
// (QLoRA): training then rounds activations where serving does.
class AdapterTrainEqualsServe : public testing::TestWithParam<Case> {};

TEST_P(AdapterTrainEqualsServe, LogitsOfPackedSegmentsAreBitwiseThoseOfServing) {
  tests::ExpectTrainedAdapterIsServed(tests::LoadGolden(GetParam().model).dir,
                                      {.dtype = GetParam().dtype, .block = GetParam().block});
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string& model : tests::GoldenNames()) {
    cases.push_back({model, DType::kF32});
    cases.push_back({model, DType::kBF16});
  }
  return cases;
}

std::vector<Case> AdapterCases() {
  std::vector<Case> cases = Cases();
  for (const std::string& model : tests::GoldenNames()) {
    cases.push_back({model, DType::kBF16, engine::BlockFormat::kInt8});
    cases.push_back({model, DType::kBF16, engine::BlockFormat::kInt4});
  }
  return cases;
}

std::string CaseName(const testing::TestParamInfo<Case>& instance) {
  std::string name =
      instance.param.model + "_" + std::string(engine::DTypeName(instance.param.dtype));
  std::replace(name.begin(), name.end(), '-', '_');
  if (instance.param.block != engine::BlockFormat::kNone) {
    name += std::string("_") + engine::BlockFormatName(instance.param.block);
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(AllModels, TrainEqualsServe, testing::ValuesIn(Cases()), CaseName);
INSTANTIATE_TEST_SUITE_P(AllModels, AdapterTrainEqualsServe, testing::ValuesIn(AdapterCases()),
                         CaseName);

}  // namespace
}  // namespace tandem
