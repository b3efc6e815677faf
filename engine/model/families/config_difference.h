#pragma once

#include <string_view>

#include "engine/model/families/config.h"

namespace tandem::engine {

// Names the first of the parts in GemmaParts in which two configurations compute differently; empty
// if there is none. Rows of the layers' table beyond the smaller one do not count.
inline std::string_view DifferentLayerPart(const ModelConfig& a, const ModelConfig& b) {
  const GemmaParts &is = a.gemma, &other = b.gemma;
  if (is.per_layer_dim != other.per_layer_dim) return "width of layers' embeddings";
  if (is.n_shared_kv_layers != other.n_shared_kv_layers) return "layers that share keys";
  if (is.values_are_keys != other.values_are_keys) return "use of keys as values";
  if (is.wide_shared_mlp != other.wide_shared_mlp) return "wider MLPs";
  if (is.n_streams != other.n_streams) return "number of streams";
  if (is.active_stream != other.active_stream) return "active stream";
  if (is.scales_active != other.scales_active) return "scale of the active stream";
  if (is.laurel_rank != other.laurel_rank) return "rank of the learned residual";
  if (is.ffn_dims != other.ffn_dims) return "widths of MLPs";
  if (is.cuts != other.cuts) return "sparsity of MLPs";
  return "";
}

}  // namespace tandem::engine
