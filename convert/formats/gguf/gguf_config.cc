#include "convert/formats/gguf/gguf_config.h"

#include <algorithm>
#include <cmath>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/family.h"

namespace tandem::convert {
namespace {

using engine::Activation;
using engine::GgufArchitecture;
using engine::ModelConfig;
using engine::RopeKind;

// Gemma 3's default pattern: every layer has a window except each sixth.
constexpr int64_t kGemma3Pattern = 6;

bool IsWindowed(const ModelConfig& config, int64_t layer) {
  return config.LayerAttention(layer).window > 0;
}

bool HasWindow(const ModelConfig& config) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (IsWindowed(config, layer)) return true;
  }
  return false;
}

bool FollowsPattern(const ModelConfig& config, int64_t every) {
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    if (IsWindowed(config, layer) == ((layer + 1) % every == 0)) return false;
  }
  return true;
}

// Settings that GGUF readers fix per architecture. They are checked one by one, so that the message
// names the setting.
class Requirements {
 public:
  Requirements(const GgufArchitecture& architecture, const ModelConfig& config,
               const std::string& source)
      : architecture_(architecture), config_(config), source_(source) {}

  void Check() const {
    const std::string_view name = architecture_.name;
    const bool gemma = name.starts_with("gemma");
    CheckRope();
    if (gemma || name == "gpt2") {
      Require(config_.activation == Activation::kGeluTanh, "an activation other than gelu_tanh");
    } else {
      Require(config_.activation == Activation::kSilu, "an activation other than silu");
    }
    if (name != "llama" && name != "gpt2") {
      Require(!config_.mlp_bias, "biases of the MLP");
      Require(!config_.attention_bias || name == "qwen2", "biases of the attention");
    }
    if (name == "qwen2") {
      Require(config_.attention.n_heads * config_.attention.head_dim == config_.hidden_dim,
              "heads that together are not as wide as the model");
    }
    if (gemma) CheckGemma();
    if (name == "qwen2" || name == "qwen3" || name == "gemma") {
      Require(!HasWindow(config_), "a sliding window");
    }
    if (name == "gpt2") {
      Require(config_.attention.head_dim == 1 || config_.attention.scale != 1,
              "'scale_attn_weights': false");
    }
  }

 private:
  void CheckRope() const {
    const engine::RopeScaling& scaling = config_.rope_scaling;
    Require(scaling.kind != RopeKind::kLlama3 || architecture_.name == "llama",
            "'rope_type': 'llama3'");
    Require(scaling.kind != RopeKind::kYarn || scaling.truncate, "'truncate': false of yarn");
    Require(scaling.kind != RopeKind::kYarn || !architecture_.name.starts_with("gemma"),
            "'rope_type': 'yarn'");
  }
  void CheckGemma() const {
    const std::string_view name = architecture_.name;
    const bool gemma2 = name == "gemma2";
    Require(config_.tied_embeddings || name == "gemma3", "an lm_head of its own");
    if (name == "gemma") return;
    Require((config_.attention.soft_cap > 0) == gemma2,
            gemma2 ? "no 'attn_logit_softcapping'" : "'attn_logit_softcapping'");
    Require(config_.logit_cap > 0 || !gemma2, "no 'final_logit_softcapping'");
    // GGUF does not store query_pre_attn_scalar; readers recognise the largest models by their
    // number of layers.
    const bool largest = config_.n_layers == (gemma2 ? 46 : 62);
    const int64_t head =
        largest ? config_.hidden_dim / config_.attention.n_heads : config_.attention.head_dim;
    const double scalar = config_.query_scalar > 0
                              ? config_.query_scalar
                              : static_cast<double>(config_.attention.head_dim);
    Require(scalar == static_cast<double>(head),
            "'query_pre_attn_scalar' other than " + std::to_string(head));
    if (gemma2) Require(FollowsPattern(config_, 2), "windows on other than every second layer");
  }
  void Require(bool holds, const std::string& what) const {
    if (holds) return;
    throw Error(ErrorCode::kUnsupported, source_ + ": has " + what + ", which architecture " +
                                             Quoted(architecture_.name) +
                                             " of GGUF cannot say; convert it to hf or native");
  }

  const GgufArchitecture& architecture_;
  const ModelConfig& config_;
  const std::string& source_;
};

// Adds keys with the architecture's prefix.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufArchitecture& architecture, GgufKeys& keys)
      : prefix_(std::string(architecture.name) + "."), keys_(keys) {}

  void AddCount(const char* key, int64_t value) {
    keys_.Add(prefix_ + key, static_cast<uint32_t>(value));
  }
  void AddNumber(const char* key, double value) {
    keys_.Add(prefix_ + key, static_cast<float>(value));
  }
  template <class T>
  void Add(const char* key, const T& value) {
    keys_.Add(prefix_ + key, value);
  }

 private:
  std::string prefix_;
  GgufKeys& keys_;
};

void AddRope(const ModelConfig& config, ArchitectureKeys& keys) {
  keys.AddCount("rope.dimension_count", config.attention.head_dim);
  keys.AddNumber("rope.freq_base", config.rope_theta);
  const engine::RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeKind::kLinear) {
    keys.Add("rope.scaling.type", "linear");
    keys.AddNumber("rope.scaling.factor", scaling.factor);
  }
  if (scaling.kind != RopeKind::kYarn) return;
  keys.Add("rope.scaling.type", "yarn");
  keys.AddNumber("rope.scaling.factor", scaling.factor);
  keys.AddCount("rope.scaling.original_context_length", scaling.original_max_positions);
  keys.AddNumber("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  keys.AddNumber("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  // Readers multiply the formula's own factor (YaRN, Peng et al. 2023) by this key.
  const double own = scaling.factor > 1 ? 0.1 * std::log(scaling.factor) + 1 : 1;
  if (std::abs(scaling.attention_factor - own) > 1e-6 * own) {
    keys.AddNumber("rope.scaling.attn_factor", scaling.attention_factor / own);
  }
}

void AddWindow(const ModelConfig& config, bool pattern, ArchitectureKeys& keys) {
  if (!HasWindow(config)) return;
  keys.AddCount("attention.sliding_window", config.attention.window);
  if (!pattern || FollowsPattern(config, kGemma3Pattern)) return;
  std::vector<bool> windowed;
  for (int64_t layer = 0; layer < config.n_layers; ++layer) {
    windowed.push_back(IsWindowed(config, layer));
  }
  keys.Add("attention.sliding_window_pattern", windowed);
}

}  // namespace

const GgufArchitecture& GgufArchitectureFor(const ModelConfig& config, const std::string& source) {
  // GGUF treats Mistral as llama.
  std::string_view name = config.family;
  if (name == "mistral") name = "llama";
  const GgufArchitecture* architecture = engine::FindGgufArchitecture(name);
  if (architecture == nullptr) {
    std::string written = "mistral";
    for (const GgufArchitecture& one : engine::GgufArchitectures()) {
      written += ", " + std::string(one.name);
    }
    throw Error(ErrorCode::kUnsupported, source + ": family " + Quoted(config.family) +
                                             " has no architecture in GGUF (" + written +
                                             " have one); convert it to hf or native");
  }
  Requirements(*architecture, config, source).Check();
  return *architecture;
}

void AddGgufConfig(const GgufArchitecture& architecture, const ModelConfig& config,
                   GgufKeys& all_keys) {
  all_keys.Add("general.architecture", architecture.name);
  ArchitectureKeys keys(architecture, all_keys);
  const engine::AttentionSpec& attention = config.attention;
  keys.AddCount("vocab_size", config.vocab_size);
  keys.AddCount("context_length", config.max_context_len);
  keys.AddCount("embedding_length", config.hidden_dim);
  keys.AddCount("block_count", config.n_layers);
  keys.AddCount("feed_forward_length", config.ffn_dim);
  keys.AddCount("attention.head_count", attention.n_heads);
  keys.AddCount("attention.head_count_kv", attention.n_kv_heads);
  if (architecture.name == "gpt2") {
    keys.AddNumber("attention.layer_norm_epsilon", config.norm_eps);
    return;
  }
  keys.AddCount("attention.key_length", attention.head_dim);
  keys.AddCount("attention.value_length", attention.head_dim);
  keys.AddNumber("attention.layer_norm_rms_epsilon", config.norm_eps);
  AddRope(config, keys);
  const bool gemma3 = architecture.name == "gemma3";
  AddWindow(config, gemma3, keys);
  if (gemma3) keys.AddNumber("rope.freq_base_swa", config.local_rope_theta);
  if (attention.soft_cap > 0) keys.AddNumber("attn_logit_softcapping", attention.soft_cap);
  if (config.logit_cap > 0) keys.AddNumber("final_logit_softcapping", config.logit_cap);
}

std::vector<float> GgufRopeDivisors(const ModelConfig& config) {
  if (config.rope_scaling.kind != RopeKind::kLlama3) return {};
  const auto ropes = engine::FindFamilyByName(config.family).list_ropes(config);
  std::vector<float> divisors;
  for (const engine::RopeSpec& rope : ropes) {
    const auto pairs = static_cast<double>(rope.frequencies.size());
    for (size_t i = 0; i < rope.frequencies.size(); ++i) {
      const double plain = std::pow(config.rope_theta, -static_cast<double>(i) / pairs);
      divisors.push_back(static_cast<float>(plain / rope.frequencies[i]));
    }
    break;  // llama has one rope
  }
  return divisors;
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
  compare("width of the MLP", a.ffn_dim, b.ffn_dim);
  compare("vocabulary's size", a.vocab_size, b.vocab_size);
  compare("context length", a.max_context_len, b.max_context_len);
  compare("epsilon", a.norm_eps, b.norm_eps);
  compare("number of heads", a.attention.n_heads, b.attention.n_heads);
  compare("number of kv heads", a.attention.n_kv_heads, b.attention.n_kv_heads);
  compare("size of a head", a.attention.head_dim, b.attention.head_dim);
  near("scale of scores", a.attention.scale, b.attention.scale);
  near("cap of scores", a.attention.soft_cap, b.attention.soft_cap);
  near("cap of logits", a.logit_cap, b.logit_cap);
  compare("activation", a.activation, b.activation);
  compare("biases of the attention", a.attention_bias, b.attention_bias);
  compare("biases of the MLP", a.mlp_bias, b.mlp_bias);
  compare("tying of embeddings", a.tied_embeddings, b.tied_embeddings);
  for (int64_t layer = 0; layer < a.n_layers && first.empty(); ++layer) {
    compare("window", a.LayerAttention(layer).window, b.LayerAttention(layer).window);
  }
  if (!first.empty()) return first;
  const auto a_ropes = engine::FindFamilyByName(a.family).list_ropes(a);
  const auto b_ropes = engine::FindFamilyByName(b.family).list_ropes(b);
  compare("number of ropes", a_ropes.size(), b_ropes.size());
  for (size_t i = 0; i < a_ropes.size() && first.empty(); ++i) {
    near("amplitude of a rope", a_ropes[i].amplitude, b_ropes[i].amplitude);
    compare("size of a rope", a_ropes[i].frequencies.size(), b_ropes[i].frequencies.size());
    for (size_t k = 0; k < a_ropes[i].frequencies.size() && first.empty(); ++k) {
      near("frequencies of a rope", a_ropes[i].frequencies[k], b_ropes[i].frequencies[k]);
    }
  }
  return first;
}

}  // namespace tandem::convert
