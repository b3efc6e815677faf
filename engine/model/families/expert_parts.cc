#include "engine/model/families/expert_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hf_layers.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Far above any known model; ids in a routing are exact in f32 up to 2^24.
constexpr int64_t kMaxExperts = 1 << 14;
constexpr int64_t kMaxSlotWidth = 64 * kMaxWidth;
// Where `num_hidden_layers` is absent: more than any class has by default.
constexpr int64_t kDefaultLayers = 128;

std::string InLayer(const std::string& prefix, std::string_view name) {
  return prefix + std::string(name);
}

void ListExperts(std::vector<WeightSpec>& specs, const std::string& prefix,
                 const ExpertNames& names, std::string_view projection, int64_t n_experts,
                 int64_t n, int64_t k) {
  for (int64_t e = 0; e < n_experts; ++e) {
    specs.push_back(MatrixSpec(InLayer(prefix, names.experts) + "." + std::to_string(e) + "." +
                                   std::string(projection) + ".weight",
                               n, k));
  }
}

void CheckExpertsOfModel(const Json& json, const char* count, int64_t n_experts,
                         const std::string& source) {
  const int64_t n_layers =
      JsonIntOr(json, "num_hidden_layers", kDefaultLayers, 1, kMaxLayers, source);
  if (n_experts * n_layers <= kMaxExpertsOfModel) return;
  throw Error(ErrorCode::kDataLoss,
              source + ": field '" + count + "' is " + std::to_string(n_experts) + " in each of " +
                  std::to_string(n_layers) + " layers ('num_hidden_layers'), more than " +
                  std::to_string(kMaxExpertsOfModel) + " in all");
}

// Runs CheckRouter and adds the file's name to its message.
void CheckRouterOf(const RouterSpec& router, const std::string& source) {
  try {
    CheckRouter(router);
  } catch (const Error& error) {
    throw Error(ErrorCode::kDataLoss, source + ": " + error.what());
  }
}

}  // namespace

void ListExpertMlp(std::vector<WeightSpec>& specs, const std::string& prefix,
                   const ModelConfig& config, const ExpertNames& names) {
  const ExpertsConfig& e = config.experts;
  const int64_t n = e.router.n_experts, hidden = config.hidden_dim;
  specs.push_back(MatrixSpec(InLayer(prefix, names.router), n, hidden));
  if (e.selection_bias) specs.push_back(VectorSpec(InLayer(prefix, names.selection_bias), n));
  ListExperts(specs, prefix, names, names.gate, n, e.ffn_dim, hidden);
  ListExperts(specs, prefix, names, names.up, n, e.ffn_dim, hidden);
  ListExperts(specs, prefix, names, names.down, n, hidden, e.ffn_dim);
  if (e.shared_ffn_dim == 0) return;
  const std::string shared = InLayer(prefix, names.shared) + ".";
  specs.push_back(MatrixSpec(shared + "gate_proj.weight", e.shared_ffn_dim, hidden));
  specs.push_back(MatrixSpec(shared + "up_proj.weight", e.shared_ffn_dim, hidden));
  specs.push_back(MatrixSpec(shared + "down_proj.weight", hidden, e.shared_ffn_dim));
  if (!names.shared_gate.empty()) {
    specs.push_back(MatrixSpec(InLayer(prefix, names.shared_gate), 1, hidden));
  }
}

// Braced initialisers evaluate in order.
ExpertMlp TakeExpertMlp(WeightCursor& weights, const ModelConfig& config,
                        const ExpertNames& names) {
  const ExpertsConfig& e = config.experts;
  const int64_t n = e.router.n_experts;
  const auto take_if = [&](bool holds) { return holds ? &weights.Take() : nullptr; };
  const bool shared = e.shared_ffn_dim > 0;
  return {weights.Take(),
          take_if(e.selection_bias),
          weights.TakeMany(n),
          weights.TakeMany(n),
          weights.TakeMany(n),
          take_if(shared),
          take_if(shared),
          take_if(shared),
          take_if(shared && !names.shared_gate.empty())};
}

Act RunChosenExperts(LayerOps& ops, Act x, Act routing, const ExpertMlp& mlp,
                     const ModelConfig& config) {
  const Act gate = ops.ExpertLinear(x, routing, mlp.gates, {});  // [rows, top_k * ffn_dim]
  const Act up = ops.ExpertLinear(x, routing, mlp.ups, {});
  const Act hidden = ops.GatedActivation(gate, up, config.activation);
  return ops.Combine(ops.ExpertLinear(hidden, routing, mlp.downs, {}), routing);
}

Act RunExpertMlp(LayerOps& ops, Act x, const ExpertMlp& mlp, const ModelConfig& config) {
  const Act logits = ops.Linear(x, mlp.router, nullptr);  // [rows, n_experts]
  const Act routing = ops.Route(logits, mlp.selection_bias, config.experts.router);
  const Act chosen = RunChosenExperts(ops, x, routing, mlp, config);
  if (mlp.shared_gate == nullptr) return chosen;
  const Act shared_gate = ops.Linear(x, *mlp.shared_gate, nullptr);  // [rows, shared_ffn_dim]
  const Act shared_up = ops.Linear(x, *mlp.shared_up, nullptr);
  const Act act = ops.GatedActivation(shared_gate, shared_up, config.activation);
  const Act common = ops.Linear(act, *mlp.shared_down, nullptr);
  if (mlp.shared_scale == nullptr) return ops.Add(chosen, common);
  // A routing to one expert whose weight is the sigmoid of one logit.
  const Act share = ops.Route(ops.Linear(x, *mlp.shared_scale, nullptr), nullptr,
                              {.n_experts = 1, .top_k = 1, .score = RouterScore::kSigmoid});
  return ops.Add(chosen, ops.Combine(common, share));
}

std::optional<StoredPart> StackedPart(const WeightSpec& spec, const ExpertStack& stack,
                                      const ModelConfig& config) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = spec.name.find(kExperts);
  if (at == std::string::npos) return std::nullopt;
  const bool is_down = spec.name.ends_with("down_proj.weight");
  const bool is_up = spec.name.ends_with("up_proj.weight");
  return StoredPart{
      .tensor = spec.name.substr(0, at + 1) + std::string(is_down ? stack.down : stack.gate_up),
      .index = std::stoll(spec.name.substr(at + kExperts.size())),
      .first_row = is_up ? config.experts.ffn_dim : 0};
}

ExpertsConfig ParseExperts(const Json& json, const ExpertKeys& keys, const std::string& source) {
  ExpertsConfig e;
  const char* count = json.contains(keys.count) ? keys.count : keys.other_count;
  e.router.n_experts = JsonIntOr(json, count, keys.n_experts, 1, kMaxExperts, source);
  CheckExpertsOfModel(json, count, e.router.n_experts, source);
  e.router.top_k = JsonIntOr(json, keys.top_k, keys.n_chosen, 1, kMaxExperts, source);
  if (e.router.top_k > e.router.n_experts) {
    throw Error(ErrorCode::kDataLoss,
                source + ": field '" + keys.top_k + "' is " + std::to_string(e.router.top_k) +
                    ", more than " + std::to_string(e.router.n_experts) + " ('" + count + "')");
  }
  const bool normalise = JsonBoolOr(json, "norm_topk_prob", keys.normalise, source);
  e.router.normalise = keys.fixes_norm ? keys.normalise : normalise;
  e.ffn_dim = JsonIntOr(json, keys.ffn, keys.ffn_dim, 1, kMaxWidth, source);
  if (e.router.top_k * e.ffn_dim > kMaxSlotWidth) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + keys.top_k + "' times '" + keys.ffn +
                                          "' exceeds " + std::to_string(kMaxSlotWidth));
  }
  e.aux_loss =
      static_cast<float>(JsonNumberOr(json, "router_aux_loss_coef", keys.aux_loss, 0, 1e6, source));
  if (*keys.shared_ffn != 0) {
    e.shared_ffn_dim = JsonIntOr(json, keys.shared_ffn, keys.shared_ffn_dim, 1, kMaxWidth, source);
  }
  return e;
}

void WriteExperts(const ModelConfig& config, const ExpertKeys& keys, Json& json) {
  const ExpertsConfig& e = config.experts;
  json[keys.count] = e.router.n_experts;
  json[keys.top_k] = e.router.top_k;
  if (!keys.fixes_norm) json["norm_topk_prob"] = e.router.normalise;
  json[keys.ffn] = e.ffn_dim;
  if (*keys.shared_ffn != 0) json[keys.shared_ffn] = e.shared_ffn_dim;
  json["router_aux_loss_coef"] = ShortestDouble(e.aux_loss);
}

void ParseExpertGroups(const Json& json, int64_t n_groups, int64_t top_groups, RouterSpec& router,
                       const std::string& source) {
  router.n_groups = JsonIntOr(json, "n_group", n_groups, 1, kMaxExperts, source);
  router.top_groups = JsonIntOr(json, "topk_group", top_groups, 1, kMaxExperts, source);
  CheckRouterOf(router, source + ": 'n_group' or 'topk_group'");
}

void ParseExpertScale(const Json& json, double fallback, RouterSpec& router,
                      const std::string& source) {
  router.scale =
      static_cast<float>(JsonNumberOr(json, "routed_scaling_factor", fallback, 1e-6, 1e6, source));
}

void WriteExpertGroups(const RouterSpec& router, Json& json) {
  json["routed_scaling_factor"] = ShortestDouble(router.scale);
  json["n_group"] = router.n_groups;
  json["topk_group"] = router.top_groups;
}

void UseBiasedRouter(ExpertsConfig& experts) {
  experts.selection_bias = true;
  experts.router.score = RouterScore::kSigmoid;
  experts.router.group_score = GroupScore::kTop2Sum;
}

void ParseFirstDense(const Json& json, int64_t fallback, ModelConfig& config,
                     const std::string& source) {
  const int64_t first = JsonIntOr(json, "first_k_dense_replace", fallback, 0, kMaxLayers, source);
  config.experts.layers.clear();
  if (first == 0) return;
  for (int64_t i = 0; i < config.n_layers; ++i) config.experts.layers.push_back(i >= first);
}

int64_t FirstExpertLayer(const ModelConfig& config) {
  int64_t first = 0;
  while (first < config.n_layers && !config.HasExperts(first)) ++first;
  return first;
}

void ParseSparseLayers(const Json& json, ModelConfig& config, const std::string& source) {
  const int64_t step = JsonIntOr(json, "decoder_sparse_step", 1, 1, kMaxLayers, source);
  std::vector<bool>& layers = config.experts.layers;
  layers.clear();
  for (int64_t i = 0; i < config.n_layers; ++i) layers.push_back((i + 1) % step == 0);
  const auto dense = ParseLayerNumbers(json, "mlp_only_layers", kMaxLayers, source);
  for (const int64_t i : dense.value_or(std::vector<int64_t>())) {
    // A number beyond the layers names none of them, as in transformers.
    if (i < config.n_layers) layers[static_cast<size_t>(i)] = false;
  }
  if (std::find(layers.begin(), layers.end(), false) == layers.end()) layers.clear();
}

void WriteSparseLayers(const ModelConfig& config, Json& json) {
  Json dense = Json::array();
  for (int64_t i = 0; i < config.n_layers; ++i) {
    if (!config.HasExperts(i)) dense.push_back(i);
  }
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = std::move(dense);
}

void ShapeTinyExperts(ModelConfig& config) {
  config.experts.router.n_experts = 20;
  config.experts.router.top_k = 3;
  config.experts.ffn_dim = 24;
}

}  // namespace tandem::engine
