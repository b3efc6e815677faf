#pragma once

#include <cstdint>
#include <span>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_window.h"
#include "engine/ops/attention.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// What a layer's queries see.
KvWindow WindowOf(const AttentionSpec& layer);

// Distributes layers over the tables of a KV cache (engine/kv/README.md, decision 7). A table holds
// layers of one window; layers that see everything come first. A block has the size of the largest
// table, so the cut decides what padding costs. It minimises the bytes of a sequence of eight
// windows, or of `max_model_len` tokens if that is less. `layers`: as ForwardPlan::kv_layers.
KvCache::Shape LayOutKv(std::span<const AttentionSpec> layers, DType dtype, int64_t max_model_len,
                        KvFormat format = KvFormat::kCompute);

// One table that keeps every position.
KvCache::Shape KvInOneTable(std::span<const AttentionSpec> layers, DType dtype,
                            KvFormat format = KvFormat::kCompute);

}  // namespace tandem::engine
