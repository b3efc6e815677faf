#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/api/loaded_model.h"
#include "engine/formats/model_dir.h"

namespace tandem::server {

// The speed of this machine for one format of weights ("bf16", "int4"), as the caller measured it.
struct FormatSpeed {
  double bytes_per_second = 0;  // of weights in products with one row
  double flops = 0;             // per second, of products with many rows
};
// Called once for each format that the model has under some dtype.
using MeasureFormat = std::function<FormatSpeed(const std::string& format)>;

// A model served in one dtype on this machine, before it is loaded.
struct DTypeOutlook {
  std::string dtype;        // "bf16", "int8", "gguf-int4-int8"
  bool is_default = false;  // what --dtype auto chooses
  engine::MemoryPlan plan;  // with the whole context
  int64_t kv_1k_bytes = 0;  // KV cache and states of one sequence of 1,024 tokens
  // The longest context that fits the memory; 0: not even 1,024 tokens fit.
  int64_t fitting_context = 0;
  int64_t read_bytes = 0;  // of weights, for one token of one stream
  // Estimates: weights over measured speeds. Attention and sampling are not in them.
  double decode_tokens_per_second = 0;   // one stream, short context
  double prefill_tokens_per_second = 0;  // a long prompt
};

struct ModelOutlook {
  std::string family;  // and the class of config.json
  std::string architecture;
  std::string models;
  int64_t n_tensors = 0;
  int64_t max_context_len = 0;
  int64_t memory_bytes = 0;
  std::map<std::string, FormatSpeed> speeds;  // by format
  std::vector<DTypeOutlook> dtypes;           // the default first
};

struct OutlookOptions {
  int64_t memory_bytes = 0;   // 0: 80 % of the available memory
  int64_t max_model_len = 0;  // 0: the model's own
  bool has_default = true;    // false: the dtype that `auto` would choose is not known
};
// Reads no weight. Throws what PlanMemory throws for the same faults.
ModelOutlook MakeOutlook(const engine::ModelDir& dir, const OutlookOptions& options,
                         const MeasureFormat& measure);

}  // namespace tandem::server
