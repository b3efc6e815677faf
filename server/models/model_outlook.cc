#include "server/models/model_outlook.h"

#include <algorithm>
#include <utility>

#include "engine/base/available_memory.h"
#include "engine/engine.h"
#include "engine/model/family_table.h"
#include "engine/model/model.h"
#include "engine/model/packed_weights.h"
#include "engine/model/plan_ops.h"
#include "server/models/load_model.h"

namespace tandem::server {
namespace {

using engine::MemoryPlan;
using engine::ModelOutline;

constexpr int64_t kShortContext = 1024;

// Weights of one format: the part that one token reads or multiplies with.
struct FormatWork {
  double bytes = 0;  // of one step of one stream
  double flops = 0;  // of one token of a prompt, without the head
};

engine::LoadOptions LoadOptionsOf(const engine::EngineOptions& options) {
  engine::LoadOptions load;
  load.dtype = options.dtype;
  load.block = options.block;
  load.max_context_len = options.max_model_len;
  return load;
}

std::string FormatOf(const ModelOutline& outline, size_t weight) {
  const engine::BlockFormat block = outline.types.blocks[weight];
  return block == engine::BlockFormat::kNone ? std::string(engine::DTypeName(outline.types.dtype))
                                             : engine::BlockFormatName(block);
}

std::map<std::string, FormatWork> WorkOf(const ModelOutline& outline) {
  const engine::ForwardPlan plan =
      engine::PlanForward(*outline.family, outline.config, outline.specs, outline.types.dtype);
  const std::vector<double> shares = plan.ActiveShares(outline.specs.size());
  const std::vector<int64_t> sizes =
      engine::LayOutWeights(outline.specs, outline.types, std::string(64, '0')).sizes;
  const auto head = static_cast<size_t>(plan.ops.back().weight);
  std::map<std::string, FormatWork> work;
  for (size_t i = 0; i < outline.specs.size(); ++i) {
    const engine::WeightSpec& spec = outline.specs[i];
    if (spec.kind == engine::WeightKind::kVector) continue;
    // A table is looked up, not read, unless it is the head too.
    if (spec.kind == engine::WeightKind::kEmbedding && i != head) continue;
    FormatWork& of_format = work[FormatOf(outline, i)];
    of_format.bytes += shares[i] * static_cast<double>(sizes[i]);
    // Only the last token of a prompt needs the head.
    if (i != head) of_format.flops += 2 * shares[i] * static_cast<double>(spec.n * spec.k);
  }
  return work;
}

// Memory beside the weights by context length. It depends on the compute dtype alone, so all
// integer formats share it.
class ContextMemory {
 public:
  explicit ContextMemory(const engine::ModelDir& dir) : dir_(dir) {}

  const MemoryClaim& At(engine::EngineOptions options, engine::DType compute, int64_t context_len) {
    const auto [found, is_new] = claims_.try_emplace({compute, context_len});
    if (is_new) {
      options.max_model_len = context_len;
      found->second = engine::PlanMemory(dir_, options).least;
      found->second.weights = 0;
    }
    return found->second;
  }

 private:
  const engine::ModelDir& dir_;
  std::map<std::pair<engine::DType, int64_t>, MemoryClaim> claims_;
};

// The longest context whose memory is within `room`, to about a thousand tokens. Windows make
// memory grow less and less with the context, so each candidate is planned.
template <typename BytesAt>
int64_t FittingContext(int64_t most, int64_t room, const BytesAt& bytes_at) {
  int64_t fits = std::min(kShortContext, most), too_long = most;
  int64_t bytes_fit = bytes_at(fits), bytes_too_long = bytes_at(too_long);
  if (bytes_too_long <= room) return most;
  if (bytes_fit > room) return 0;
  for (int i = 0; i < 5 && too_long - fits > kShortContext; ++i) {
    const double part =
        static_cast<double>(room - bytes_fit) / static_cast<double>(bytes_too_long - bytes_fit);
    const auto step = static_cast<int64_t>(part * static_cast<double>(too_long - fits));
    const int64_t candidate = fits + std::clamp(step, int64_t{1}, too_long - fits - 1);
    const int64_t bytes = bytes_at(candidate);
    (bytes <= room ? fits : too_long) = candidate;
    (bytes <= room ? bytes_fit : bytes_too_long) = bytes;
  }
  return fits;
}

// Adds the times of one token, by measured speeds.
void AddSpeeds(const ModelOutline& outline, const MeasureFormat& measure,
               std::map<std::string, FormatSpeed>& speeds, DTypeOutlook& dtype) {
  double decode_seconds = 0, prefill_seconds = 0, bytes = 0;
  for (const auto& [format, work] : WorkOf(outline)) {
    if (!speeds.contains(format)) speeds[format] = measure(format);
    const FormatSpeed& speed = speeds.at(format);
    decode_seconds += work.bytes / speed.bytes_per_second;
    prefill_seconds += work.flops / speed.flops;
    bytes += work.bytes;
  }
  dtype.read_bytes = static_cast<int64_t>(bytes);
  dtype.decode_tokens_per_second = decode_seconds > 0 ? 1 / decode_seconds : 0;
  dtype.prefill_tokens_per_second = prefill_seconds > 0 ? 1 / prefill_seconds : 0;
}

DTypeOutlook PlanDType(const engine::ModelDir& dir, const engine::EngineOptions& options,
                       const ModelOutline& outline, int64_t memory_bytes, ContextMemory& memory) {
  DTypeOutlook dtype;
  dtype.plan = engine::PlanMemory(dir, options);
  const int64_t most = dtype.plan.max_model_len;
  const auto claim_at = [&](int64_t context_len) -> const MemoryClaim& {
    return memory.At(options, outline.types.dtype, context_len);
  };
  dtype.kv_1k_bytes = claim_at(std::min(kShortContext, most)).kv;
  dtype.fitting_context =
      FittingContext(most, memory_bytes - dtype.plan.least.weights,
                     [&](int64_t context_len) { return claim_at(context_len).total(); });
  return dtype;
}

}  // namespace

ModelOutlook MakeOutlook(const engine::ModelDir& dir, const OutlookOptions& asked,
                         const MeasureFormat& measure) {
  ModelOutlook outlook;
  outlook.memory_bytes =
      asked.memory_bytes > 0 ? asked.memory_bytes : AvailableMemoryBytes() / 10 * 8;
  ContextMemory memory(dir);
  // Without f32: where it is not the default, it only costs more memory and time.
  for (const char* name : {"auto", "bf16", "int8", "int4"}) {
    const bool is_default = std::string_view(name) == "auto";
    if (is_default && !asked.has_default) continue;
    engine::EngineOptions options;
    SetDType(name, options);
    options.max_model_len = asked.max_model_len;
    const ModelOutline outline = engine::OutlineModel(dir, LoadOptionsOf(options));
    outlook.family = outline.family->name;
    outlook.models = outline.family->models;
    outlook.architecture = outline.family->architectures.front();
    outlook.n_tensors = static_cast<int64_t>(dir.tensor_names().size());
    outlook.max_context_len = outline.config.max_context_len;
    const auto is_same = [&](const DTypeOutlook& other) {
      return other.dtype == outline.types.name;
    };
    if (std::any_of(outlook.dtypes.begin(), outlook.dtypes.end(), is_same)) continue;
    DTypeOutlook& dtype =
        outlook.dtypes.emplace_back(PlanDType(dir, options, outline, outlook.memory_bytes, memory));
    dtype.dtype = outline.types.name;
    dtype.is_default = is_default;
    AddSpeeds(outline, measure, outlook.speeds, dtype);
  }
  return outlook;
}

}  // namespace tandem::server
