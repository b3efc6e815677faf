#include "convert/formats/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/families/config_difference.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

using engine::Activation;
using engine::GgufArchitecture;
using engine::ModelConfig;
using engine::RopeKind;

void CheckLimits(const GgufArchitecture& architecture, const ModelConfig& config,
                 const std::string& source) {
  for (const engine::GgufLimit limit : architecture.limits) {
    const std::string setting = limit(config);
    if (setting.empty()) continue;
    throw Error(ErrorCode::kUnsupported, source + ": has " + setting + ", which architecture " +
                                             Quoted(architecture.name) +
                                             " of GGUF cannot say; convert it to hf or native");
  }
}

std::vector<float> NumbersOf(const engine::BranchMultipliers& by) {
  std::vector<float> numbers{by.attention_in, by.attention_out, by.keys,    by.scan_in,
                             by.scan_out,     by.mlp_gate,      by.mlp_down};
  numbers.insert(numbers.end(), by.scan_parts.begin(), by.scan_parts.end());
  return numbers;
}

}  // namespace

const GgufArchitecture& GgufArchitectureFor(const ModelConfig& config, const std::string& source) {
  const engine::FamilySpec& family = engine::FindFamilyByName(config.family);
  if (family.gguf == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                source + ": family " + Quoted(config.family) + " has no architecture in GGUF (" +
                    engine::FamilyNames(
                        [](const engine::FamilySpec& each) { return each.gguf != nullptr; }) +
                    " have one); convert it to hf or native");
  }
  const GgufArchitecture& architecture = engine::GgufArchitectureOf(family, config);
  CheckLimits(architecture, config, source);
  return architecture;
}

void AddGgufConfig(const GgufArchitecture& architecture, const ModelConfig& config,
                   GgufKeys& keys) {
  keys.Add("general.architecture", architecture.name);
  for (const engine::GgufSetting& setting : architecture.write_config(config)) {
    const std::string key = std::string(architecture.name) + "." + std::string(setting.key);
    std::visit([&](const auto& value) { keys.Add(key, value); }, setting.value);
  }
}

std::vector<GgufRopeTensor> GgufRopeTensors(const GgufArchitecture& architecture,
                                            const ModelConfig& config) {
  if (architecture.rope_divisors != nullptr) {
    return {{engine::kGgufRopeDivisors, architecture.rope_divisors(config)}};
  }
  const engine::RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeKind::kLong) {
    const auto narrow = [](const std::vector<double>& factors) {
      return std::vector<float>(factors.begin(), factors.end());
    };
    return {{engine::kGgufShortRopeDivisors, narrow(scaling.short_factors)},
            {engine::kGgufLongRopeDivisors, narrow(scaling.long_factors)}};
  }
  if (scaling.kind != RopeKind::kLlama3) return {};
  const auto ropes = engine::FindFamilyByName(config.family).list_ropes(config);
  std::vector<float> divisors;
  for (const engine::RopeSpec& rope : ropes) {
    const auto pairs = static_cast<double>(rope.frequencies.size());
    for (size_t i = 0; i < rope.frequencies.size(); ++i) {
      const double plain = std::pow(config.rope_theta, -static_cast<double>(i) / pairs);
      divisors.push_back(static_cast<float>(plain / rope.frequencies[i]));
    }
    break;  // such families have one rope
  }
  return {{engine::kGgufRopeDivisors, std::move(divisors)}};
}

std::string FirstDifference(const ModelConfig& a, const ModelConfig& b) {
  std::string first;
  const auto compare = [&](const char* name, const auto& is, const auto& other) {
    if (first.empty() && !(is == other)) first = name;
  };
  const auto near = [&](const char* name, double is, double other) {
    if (first.empty() && std::abs(is - other) > 1e-6 * std::abs(is)) first = name;
  };
  compare("number of layers", a.n_layers, b.n_layers);
  compare("width", a.hidden_dim, b.hidden_dim);
  const bool has_mlp =
      a.mlp_layers.empty() || std::ranges::find(a.mlp_layers, true) != a.mlp_layers.end();
  if (has_mlp) compare("width of the MLP", a.ffn_dim, b.ffn_dim);
  compare("vocabulary's size", a.vocab_size, b.vocab_size);
  compare("context length", a.max_context_len, b.max_context_len);
  compare("epsilon", a.norm_eps, b.norm_eps);
  compare("number of heads", a.attention.n_heads, b.attention.n_heads);
  if (a.layer_attention.empty()) {  // otherwise by layer, below
    compare("number of kv heads", a.attention.n_kv_heads, b.attention.n_kv_heads);
    compare("size of a head", a.attention.head_dim, b.attention.head_dim);
  }
  near("scale of scores", a.attention.scale, b.attention.scale);
  near("cap of scores", a.attention.soft_cap, b.attention.soft_cap);
  near("cap of logits", a.logit_cap, b.logit_cap);
  compare("activation", a.activation, b.activation);
  compare("biases of the attention", a.attention_bias, b.attention_bias);
  compare("biases of the MLP", a.mlp_bias, b.mlp_bias);
  compare("bias of the attention's output", a.attention_out_bias, b.attention_out_bias);
  near("multiplier of embeddings", a.embedding_multiplier, b.embedding_multiplier);
  near("multiplier of residuals", a.residual_multiplier, b.residual_multiplier);
  near("multiplier of logits", a.logit_multiplier, b.logit_multiplier);
  near("limit of q, k and v", a.clip_qkv, b.clip_qkv);
  compare("multipliers of branches", NumbersOf(a.branches), NumbersOf(b.branches));
  compare("norm of a scan", a.recurrent.norm, b.recurrent.norm);
  compare("tying of embeddings", a.tied_embeddings, b.tied_embeddings);
  if (first.empty()) first = engine::DifferentLayerPart(a, b);
  bool has_experts = false;
  for (int64_t layer = 0; layer < a.n_layers; ++layer) {
    has_experts = has_experts || a.HasExperts(layer);
  }
  if (has_experts) {
    compare("number of experts", a.experts.router.n_experts, b.experts.router.n_experts);
    compare("number of chosen experts", a.experts.router.top_k, b.experts.router.top_k);
    compare("score of experts", a.experts.router.score, b.experts.router.score);
    compare("norm of experts' weights", a.experts.router.normalise, b.experts.router.normalise);
    near("scale of experts' weights", a.experts.router.scale, b.experts.router.scale);
    compare("number of groups of experts", a.experts.router.n_groups, b.experts.router.n_groups);
    compare("number of chosen groups", a.experts.router.top_groups, b.experts.router.top_groups);
    compare("bias of experts", a.experts.selection_bias, b.experts.selection_bias);
    compare("width of experts", a.experts.ffn_dim, b.experts.ffn_dim);
    compare("width of shared experts", a.experts.shared_ffn_dim, b.experts.shared_ffn_dim);
    compare("latent of experts", a.experts.latent_dim, b.experts.latent_dim);
  }
  compare("norms of q and k", a.qk_norm, b.qk_norm);
  for (int64_t layer = 0; layer < a.n_layers && first.empty(); ++layer) {
    compare("experts of a layer", a.HasExperts(layer), b.HasExperts(layer));
    compare("recurrence of a layer", a.IsRecurrent(layer), b.IsRecurrent(layer));
    const engine::AttentionSpec is = a.LayerAttention(layer), other = b.LayerAttention(layer);
    compare("window", is.window, other.window);
    compare("size of a layer's heads", is.head_dim, other.head_dim);
    compare("number of a layer's kv heads", is.n_kv_heads, other.n_kv_heads);
    compare("rope", a.LayerRope(layer), b.LayerRope(layer));
  }
  if (!first.empty()) return first;
  const auto a_ropes = engine::FindFamilyByName(a.family).list_ropes(a);
  const auto b_ropes = engine::FindFamilyByName(b.family).list_ropes(b);
  compare("number of ropes", a_ropes.size(), b_ropes.size());
  for (size_t i = 0; i < a_ropes.size() && first.empty(); ++i) {
    near("amplitude of a rope", a_ropes[i].amplitude, b_ropes[i].amplitude);
    near("growth of a rope", a_ropes[i].growth, b_ropes[i].growth);
    compare("growth of a rope", a_ropes[i].growth_period, b_ropes[i].growth_period);
    compare("size of a rope", a_ropes[i].frequencies.size(), b_ropes[i].frequencies.size());
    compare("pairs of a rope", a_ropes[i].interleaved, b_ropes[i].interleaved);
    for (size_t k = 0; k < a_ropes[i].frequencies.size() && first.empty(); ++k) {
      near("frequencies of a rope", a_ropes[i].frequencies[k], b_ropes[i].frequencies[k]);
    }
  }
  return first;
}

}  // namespace tandem::convert
