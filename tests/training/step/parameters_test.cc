#include "training/step/parameters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/model/families/family.h"

namespace tandem::training {
namespace {

// Names of the weights that decay.
std::vector<std::string> Decaying(const OptimizerSpec& optimizer) {
  engine::ModelConfig config = bench::TinyLlamaConfig();
  config.n_layers = 1;
  const ParameterStore store(engine::FindFamilyByName("llama").list_weights(config),
                             engine::DType::kF32, {}, optimizer);
  std::vector<std::string> names;
  for (size_t i = 0; i < store.size(); ++i) {
    if (store.states()[i].decays) names.push_back(store.specs()[i].name);
  }
  return names;
}

TEST(ParameterStore, NormScalesDoNotDecayUnlessTheSpecSaysWhatDoesNot) {
  OptimizerSpec optimizer;
  const std::vector<std::string> standard = Decaying(optimizer);
  EXPECT_FALSE(standard.empty());
  for (const std::string& name : standard) {
    EXPECT_EQ(name.find("norm"), std::string::npos) << name;
  }
  optimizer.decay_exclude = {{"norm", "bias$"}};
  EXPECT_EQ(Decaying(optimizer), standard);

  optimizer.decay_exclude = std::vector<std::string>();
  EXPECT_GT(Decaying(optimizer).size(), standard.size()) << "as in MaxText";

  optimizer.decay_exclude = {{"embed|norm", "self_attn", "lm_head"}};
  EXPECT_EQ(Decaying(optimizer), (std::vector<std::string>{"model.layers.0.mlp.gate_proj.weight",
                                                           "model.layers.0.mlp.up_proj.weight",
                                                           "model.layers.0.mlp.down_proj.weight"}));
}

TEST(ParameterStore, WhatIsNoPatternIsNamed) {
  OptimizerSpec optimizer;
  optimizer.decay_exclude = {{"("}};
  try {
    Decaying(optimizer);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what()).starts_with("train.optimizer.decay_exclude: \"(\""))
        << error.what();
  }
}

}  // namespace
}  // namespace tandem::training
