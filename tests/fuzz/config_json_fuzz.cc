// A config.json, parsed by the family that it names and by every other one. An accepted config has
// bounded sizes; its weights, ropes and config.json can be listed.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "tests/fuzz/strangers_file.h"

namespace {

using namespace tandem::engine;

// Lists grow with the layers: eight reach every kind of layer and stay quick.
constexpr int64_t kListedLayers = 8;

void Use(const FamilySpec& family, const nlohmann::ordered_json& json) {
  const ModelConfig config = family.parse_config(json, "fuzz");
  Require(config.n_layers >= 1 && config.n_layers <= kMaxLayers);
  Require(config.hidden_dim >= 1 && config.hidden_dim <= kMaxWidth);
  Require(config.vocab_size >= 1 && config.vocab_size <= kMaxVocab);
  Require(config.max_context_len >= 1 && config.max_context_len <= kMaxContext);
  Require(config.attention.n_heads >= 1 && config.attention.n_kv_heads >= 1);
  Require(config.attention.n_heads % config.attention.n_kv_heads == 0);
  Require(config.attention.n_heads * config.attention.head_dim <= kMaxWidth);
  Require(config.bos_token < config.vocab_size);
  for (const auto token : config.eos_tokens) Require(token >= 0 && token < config.vocab_size);
  Require(config.windowed_layers.empty() ||
          config.windowed_layers.size() == static_cast<size_t>(config.n_layers));
  for (const RopeSpec& rope : family.list_ropes(config)) {
    Require(rope.frequencies.size() == static_cast<size_t>(config.attention.head_dim / 2));
  }
  if (config.n_layers > kListedLayers) return;
  Require(!family.list_weights(config).empty());
  const ModelConfig again = family.parse_config(family.write_config(config), "written");
  Require(again.n_layers == config.n_layers && again.hidden_dim == config.hidden_dim &&
          again.attention.n_kv_heads == config.attention.n_kv_heads &&
          again.attention.head_dim == config.attention.head_dim &&
          again.windowed_layers == config.windowed_layers);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] {
    const nlohmann::ordered_json json = ParseUntrustedJson(text, "fuzz");
    ReadStrangersFile([&] { Use(FindFamily(json, "fuzz"), json); });
    for (const FamilySpec* family : Families()) ReadStrangersFile([&] { Use(*family, json); });
  });
  return 0;
}
