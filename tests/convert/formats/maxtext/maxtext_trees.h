#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "engine/model/families/config.h"

namespace tandem::convert {

// Facts about MaxText's trees: the names and shapes that its layers and converters state, for tiny
// models (bench::TinyModelConfig).

// A parameter of a layer. Axes: E expert, I input, O output; H and D are heads and dimensions of
// whichever of I and O is absent; 1 has one element. Scanned, the layers are a second axis.
struct ParameterRow {
  const char* leaf;
  const char* tensor;  // in its layer; {E} is the expert
  const char* axes;
  std::vector<int64_t> shape;
  float factor = 1;
  float added = 0;
};

// Layers of one kind: the path that holds them scanned, and the path of each.
struct LayerGroup {
  const char* scanned;
  std::vector<int64_t> layers;
  std::vector<const char*> unscanned;
  std::vector<ParameterRow> rows;
  int64_t inner = 0;  // scanned: layers are axes 1 and 2, the latter of this size; 0: axis 1
};

struct TreeCase {
  const char* family;
  void (*change)(engine::ModelConfig& config);  // of the family's tiny model; null: none
  std::vector<LayerGroup> groups;
  int64_t vocabulary = 272;
  bool has_scanned = true;
  size_t n_others = 0;  // parameters of no layer besides embedding, norm and head
};

inline const std::vector<ParameterRow> kNorms = {
    {"pre_self_attention_layer_norm.scale", "input_layernorm.weight", "O", {48}},
    {"post_self_attention_layer_norm.scale", "post_attention_layernorm.weight", "O", {48}}};
inline const std::vector<ParameterRow> kDenseMlp = {
    {"mlp.wi_0.kernel", "mlp.gate_proj.weight", "IO", {48, 80}},
    {"mlp.wi_1.kernel", "mlp.up_proj.weight", "IO", {48, 80}},
    {"mlp.wo.kernel", "mlp.down_proj.weight", "IO", {80, 48}}};
inline const std::vector<ParameterRow> kLatentRows = {
    {"self_attention.wkv_a.kernel", "self_attn.kv_a_proj_with_mqa.weight", "IO", {48, 22}},
    {"self_attention.kv_norm.scale", "self_attn.kv_a_layernorm.weight", "O", {16}},
    {"self_attention.wkv_b.kernel", "self_attn.kv_b_proj.weight", "IHD", {16, 4, 18}},
    {"self_attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 10, 48}}};
inline const std::vector<ParameterRow> kQueryLatentRows = {
    {"self_attention.wq_a.kernel", "self_attn.q_a_proj.weight", "IO", {48, 20}},
    {"self_attention.q_norm.scale", "self_attn.q_a_layernorm.weight", "O", {20}},
    {"self_attention.wq_b.kernel", "self_attn.q_b_proj.weight", "IHD", {20, 4, 14}}};
inline const std::vector<ParameterRow> kQueryRows = {
    {"self_attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 14}}};
inline const std::vector<ParameterRow> kSharedExpertRows = {
    {"DeepSeekMoeBlock_0.MoeBlock_0.gate.kernel", "mlp.gate.weight", "IO", {48, 20}},
    {"DeepSeekMoeBlock_0.MoeBlock_0.wi_0", "mlp.experts.{E}.gate_proj.weight", "EIO", {20, 48, 24}},
    {"DeepSeekMoeBlock_0.MoeBlock_0.wi_1", "mlp.experts.{E}.up_proj.weight", "EIO", {20, 48, 24}},
    {"DeepSeekMoeBlock_0.MoeBlock_0.wo", "mlp.experts.{E}.down_proj.weight", "EIO", {20, 24, 48}},
    {"DeepSeekMoeBlock_0.shared_experts.wi_0.kernel",
     "mlp.shared_experts.gate_proj.weight",
     "IO",
     {48, 48}},
    {"DeepSeekMoeBlock_0.shared_experts.wi_1.kernel",
     "mlp.shared_experts.up_proj.weight",
     "IO",
     {48, 48}},
    {"DeepSeekMoeBlock_0.shared_experts.wo.kernel",
     "mlp.shared_experts.down_proj.weight",
     "IO",
     {48, 48}}};
inline const std::vector<ParameterRow> kGateBias = {
    {"DeepSeekMoeBlock_0.MoeBlock_0.gate.bias", "mlp.gate.e_score_correction_bias", "O", {20}}};
inline const std::vector<ParameterRow> kGptOssRows = {
    {"GptOssAttention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 12}},
    {"GptOssAttention.query.bias", "self_attn.q_proj.bias", "HD", {4, 12}},
    {"GptOssAttention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 2, 12}},
    {"GptOssAttention.key.bias", "self_attn.k_proj.bias", "HD", {2, 12}},
    {"GptOssAttention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 2, 12}},
    {"GptOssAttention.value.bias", "self_attn.v_proj.bias", "HD", {2, 12}},
    {"GptOssAttention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 12, 48}},
    {"GptOssAttention.out.bias", "self_attn.o_proj.bias", "O", {48}},
    {"GptOssAttention.sinks", "self_attn.sinks", "O", {4}},
    {"GptOssMlp.gate.kernel", "mlp.router.weight", "IO", {48, 20}},
    {"GptOssMlp.gate.bias", "mlp.router.bias", "O", {20}},
    {"GptOssMlp.wi_0", "mlp.experts.{E}.gate_proj.weight", "EIO", {20, 48, 24}},
    {"GptOssMlp.wi_0_bias", "mlp.experts.{E}.gate_proj.bias", "EO", {20, 24}},
    {"GptOssMlp.wi_1", "mlp.experts.{E}.up_proj.weight", "EIO", {20, 48, 24}},
    {"GptOssMlp.wi_1_bias", "mlp.experts.{E}.up_proj.bias", "EO", {20, 24}},
    {"GptOssMlp.wo", "mlp.experts.{E}.down_proj.weight", "EIO", {20, 24, 48}},
    {"GptOssMlp.wo_bias", "mlp.experts.{E}.down_proj.bias", "EO", {20, 48}}};
// As many heads of keys as of queries.
inline const std::vector<ParameterRow> kKeyRows = {
    {"self_attention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 4, 12}},
    {"self_attention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 4, 12}},
    {"self_attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 12, 48}}};
inline const std::vector<ParameterRow> kScaledQueryRows = {
    {"self_attention.query.kernel",
     "self_attn.q_proj.weight",
     "IHD",
     {48, 4, 12},
     static_cast<float>(1 / std::sqrt(12.0))}};
inline const std::vector<ParameterRow> kQwen2Rows = {
    {"self_attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 12}},
    {"self_attention.query.bias", "self_attn.q_proj.bias", "HD", {4, 12}},
    {"self_attention.key.bias", "self_attn.k_proj.bias", "HD", {4, 12}},
    {"self_attention.value.bias", "self_attn.v_proj.bias", "HD", {4, 12}}};
inline const std::vector<ParameterRow> kGemmaRows = {
    {"pre_self_attention_norm.scale", "input_layernorm.weight", "O", {48}, 1, 1},
    {"pre_ffw_norm.scale", "post_attention_layernorm.weight", "O", {48}, 1, 1},
    {"self_attention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 1, 12}},
    {"self_attention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 1, 12}},
    {"self_attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 12, 48}}};
inline const std::vector<ParameterRow> kOlmo3Rows = {
    {"attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 12}},
    {"attention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 2, 12}},
    {"attention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 2, 12}},
    {"attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 12, 48}},
    {"attention.query_norm.scale", "self_attn.q_norm.weight", "O", {48}},
    {"attention.key_norm.scale", "self_attn.k_norm.weight", "O", {24}},
    {"post_self_attention_layer_norm.scale", "post_attention_layernorm.weight", "O", {48}},
    {"post_mlp_layer_norm.scale", "post_feedforward_layernorm.weight", "O", {48}}};
inline const std::vector<ParameterRow> kNextExpertRows = {
    {"input_layernorm.scale", "input_layernorm.weight", "O", {48}},
    {"post_attention_layernorm.scale", "post_attention_layernorm.weight", "O", {48}},
    {"mlp.routed_experts.gate.kernel", "mlp.gate.weight", "IO", {48, 20}},
    {"mlp.routed_experts.wi_0", "mlp.experts.{E}.gate_proj.weight", "EIO", {20, 48, 24}},
    {"mlp.routed_experts.wi_1", "mlp.experts.{E}.up_proj.weight", "EIO", {20, 48, 24}},
    {"mlp.routed_experts.wo", "mlp.experts.{E}.down_proj.weight", "EIO", {20, 24, 48}},
    {"mlp.shared_expert.wi_0.kernel", "mlp.shared_expert.gate_proj.weight", "IO", {48, 28}},
    {"mlp.shared_expert.wi_1.kernel", "mlp.shared_expert.up_proj.weight", "IO", {48, 28}},
    {"mlp.shared_expert.wo.kernel", "mlp.shared_expert.down_proj.weight", "IO", {28, 48}},
    {"mlp.shared_expert_gate.kernel", "mlp.shared_expert_gate.weight", "IO", {48, 1}}};
inline const std::vector<ParameterRow> kNextStateRows = {
    {"attention.in_proj_qkvz.kernel", "linear_attn.in_proj_qkvz.weight", "IO", {48, 136}},
    {"attention.in_proj_ba.kernel", "linear_attn.in_proj_ba.weight", "IO", {48, 8}},
    {"attention.conv1d.kernel", "linear_attn.conv1d.weight", "I1O", {4, 1, 88}},
    {"attention.A_log", "linear_attn.A_log", "O", {4}},
    {"attention.dt_bias", "linear_attn.dt_bias", "O", {4}},
    {"attention.norm.rms_norm.scale", "linear_attn.norm.weight", "O", {12}},
    {"attention.out_proj.kernel", "linear_attn.out_proj.weight", "IO", {48, 48}}};
inline const std::vector<ParameterRow> kNextAttentionRows = {
    {"attention.attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 32}},
    {"attention.attention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 2, 16}},
    {"attention.attention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 2, 16}},
    {"attention.attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 16, 48}},
    {"attention.attention.query_norm.scale", "self_attn.q_norm.weight", "O", {16}},
    {"attention.attention.key_norm.scale", "self_attn.k_norm.weight", "O", {16}}};
inline const std::vector<ParameterRow> kMixtralRows = {
    {"MoeBlock_0.gate.kernel", "block_sparse_moe.gate.weight", "IO", {48, 20}},
    {"MoeBlock_0.wi_0", "block_sparse_moe.experts.{E}.w1.weight", "EIO", {20, 48, 24}},
    {"MoeBlock_0.wi_1", "block_sparse_moe.experts.{E}.w3.weight", "EIO", {20, 48, 24}},
    {"MoeBlock_0.wo", "block_sparse_moe.experts.{E}.w2.weight", "EIO", {20, 24, 48}}};
inline const std::vector<ParameterRow> kQwen3MoeRows = {
    {"self_attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, 12}},
    {"self_attention.key.kernel", "self_attn.k_proj.weight", "IHD", {48, 2, 12}},
    {"self_attention.value.kernel", "self_attn.v_proj.weight", "IHD", {48, 2, 12}},
    {"self_attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, 12, 48}},
    {"self_attention.query_norm.scale", "self_attn.q_norm.weight", "O", {12}},
    {"self_attention.key_norm.scale", "self_attn.k_norm.weight", "O", {12}},
    {"moe_block.gate.kernel", "mlp.gate.weight", "IO", {48, 20}},
    {"moe_block.wi_0", "mlp.experts.{E}.gate_proj.weight", "EIO", {20, 48, 24}},
    {"moe_block.wi_1", "mlp.experts.{E}.up_proj.weight", "EIO", {20, 48, 24}},
    {"moe_block.wo", "mlp.experts.{E}.down_proj.weight", "EIO", {20, 24, 48}}};

inline std::vector<ParameterRow> Rows(std::initializer_list<std::vector<ParameterRow>> parts) {
  std::vector<ParameterRow> rows;
  for (const auto& part : parts) rows.insert(rows.end(), part.begin(), part.end());
  return rows;
}

inline std::vector<LayerGroup> DenseFirst(const std::vector<ParameterRow>& query,
                                          const std::vector<ParameterRow>& bias) {
  return {{"dense_layers", {0}, {"dense_layers_0"}, Rows({kNorms, query, kLatentRows, kDenseMlp})},
          {"moe_layers",
           {1, 2},
           {"moe_layers_0", "moe_layers_1"},
           Rows({kNorms, query, kLatentRows, kSharedExpertRows, bias})}};
}

// Layers whose kinds repeat: one group per kind.
inline std::vector<LayerGroup> Cycles(const std::vector<const char*>& scanned,
                                      const std::vector<const char*>& unscanned,
                                      const std::vector<std::vector<ParameterRow>>& rows) {
  std::vector<LayerGroup> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    LayerGroup group{scanned[i], {}, {}, rows[i]};
    for (size_t layer = i; layer < unscanned.size(); layer += rows.size()) {
      group.layers.push_back(static_cast<int64_t>(layer));
      group.unscanned.push_back(unscanned[layer]);
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

inline const std::vector<const char*> kEightLayers = {
    "layers_0", "layers_1", "layers_2", "layers_3", "layers_4", "layers_5", "layers_6", "layers_7"};

inline std::vector<LayerGroup> NextGroups() {
  const std::vector<ParameterRow> state = Rows({kNextExpertRows, kNextStateRows});
  return Cycles({"layers.layer_0", "layers.layer_1", "layers.layer_2", "layers.layer_3"},
                kEightLayers, {state, state, state, Rows({kNextExpertRows, kNextAttentionRows})});
}

inline std::vector<LayerGroup> Olmo3Groups() {
  const std::vector<ParameterRow> rows = Rows({kOlmo3Rows, kDenseMlp});
  return Cycles({"layers.layers_0", "layers.layers_1", "layers.layers_2", "layers.layers_3"},
                kEightLayers, {rows, rows, rows, rows});
}

inline const std::vector<ParameterRow> kGemma4Rows = {
    {"pre_self_attention_norm.scale", "input_layernorm.weight", "O", {48}},
    {"post_self_attention_norm.scale", "post_attention_layernorm.weight", "O", {48}},
    {"pre_ffw_norm.scale", "pre_feedforward_layernorm.weight", "O", {48}},
    {"post_ffw_norm.scale", "post_feedforward_layernorm.weight", "O", {48}},
    {"layer_scalar", "layer_scalar", "O", {1}}};

// Attention with heads of this size; n_kv_heads 0: it reads another layer's keys.
inline std::vector<ParameterRow> Gemma4Attention(int64_t head_dim, int64_t n_kv_heads,
                                                 bool has_values) {
  std::vector<ParameterRow> rows = {
      {"self_attention.query.kernel", "self_attn.q_proj.weight", "IHD", {48, 4, head_dim}},
      {"self_attention.out.kernel", "self_attn.o_proj.weight", "HDO", {4, head_dim, 48}},
      {"self_attention.query_norm.scale", "self_attn.q_norm.weight", "O", {head_dim}}};
  if (n_kv_heads == 0) return rows;
  const std::vector<int64_t> shape = {48, n_kv_heads, head_dim};
  rows.push_back({"self_attention.key.kernel", "self_attn.k_proj.weight", "IHD", shape});
  rows.push_back({"self_attention.key_norm.scale", "self_attn.k_norm.weight", "O", {head_dim}});
  if (has_values) {
    rows.push_back({"self_attention.value.kernel", "self_attn.v_proj.weight", "IHD", shape});
  }
  return rows;
}

// Windowed layers of each six along two axes, the full ones along one. Values of full layers are
// the keys.
inline std::vector<LayerGroup> GemmaGroups(const std::vector<ParameterRow>& mlp) {
  return {{"scanned_blocks.local_layers",
           {0, 1, 2, 3, 4, 6, 7, 8, 9, 10},
           {"layers_0", "layers_1", "layers_2", "layers_3", "layers_4", "layers_6", "layers_7",
            "layers_8", "layers_9", "layers_10"},
           Rows({kGemma4Rows, Gemma4Attention(12, 2, true), mlp}),
           5},
          {"scanned_blocks.global_layer",
           {5, 11},
           {"layers_5", "layers_11"},
           Rows({kGemma4Rows, Gemma4Attention(20, 1, false), mlp})}};
}

// Small models: the last five of ten layers read earlier keys and have a wide MLP.
inline std::vector<LayerGroup> SmallGemmaGroups() {
  const std::vector<ParameterRow> inputs = {
      {"per_layer_input_gate.kernel", "per_layer_input_gate.weight", "IO", {48, 8}},
      {"per_layer_projection.kernel", "per_layer_projection.weight", "IO", {8, 48}},
      {"post_per_layer_input_norm.scale", "post_per_layer_input_norm.weight", "O", {48}}};
  const std::vector<ParameterRow> wide = {
      {"mlp.wi_0.kernel", "mlp.gate_proj.weight", "IO", {48, 160}},
      {"mlp.wi_1.kernel", "mlp.up_proj.weight", "IO", {48, 160}},
      {"mlp.wo.kernel", "mlp.down_proj.weight", "IO", {160, 48}}};
  const auto rows = [&](const auto& attention, const auto& mlp) {
    return Rows({kGemma4Rows, inputs, attention, mlp});
  };
  return {{"",
           {0, 1, 2, 3},
           {"layers_0", "layers_1", "layers_2", "layers_3"},
           rows(Gemma4Attention(12, 2, true), kDenseMlp)},
          {"", {4}, {"layers_4"}, rows(Gemma4Attention(20, 1, true), kDenseMlp)},
          {"",
           {5, 6, 7, 8},
           {"layers_5", "layers_6", "layers_7", "layers_8"},
           rows(Gemma4Attention(12, 0, false), wide)},
          {"", {9}, {"layers_9"}, rows(Gemma4Attention(20, 0, false), wide)}};
}

inline const std::vector<ParameterRow> kGemmaExpertRows = {
    {"mlp.moe_block.shared_experts.wi_0.kernel", "mlp.gate_proj.weight", "IO", {48, 80}},
    {"mlp.moe_block.shared_experts.wi_1.kernel", "mlp.up_proj.weight", "IO", {48, 80}},
    {"mlp.moe_block.shared_experts.wo.kernel", "mlp.down_proj.weight", "IO", {80, 48}},
    {"mlp.moe_block.MoeBlock_0.gate.kernel", "router.proj.weight", "IO", {48, 20}},
    {"mlp.moe_block.MoeBlock_0.per_expert_scale", "router.per_expert_scale", "O", {20}},
    {"mlp.moe_block.MoeBlock_0.wi_0", "experts.{E}.gate_proj.weight", "EIO", {20, 48, 24}},
    {"mlp.moe_block.MoeBlock_0.wi_1", "experts.{E}.up_proj.weight", "EIO", {20, 48, 24}},
    {"mlp.moe_block.MoeBlock_0.wo", "experts.{E}.down_proj.weight", "EIO", {20, 24, 48}},
    {"mlp.pre_forward_scale_2", "router.scale", "O", {48}},
    {"mlp.pre_feedforward_layernorm_2.scale", "pre_feedforward_layernorm_2.weight", "O", {48}},
    {"mlp.post_feedforward_layernorm_1.scale", "post_feedforward_layernorm_1.weight", "O", {48}},
    {"mlp.post_feedforward_layernorm_2.scale", "post_feedforward_layernorm_2.weight", "O", {48}}};

// Layers of which each `period`th has no window.
inline void SetGemma4Layers(engine::ModelConfig& c, int64_t n_layers, int64_t period) {
  const engine::AttentionSpec windowed = c.layer_attention[0], full = c.layer_attention[1];
  c.n_layers = n_layers;
  c.windowed_layers.clear();
  c.layer_attention.clear();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    c.windowed_layers.push_back(layer % period != period - 1);
    c.layer_attention.push_back(c.windowed_layers.back() ? windowed : full);
  }
}

inline void ShapeSmallGemma4(engine::ModelConfig& c) {
  SetGemma4Layers(c, 10, 5);
  c.gemma.n_shared_kv_layers = 5;
  c.gemma.values_are_keys = false;
  c.experts = {};
}

inline void ShapeGemma4(engine::ModelConfig& c) {
  SetGemma4Layers(c, 12, 6);
  c.gemma.per_layer_dim = 0;
  c.gemma.n_shared_kv_layers = 0;
  c.gemma.wide_shared_mlp = false;
  c.experts.router.n_experts = 20;
}

inline void ShapeGemma4WithoutExperts(engine::ModelConfig& c) {
  ShapeGemma4(c);
  c.experts = {};
}

inline void ShapeOlmo3(engine::ModelConfig& c) {
  c.n_layers = 8;
  c.windowed_layers = {true, true, true, false, true, true, true, false};
  c.layer_ropes = {1, 1, 1, 0, 1, 1, 1, 0};
}

inline void ShapeNext(engine::ModelConfig& c) {
  c.n_layers = 8;
  c.attention_bias = false;
  c.experts.layers.clear();
  c.recurrent.layers = {true, true, true, false, true, true, true, false};
}

inline std::vector<TreeCase> TreeCases() {
  const auto without_bias = [](engine::ModelConfig& c) { c.attention_bias = false; };
  const auto without_query_latent = [](engine::ModelConfig& c) {
    c.attention_bias = false;
    c.latent.q_rank = 0;
  };
  const std::vector<const char*> two = {"layers_0", "layers_1"};
  return {{"mixtral",
           nullptr,
           {{"layers", {0, 1}, two, Rows({kNorms, kScaledQueryRows, kKeyRows, kMixtralRows})}}},
          {"qwen3_moe",
           [](engine::ModelConfig& c) { c.experts.layers.clear(); },
           {{"layers", {0, 1}, two, Rows({kNorms, kQwen3MoeRows})}}},
          {"mistral",
           nullptr,
           {{"layers", {0, 1}, two, Rows({kNorms, kScaledQueryRows, kKeyRows, kDenseMlp})}}},
          {"qwen2",
           nullptr,
           {{"layers", {0, 1}, two, Rows({kNorms, kQwen2Rows, kKeyRows, kDenseMlp})}}},
          {"gemma",
           nullptr,
           {{"layers", {0, 1}, two, Rows({kScaledQueryRows, kGemmaRows, kDenseMlp})}},
           400},
          {"olmo3", ShapeOlmo3, Olmo3Groups()},
          {"qwen3_next", ShapeNext, NextGroups()},
          {"gemma4", ShapeGemma4, GemmaGroups(kGemmaExpertRows)},
          {"gemma4", ShapeGemma4WithoutExperts, GemmaGroups(kDenseMlp)},
          {"gemma4", ShapeSmallGemma4, SmallGemmaGroups(), 272, false, 3},
          {"deepseek_v2", without_query_latent, DenseFirst(kQueryRows, {})},
          {"deepseek_v2", without_bias, DenseFirst(kQueryLatentRows, {})},
          {"deepseek_v3", without_bias, DenseFirst(kQueryLatentRows, kGateBias)},
          {"gpt_oss",
           [](engine::ModelConfig& c) {
             c.n_layers = 4;
             c.windowed_layers = {true, false, true, false};
           },
           {{"layers.layers_0", {0, 2}, {"layers_0", "layers_2"}, Rows({kNorms, kGptOssRows})},
            {"layers.layers_1", {1, 3}, {"layers_1", "layers_3"}, Rows({kNorms, kGptOssRows})}}}};
}

}  // namespace tandem::convert
