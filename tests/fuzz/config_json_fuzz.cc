// A config.json, parsed by the family that it names and by one other. An accepted config has
// bounded sizes; its weights, ropes and plan can be listed, and it survives being written.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/io/json.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/find_weight.h"
#include "engine/model/plan_ops.h"
#include "tests/fuzz/json_mutator.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem::engine;

// Lists grow with the layers: eight reach every kind of layer and stay quick.
constexpr int64_t kListedLayers = 8;
constexpr int64_t kListedExperts = 32;

void CheckHeads(const AttentionSpec& a) {
  Require(a.n_heads >= 1 && a.n_kv_heads >= 1 && a.n_heads % a.n_kv_heads == 0);
  Require(a.head_dim >= 1 && a.n_heads * a.head_dim <= 2 * kMaxWidth);
  Require(a.window >= 0 && std::isfinite(a.scale) && std::isfinite(a.soft_cap));
}

void CheckSizes(const ModelConfig& config) {
  Require(config.n_layers >= 1 && config.n_layers <= kMaxLayers);
  Require(config.hidden_dim >= 1 && config.hidden_dim <= kMaxWidth);
  Require(config.ffn_dim >= 0 && config.ffn_dim <= kMaxWidth);
  Require(config.vocab_size >= 1 && config.vocab_size <= kMaxVocab);
  Require(config.max_context_len >= 1 && config.max_context_len <= kMaxContext);
  Require(config.bos_token < config.vocab_size);
  for (const auto token : config.eos_tokens) Require(token >= 0 && token < config.vocab_size);
  const auto layers = static_cast<size_t>(config.n_layers);
  for (const size_t listed :
       {config.windowed_layers.size(), config.layer_attention.size(), config.layer_ropes.size(),
        config.experts.layers.size(), config.recurrent.layers.size()}) {
    Require(listed == 0 || listed == layers);
  }
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (!config.IsRecurrent(layer) && !config.IsMlp(layer))
      CheckHeads(config.LayerAttention(layer));
  }
  const RouterSpec& router = config.experts.router;
  if (router.n_experts == 0) return;
  Require(router.top_k >= 1 && router.top_k <= router.n_experts);
  Require(config.experts.ffn_dim >= 1 && config.experts.ffn_dim <= kMaxWidth);
  Require(router.n_experts * config.n_layers <= kMaxExpertsOfModel);
  CheckRouter(router);
}

void CheckRopes(const FamilySpec& family, const ModelConfig& config) {
  const std::vector<RopeSpec> ropes = FamilyRopes(family, config);
  for (const RopeSpec& rope : ropes) {
    Require(rope.head_dim >= 1 && std::isfinite(rope.amplitude) && rope.growth_period >= 1);
    Require(rope.frequencies.size() <= static_cast<size_t>(rope.head_dim / 2));
    for (const double frequency : rope.frequencies) Require(std::isfinite(frequency));
  }
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    const int8_t rope = config.LayerRope(layer);
    Require(rope == ModelConfig::kNoRope || ropes.empty() ||
            static_cast<size_t>(rope) < ropes.size());
  }
}

void CheckWeights(const FamilySpec& family, const ModelConfig& config) {
  const std::vector<WeightSpec> specs = family.list_weights(config);
  Require(!specs.empty());
  std::set<std::string> names;
  for (const WeightSpec& spec : specs) {
    Require(names.insert(spec.name).second);
    Require(spec.n >= 1 && spec.k >= 1 && ElementCount(spec.source_shape) == spec.n * spec.k);
  }
  StackedTensorsOf(specs, /*published=*/false);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ForwardPlan plan = PlanForward(family, config, specs, dtype);
    Require(plan.arena_bytes_per_row >= 0 && plan.state_floats >= 0);
    Require(plan.ActiveShares(specs.size()).size() == specs.size());
    plan.ToString(specs);
  }
}

void Use(const FamilySpec& family, const ModelConfig& config) {
  CheckSizes(config);
  CheckRopes(family, config);
  if (config.n_layers > kListedLayers) return;
  if (config.experts.router.n_experts <= kListedExperts) CheckWeights(family, config);
  const nlohmann::ordered_json written = family.write_config(config);
  Require(family.write_config(family.parse_config(written, "written")) == written);
}

// A small config of one of the families with all optional parts.
size_t WriteTinyConfig(uint8_t* data, size_t max_size, unsigned seed) {
  const FamilySpec& family = *Families()[seed / 64 % Families().size()];
  const std::string text = family.write_config(tandem::bench::TinyModelConfig(family.name)).dump();
  if (text.size() > max_size) return 0;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  const size_t written = seed % 64 == 0 ? WriteTinyConfig(data, max_size, seed) : 0;
  return written > 0 ? written : MutateJsonText(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] {
    const nlohmann::ordered_json json = ParseUntrustedJson(text, "fuzz");
    ReadStrangersFile([&] {
      const FamilySpec& family = FindFamily(json, "fuzz");
      Use(family, ParseModelConfig(family, json, "fuzz"));
    });
    if (!json.is_object()) return;
    const FamilySpec& other = *Families()[std::hash<std::string_view>()(text) % Families().size()];
    ReadStrangersFile([&] { Use(other, other.parse_config(json, "fuzz")); });
  });
  return 0;
}
