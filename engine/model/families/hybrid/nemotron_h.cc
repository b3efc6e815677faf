// Nemotron-H and Nemotron 3 (NVIDIA 2025), as transformers' NemotronHForCausalLM: every layer is
// one pre-norm mixer: Mamba-2, attention without rope, an MLP without gate, or a mixture of such
// MLPs.

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/decoder_parts.h"
#include "engine/model/families/expert_parts.h"
#include "engine/model/families/family.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"
#include "engine/model/families/hybrid/mamba_parts.h"
#include "engine/model/families/hybrid/nemotron_gguf.h"

namespace tandem::engine::nemotron_h {

Mixer MixerOf(const ModelConfig& c, int64_t layer) {
  if (c.IsRecurrent(layer)) return Mixer::kMamba;
  if (c.IsMlp(layer)) return Mixer::kMlp;
  return c.HasExperts(layer) ? Mixer::kExperts : Mixer::kAttention;
}

namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kArchitectures{"NemotronHForCausalLM", "nemotron_h"};

struct MixerName {
  Mixer mixer;
  char letter;             // in `hybrid_override_pattern`
  std::string_view name;   // of transformers 5
  std::string_view older;  // of transformers 4
};
constexpr auto kMixers = std::to_array<MixerName>({
    {Mixer::kMamba, 'M', "linear_attention", "mamba"},
    {Mixer::kAttention, '*', "full_attention", "attention"},
    {Mixer::kMlp, '-', "mlp", "mlp"},
    {Mixer::kExperts, 'E', "moe", "moe"},
});

std::vector<Mixer> MixersOfPattern(const std::string& pattern, const std::string& source) {
  std::vector<Mixer> mixers;
  for (const char letter : pattern) {
    std::optional<Mixer> found;
    for (const MixerName& known : kMixers) {
      if (known.letter == letter) found = known.mixer;
    }
    if (!found) {
      ThrowUnsupported(source, "field 'hybrid_override_pattern': letter " +
                                   Quoted(std::string(1, letter)) +
                                   "; supported are 'M', '*', '-' and 'E'");
    }
    mixers.push_back(*found);
  }
  return mixers;
}

std::vector<Mixer> MixersOfList(const Json& list, const std::string& field,
                                const std::string& source) {
  if (!list.is_array()) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' must be a list of names");
  }
  std::vector<Mixer> mixers;
  for (const Json& element : list) {
    Json wrapped = Json::object();
    wrapped[field] = element;
    const std::string name = JsonStringOr(wrapped, field.c_str(), "", source);
    std::optional<Mixer> found;
    for (const MixerName& known : kMixers) {
      if (name == known.name || name == known.older) found = known.mixer;
    }
    if (!found) {
      ThrowUnsupported(source, "field '" + field + "': layer type " + Quoted(name) +
                                   "; supported are 'linear_attention', 'full_attention', 'mlp' "
                                   "and 'moe'");
    }
    mixers.push_back(*found);
  }
  return mixers;
}

// Files may state the layers in several ways, which must agree.
std::vector<Mixer> ParseMixers(const Json& json, const std::string& source) {
  std::optional<std::vector<Mixer>> mixers;
  std::string first;
  const auto take = [&](const char* field, std::vector<Mixer> found) {
    if (mixers && *mixers != found) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": fields '" + first + "' and '" + field + "' contradict each other");
    }
    first = field;
    mixers = std::move(found);
  };
  for (const char* field : {"layers_block_type", "layer_types"}) {
    if (json.contains(field) && !json[field].is_null()) {
      take(field, MixersOfList(json[field], field, source));
    }
  }
  const char* const pattern = "hybrid_override_pattern";
  if (json.contains(pattern) && !json[pattern].is_null()) {
    take(pattern, MixersOfPattern(JsonStringOr(json, pattern, "", source), source));
  }
  return mixers ? *std::move(mixers) : MixersOfPattern("ME*-", source);
}

void SetMixers(const std::vector<Mixer>& mixers, ModelConfig& c) {
  c.n_layers = static_cast<int64_t>(mixers.size());
  c.recurrent.layers.clear();
  c.mlp_layers.clear();
  c.experts.layers.clear();
  for (const Mixer mixer : mixers) {
    c.recurrent.layers.push_back(mixer == Mixer::kMamba);
    c.mlp_layers.push_back(mixer == Mixer::kMlp);
    c.experts.layers.push_back(mixer == Mixer::kExperts);
  }
}

void ParseMoe(const Json& json, ModelConfig& c, const std::string& source) {
  const std::vector<bool> layers = c.experts.layers;
  c.experts = ParseExperts(json, kExpertKeys, source);
  c.experts.layers = layers;
  UseBiasedRouter(c.experts);
  RouterSpec& router = c.experts.router;
  router.scale = static_cast<float>(JsonNumberOr(json, "routed_scaling_factor", 1, 0, 1e6, source));
  ParseExpertGroups(json, 1, 1, router, source);
  c.experts.latent_dim = JsonIntOr(json, "moe_latent_size", 0, 0, kMaxWidth, source);
}

// Keys of the first files; they precede the others.
void RenameOldKeys(Json& json) {
  constexpr std::array<std::array<const char*, 2>, 4> kOld{{{"mamba_n_groups", "n_groups"},
                                                            {"mamba_d_conv", "conv_kernel"},
                                                            {"mamba_conv_bias", "use_conv_bias"},
                                                            {"mamba_dt_min", "time_step_min"}}};
  for (const auto& [old, now] : kOld) {
    if (json.contains(old)) json[now] = json[old];
  }
}

ModelConfig ParseConfig(const Json& given, const std::string& source) {
  Json json = given;
  RenameOldKeys(json);
  const std::vector<Mixer> mixers = ParseMixers(json, source);
  if (mixers.empty() || static_cast<int64_t>(mixers.size()) > kMaxLayers) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'layers_block_type' must name 1 to " +
                                          std::to_string(kMaxLayers) + " layers");
  }
  const auto n_layers = static_cast<int64_t>(mixers.size());
  if (JsonIntOr(json, "num_hidden_layers", n_layers, 1, kMaxLayers, source) != n_layers) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field 'num_hidden_layers' must be the " + std::to_string(n_layers) +
                    " layers of 'layers_block_type' or 'hybrid_override_pattern'");
  }
  json["num_hidden_layers"] = n_layers;
  if (json.contains("layer_norm_epsilon")) json["rms_norm_eps"] = json["layer_norm_epsilon"];
  ModelConfig c = ParseDecoder(json,
                               {.vocab_size = 131072,
                                .ffn_dim = 21504,
                                .n_kv_heads = 8,
                                .head_dim = 128,
                                .max_context_len = 4096,
                                .norm_eps = 1e-5,
                                .bos = {1},
                                .eos = {2}},
                               source);
  c.family = "nemotron_h";
  c.attention_bias = false;  // the class reads the key and builds no biases
  if (ParseWindow(json, 0, source) != 0) ThrowUnsupported(source, "'sliding_window'");
  SetMixers(mixers, c);
  c.layer_ropes.assign(mixers.size(), ModelConfig::kNoRope);
  c.activation = ParseActivation(json, "mlp_hidden_act", "relu2", source);
  c.mlp_bias = JsonBoolOr(json, "mlp_bias", false, source);
  RequireMambaSilu(json, "mamba_hidden_act", source);
  ParseMamba(json, kMambaKeys, c, source);
  c.recurrent.scan.least_dt =
      static_cast<float>(JsonNumberOr(json, "time_step_min", 0.001, 0, 1e6, source));
  ParseMoe(json, c, source);
  return c;
}

Json WriteConfig(const ModelConfig& c) {
  Json json = WriteDecoder(c, "NemotronHForCausalLM", "nemotron_h");
  for (const char* field :
       {"rms_norm_eps", "rope_theta", "rope_scaling", "attention_bias", "hidden_act"}) {
    json.erase(field);
  }
  json["layer_norm_epsilon"] = ShortestDouble(c.norm_eps);
  json["mlp_hidden_act"] = ActivationName(c.activation);
  json["mlp_bias"] = c.mlp_bias;
  WriteMamba(c, kMambaKeys, json);
  json["time_step_min"] = ShortestDouble(c.recurrent.scan.least_dt);
  json["layers_block_type"] = Json::array();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    for (const MixerName& known : kMixers) {
      if (known.mixer == MixerOf(c, layer)) json["layers_block_type"].push_back(known.name);
    }
  }
  const ExpertsConfig& e = c.experts;
  WriteExperts(c, kExpertKeys, json);
  json.erase("router_aux_loss_coef");
  WriteExpertGroups(e.router, json);
  json["moe_latent_size"] = e.latent_dim == 0 ? Json(nullptr) : Json(e.latent_dim);
  return json;
}

void ListPlainMlp(std::vector<WeightSpec>& specs, const std::string& prefix, int64_t ffn,
                  const ModelConfig& c) {
  ListProjection(specs, prefix + "up_proj", ffn, c.hidden_dim, c.mlp_bias);
  ListProjection(specs, prefix + "down_proj", c.hidden_dim, ffn, c.mlp_bias);
}

// Each expert's projection is a weight of its own, as published. transformers 5 stacks them.
void ListExpertProjection(std::vector<WeightSpec>& specs, const std::string& experts,
                          const std::string& name, int64_t n_experts, int64_t n, int64_t k) {
  for (int64_t e = 0; e < n_experts; ++e) {
    specs.push_back(MatrixSpec(experts + std::to_string(e) + "." + name + ".weight", n, k));
    specs.back().parts = {{.tensor = experts + name, .index = e, .is_written = false}};
  }
}

void ListMoe(std::vector<WeightSpec>& specs, const std::string& prefix, const ModelConfig& c) {
  const ExpertsConfig& e = c.experts;
  const int64_t n = e.router.n_experts;
  const int64_t width = e.latent_dim > 0 ? e.latent_dim : c.hidden_dim;
  specs.push_back(MatrixSpec(prefix + "gate.weight", n, c.hidden_dim));
  specs.push_back(VectorSpec(prefix + "gate.e_score_correction_bias", n));
  if (e.latent_dim > 0) {
    ListProjection(specs, prefix + "fc1_latent_proj", width, c.hidden_dim, c.mlp_bias);
    ListProjection(specs, prefix + "fc2_latent_proj", c.hidden_dim, width, c.mlp_bias);
  }
  ListExpertProjection(specs, prefix + "experts.", "up_proj", n, e.ffn_dim, width);
  ListExpertProjection(specs, prefix + "experts.", "down_proj", n, width, e.ffn_dim);
  ListPlainMlp(specs, prefix + "shared_experts.", e.shared_ffn_dim, c);
}

void ListMixer(std::vector<WeightSpec>& specs, const std::string& prefix, const ModelConfig& c,
               int64_t layer) {
  switch (MixerOf(c, layer)) {
    case Mixer::kMamba:
      return ListMamba(specs, prefix, c);
    case Mixer::kAttention: {
      // ListSelfAttention puts a dot before the names.
      return ListSelfAttention(specs, prefix.substr(0, prefix.size() - 1), c, {});
    }
    case Mixer::kMlp:
      return ListPlainMlp(specs, prefix, c.ffn_dim, c);
    case Mixer::kExperts:
      return ListMoe(specs, prefix, c);
  }
}

std::vector<WeightSpec> ListWeights(const ModelConfig& c) {
  std::vector<WeightSpec> specs;
  specs.push_back(EmbeddingSpec("backbone.embeddings.weight", c.vocab_size, c.hidden_dim));
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer) + ".";
    specs.push_back(VectorSpec(prefix + "norm.weight", c.hidden_dim));
    ListMixer(specs, prefix + "mixer.", c, layer);
  }
  ListHead(specs, VectorSpec("backbone.norm_f.weight", c.hidden_dim), c);
  // The name of the decoder inside transformers 5, which saves the published one.
  for (WeightSpec& spec : specs) {
    if (spec.name.starts_with("backbone.")) spec.aliases = {"model." + spec.name.substr(9)};
  }
  return specs;
}

Act PlainMlp(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act x) {
  const Projection up = TakeProjection(w, c.mlp_bias);
  const Projection down = TakeProjection(w, c.mlp_bias);
  return Project(ops, ops.Activate(Project(ops, x, up), c.activation), down);
}

Act Moe(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h) {
  const ExpertsConfig& e = c.experts;
  const Weight& router = w.Take();
  const Weight& bias = w.Take();
  const Act routing = ops.Route(ops.Linear(h, router, nullptr), &bias, e.router);
  Act x = h;
  std::optional<Projection> out;
  if (e.latent_dim > 0) {
    x = Project(ops, h, TakeProjection(w, c.mlp_bias));
    out.emplace(TakeProjection(w, c.mlp_bias));
  }
  const auto ups = w.TakeMany(e.router.n_experts);
  const auto downs = w.TakeMany(e.router.n_experts);
  const Act up = ops.ExpertLinear(x, routing, ups, {});  // [rows, top_k * ffn_dim]
  const Act hidden = ops.Activate(up, c.activation);
  Act chosen = ops.Combine(ops.ExpertLinear(hidden, routing, downs, {}), routing);
  if (out) chosen = Project(ops, chosen, *out);
  return ops.Add(chosen, PlainMlp(ops, w, c, h));
}

Act RunMixer(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h, int64_t layer) {
  switch (MixerOf(c, layer)) {
    case Mixer::kMamba:
      return RunMamba(ops, w, c, h);
    case Mixer::kAttention:
      return RunSelfAttention(ops, TakeSelfAttention(w, {}), c, h, layer);
    case Mixer::kMlp:
      return PlainMlp(ops, w, c, h);
    case Mixer::kExperts:
      break;
  }
  return Moe(ops, w, c, h);
}

void Forward(const ModelConfig& c, const Weights& weights, LayerOps& ops) {
  WeightCursor w(weights);
  const Weight& embedding = w.Take();
  Act x = ops.Embed(embedding);
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const Act h = ops.RmsNorm(x, w.Take(), c.norm_eps);
    x = ops.Add(x, RunMixer(ops, w, c, h, layer));
  }
  RunHead(ops, w, embedding, c, x);
}

std::vector<RopeSpec> ListRopes(const ModelConfig&) { return {}; }

void ShapeTiny(ModelConfig& c) {
  c.attention.n_kv_heads = 2;
  c.activation = Activation::kRelu2;
  c.mlp_bias = true;
  ShapeTinyMamba(c);
  c.recurrent.in_bias = c.recurrent.out_bias = true;
  ShapeTinyExperts(c);
  UseBiasedRouter(c.experts);
  c.experts.shared_ffn_dim = 40;
  c.experts.latent_dim = 32;
  c.experts.aux_loss = 0;
  c.experts.router.normalise = true;
  c.experts.router.scale = 2.5f;
  c.experts.router.n_groups = 4;
  c.experts.router.top_groups = 2;
  SetMixers({Mixer::kMamba, Mixer::kExperts, Mixer::kAttention, Mixer::kMlp}, c);
  c.layer_ropes.assign(static_cast<size_t>(c.n_layers), ModelConfig::kNoRope);
}

}  // namespace

extern constinit const FamilySpec kFamily{
    .name = "nemotron_h",
    .models = "Nemotron-H, Nemotron 3",
    .architectures = kArchitectures,
    .parse_config = ParseConfig,
    .write_config = WriteConfig,
    .list_weights = ListWeights,
    .list_ropes = ListRopes,
    .forward = Forward,
    .shape_tiny = ShapeTiny,
    .gguf = &kGguf,
};

}  // namespace tandem::engine::nemotron_h
