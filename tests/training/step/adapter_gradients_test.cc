// Gradients of adapters' parameters beside differences of the loss.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "tests/support/adapters.h"
#include "tests/support/temporary_dir.h"
#include "training/lora/lora.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

constexpr int64_t kTokens = 24;
constexpr size_t kChecked = 5;  // elements of each tensor: those with the largest gradients

MicroBatch BatchOf(int64_t vocab) {
  MicroBatch batch;
  for (int64_t i = 0; i < kTokens; ++i) {
    batch.tokens.push_back(static_cast<TokenId>((7 * i + 3) % vocab));
    batch.positions.push_back(static_cast<int32_t>(i));
    batch.targets.push_back(static_cast<TokenId>((5 * i + 1) % vocab));
    batch.weights.push_back(i % 5 == 0 ? 0.0f : 1.0f);
  }
  batch.segments = {{0, kTokens}};
  batch.sources = {};
  return batch;
}

// Whether the norms of DoRA count as constants for this parameter, as its gradient says.
bool KeepsFactors(const std::string& name) { return !name.ends_with("magnitude_vector"); }

class AdapterGradients : public testing::Test {
 protected:
  void Check(const std::string& family, bool tied, LoraOptions lora) {
    const tests::TemporaryDir directory;
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.config.tied_embeddings = tied;
    bench::WriteRandomModel(spec, directory.path() / "model");
    lora.rank = 3;
    tests::WriteRandomAdapter(directory.path() / "model", lora, 5, directory.path() / "adapter");
    ThreadPool pool(2);
    engine::OpsContext ops(engine::Kernels(), pool);
    const auto base = engine::Model::Load(engine::ModelDir::Open(directory.path() / "model"),
                                          {.dtype = engine::DType::kF32}, ops);
    const auto files = engine::LoraAdapter::Open(directory.path() / "adapter");
    TrainerOptions options;
    options.row_length = kTokens;
    Trainer trainer(base, LoraTargetsOf(files, base->family(), base->config()), options, ops);
    const std::string path = (directory.path() / "adapter/adapter_model.safetensors").string();
    trainer.parameters().LoadFrom(engine::SafetensorsFile::Open(path), path);
    trainer.MastersChanged();
    const MicroBatch batch = BatchOf(base->config().vocab_size);
    trainer.Gradients({&batch, 1});
    std::vector<std::vector<float>> gradients;
    for (size_t i = 0; i < trainer.parameters().size(); ++i) {
      const engine::WeightSpec& one = trainer.parameters().specs()[i];
      const float* gradient = trainer.parameters().gradients()[i];
      gradients.emplace_back(gradient, gradient + one.n * one.k);
    }
    for (size_t i = 0; i < gradients.size(); ++i) CheckOne(trainer, batch, ops, i, gradients[i]);
  }

 private:
  static void CheckOne(Trainer& trainer, const MicroBatch& batch, engine::OpsContext& ops, size_t i,
                       const std::vector<float>& gradient) {
    const std::string& name = trainer.parameters().specs()[i].name;
    SCOPED_TRACE(name);
    std::vector<size_t> order(gradient.size());
    for (size_t e = 0; e < order.size(); ++e) order[e] = e;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return std::fabs(gradient[a]) > std::fabs(gradient[b]); });
    order.resize(std::min(order.size(), kChecked));
    const std::vector<float> values = trainer.parameters().Master(i);
    const auto loss_with = [&](size_t element, float change) {
      std::vector<float> moved = values;
      moved[element] += change;
      trainer.parameters().SetMaster(i, moved);
      KeepsFactors(name) ? trainer.parameters().Repack(ops) : trainer.MastersChanged();
      return trainer.Evaluate({&batch, 1}).loss;
    };
    EXPECT_GT(std::fabs(gradient[order[0]]), 0);
    for (const size_t element : order) {
      constexpr float kStep = 4e-3f;
      const double slope = (loss_with(element, kStep) - loss_with(element, -kStep)) / (2 * kStep);
      EXPECT_NEAR(slope, gradient[element], 2e-4 + 0.03 * std::fabs(gradient[element])) << element;
    }
    trainer.parameters().SetMaster(i, values);
    trainer.MastersChanged();
  }
};

LoraOptions WithDora() {
  LoraOptions lora;
  lora.use_dora = true;
  return lora;
}

LoraOptions WithEmbeddings() {
  LoraOptions lora;
  lora.embeddings = true;
  return lora;
}

LoraOptions WithCopies(std::vector<std::string> modules) {
  LoraOptions lora;
  lora.module_path = "q_proj";
  lora.modules_to_save = std::move(modules);
  return lora;
}

TEST_F(AdapterGradients, OfDoraTakeTheNormsAsConstants) { Check("llama", true, WithDora()); }

TEST_F(AdapterGradients, OfDoraReachLayersWithBiases) { Check("qwen2", true, WithDora()); }

TEST_F(AdapterGradients, OfEmbeddingsAndHeadAreThoseOfTheLoss) {
  Check("llama", false, WithEmbeddings());
}

TEST_F(AdapterGradients, OfBothUsesOfATiedTableAreThoseOfTheLoss) {
  Check("gemma2", true, WithEmbeddings());
}

TEST_F(AdapterGradients, OfWholeCopiesAreThoseOfTheLoss) {
  Check("llama", false, WithCopies({"lm_head", "embed_tokens", "model.norm", "mlp.up_proj"}));
}

TEST_F(AdapterGradients, OfTheCopiesOfATiedTableAreThoseOfTheirUses) {
  Check("llama", true, WithCopies({"lm_head", "embed_tokens", "input_layernorm"}));
}

}  // namespace
}  // namespace tandem::training
