// S1 for adapters that change more than linear layers' products: DoRA, adapted embeddings and
// heads, and whole copies. Training's logits equal serving's, bit for bit, and a row's logits do
// not depend on the adapters of other rows in its step.

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/model/weight_uses.h"
#include "tests/seams/packed_segments.h"
#include "tests/seams/trained_adapter.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem {
namespace {

using engine::BlockFormat;
using engine::DType;
using tests::ModelHarness;

enum class Form { kDora, kEmbeddings, kCopies };

struct FormCase {
  std::string family;
  bool tied = false;
  Form form = Form::kDora;
};

std::string NameOf(const FormCase& one) {
  const char* const names[] = {"Dora", "Embeddings", "Copies"};
  return one.family + (one.tied ? "Tied" : "Untied") + names[static_cast<int>(one.form)];
}

std::vector<FormCase> FormCases() {
  std::vector<FormCase> cases;
  // Norms with an offset and a capped head; biases everywhere and learned positions; biases of
  // projections.
  for (const char* family : {"llama", "gemma2", "gpt2", "qwen2"}) {
    for (const bool tied : {true, false}) {
      if (!tied && (std::string(family) == "gemma2" || std::string(family) == "gpt2")) continue;
      for (const Form form : {Form::kDora, Form::kEmbeddings, Form::kCopies}) {
        cases.push_back({family, tied, form});
      }
    }
  }
  return cases;
}

engine::ModelConfig ConfigOf(const FormCase& one) {
  engine::ModelConfig config = bench::TinyModelConfig(one.family);
  config.tied_embeddings = one.tied;
  return config;
}

// The paths of every module that an adapter can hold whole, except linear layers.
std::vector<std::string> Copyable(const FormCase& one) {
  const engine::FamilySpec& family = engine::FindFamilyByName(one.family);
  const engine::ModelConfig config = ConfigOf(one);
  const auto specs = family.list_weights(config);
  const engine::WeightUses uses = engine::UsesOf(family, config, specs);
  std::set<std::string> paths = {engine::ModulePath(specs[static_cast<size_t>(uses.head)],
                                                    engine::WeightUse::kHead, uses.is_tied)};
  for (size_t i = 0; i < specs.size(); ++i) {
    if (uses.of[i] == engine::WeightUse::kLinear || !engine::CanBeSaved(uses.of[i])) continue;
    paths.insert(engine::ModulePath(specs[i], uses.of[i], uses.is_tied));
  }
  return {paths.begin(), paths.end()};
}

training::LoraOptions OptionsOf(const FormCase& one) {
  training::LoraOptions lora;
  lora.use_dora = one.form == Form::kDora;
  lora.embeddings = one.form == Form::kEmbeddings;
  if (one.form == Form::kCopies) lora.modules_to_save = Copyable(one);
  return lora;
}

class AdapterForms : public testing::TestWithParam<FormCase> {
 protected:
  AdapterForms() {
    bench::RandomModelSpec spec;
    spec.config = ConfigOf(GetParam());
    bench::WriteRandomModel(spec, model());
  }
  std::filesystem::path model() const { return directory_.path() / "model"; }

  tests::TemporaryDir directory_;
};

TEST_P(AdapterForms, LogitsOfTrainingAreBitwiseThoseOfServing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    SCOPED_TRACE(engine::DTypeName(dtype));
    tests::ExpectTrainedAdapterIsServed(model(), {.dtype = dtype}, OptionsOf(GetParam()));
  }
  for (const BlockFormat block : {BlockFormat::kInt8, BlockFormat::kInt4}) {
    SCOPED_TRACE(engine::BlockFormatName(block));
    tests::ExpectTrainedAdapterIsServed(model(), {.dtype = DType::kBF16, .block = block},
                                        OptionsOf(GetParam()));
  }
}

TEST_P(AdapterForms, DoNotDependOnTheOtherRowsOfAStep) {
  tests::WriteRandomAdapter(model(), OptionsOf(GetParam()), 7, directory_.path() / "one");
  tests::WriteRandomAdapter(model(), 3, 8, directory_.path() / "two");
  ModelHarness harness(model(), {.dtype = DType::kBF16});
  const auto one = harness.LoadAdapter(directory_.path() / "one");
  const auto two = harness.LoadAdapter(directory_.path() / "two");
  const std::vector<const engine::Adapter*> adapters = {one.get(), nullptr, two.get(), one.get()};
  const std::vector<std::vector<TokenId>> prompts = {{5, 9, 2}, {4, 4, 8, 1}, {7}, {3, 6}};
  const auto run = [&](const std::vector<size_t>& which, ModelHarness::Rows rows) {
    std::vector<ModelHarness::Sequence> sequences(which.size());
    std::vector<ModelHarness::Part> parts;
    for (size_t i = 0; i < which.size(); ++i) {
      sequences[i].adapter = adapters[which[i]];
      parts.push_back({&sequences[i], prompts[which[i]]});
    }
    const std::vector<float> logits = harness.Step(parts, rows);
    for (ModelHarness::Sequence& sequence : sequences) harness.Drop(sequence);
    return logits;
  };

  for (const ModelHarness::Rows rows :
       {ModelHarness::Rows::kAll, ModelHarness::Rows::kLastOfEach}) {
    std::vector<float> alone;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<float> logits = run({i}, rows);
      alone.insert(alone.end(), logits.begin(), logits.end());
    }
    const std::vector<float> together = run({0, 1, 2, 3}, rows);
    ASSERT_EQ(together.size(), alone.size());
    EXPECT_EQ(std::memcmp(together.data(), alone.data(), alone.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(AllForms, AdapterForms, testing::ValuesIn(FormCases()),
                         [](const auto& one) { return NameOf(one.param); });

}  // namespace
}  // namespace tandem
