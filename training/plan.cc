#include "training/plan.h"

#include <cstdio>

#include "engine/base/error.h"
#include "training/lora/lora.h"
#include "training/run_parts.h"

namespace tandem::training {
namespace {

// The head's workspace (training/ops/cross_entropy.h), and what a process has besides.
constexpr int64_t kOtherBytes = (256 + 128) << 20;

}  // namespace

int64_t StateBytes(const TrainSpec& spec, const std::vector<engine::WeightSpec>& weights,
                   const std::vector<bool>& trained) {
  const auto width = static_cast<int64_t>(engine::DTypeBytes(spec.compute));
  int64_t bytes = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool has_master = trained[i] || !spec.lora.enable;
    const int64_t elements = weights[i].n * weights[i].k;
    bytes += elements * (width + (has_master ? 4 : 0));
    if (!trained[i]) continue;
    const bool may_be_coded = weights[i].kind == engine::WeightKind::kMatrix;
    bytes += elements * 4 +
             MomentBytes(MomentsOf(spec.train.optimizer, elements, may_be_coded), elements);
  }
  return bytes;
}

RematOptions RematFor(const TrainSpec& spec, const std::vector<engine::WeightSpec>& weights,
                      std::vector<bool> trained, const std::vector<engine::WeightSpec>& adapters) {
  RematOptions remat = spec.train.remat;
  if (remat.policy != RematPolicy::kAuto || remat.max_bytes > 0) return remat;
  if (trained.empty()) trained.assign(weights.size(), adapters.empty());
  std::vector<engine::WeightSpec> all = weights;
  all.insert(all.end(), adapters.begin(), adapters.end());
  trained.resize(all.size(), true);
  const int64_t state = StateBytes(spec, all, trained);
  remat.max_bytes = spec.resources.memory_max_bytes - state - kOtherBytes;
  if (remat.max_bytes <= 0) {
    throw Error(ErrorCode::kResourceExhausted,
                "resources.memory_max_bytes: " + std::to_string(spec.resources.memory_max_bytes) +
                    " leaves nothing for activations after " + std::to_string(state) +
                    " bytes of parameters and " + std::to_string(kOtherBytes) +
                    " of everything else");
  }
  return remat;
}

std::string DescribePolicies(const engine::FamilySpec& family, const engine::ModelConfig& config,
                             RecordOptions record) {
  const RematOptions chosen = record.remat;
  std::string table = "train.remat                      activations B  recomputed FLOP\n";
  for (const std::string_view name : RematPolicyNames()) {
    record.remat.policy = *FindRematPolicy(name);
    if (record.remat.policy == RematPolicy::kAuto && record.remat.max_bytes <= 0) continue;
    record.remat.every = chosen.every;
    std::string label(name);
    if (record.remat.policy == RematPolicy::kEveryK) {
      label += " (" + std::to_string(record.remat.every) + ")";
    }
    const Program program = Record(family, config, record);
    char line[160];
    std::snprintf(line, sizeof line, "%c %-30s %13lld  %15lld\n",
                  record.remat.policy == chosen.policy ? '*' : ' ', label.c_str(),
                  static_cast<long long>(program.arena_bytes),
                  static_cast<long long>(program.recompute_flops()));
    table += line;
  }
  return table;
}

std::string DescribePlan(const TrainSpec& spec) {
  const ModelFiles files = LoadModelFiles(spec);
  RecordOptions record;
  record.rows = spec.train.per_device_batch_size * spec.data.max_target_length;
  record.row_length = spec.data.max_target_length;
  record.max_segments = spec.train.per_device_batch_size * (spec.data.max_segments_per_seq + 1);
  record.dtype = spec.compute;
  if (spec.lora.enable) {
    record.lora = ChooseLoraTargets(spec.lora, *files.family, files.config);
  } else {
    record.trained = TrainedWeights(spec, files.family->list_weights(files.config));
  }
  const std::vector<engine::WeightSpec> weights = files.family->list_weights(files.config);
  record.remat = RematFor(spec, weights, record.trained, LoraSpecs(weights, record.lora));
  const Program program = Record(*files.family, files.config, record);

  int64_t parameters = 0;
  int64_t trained = 0;
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    const int64_t elements = program.weight_specs[i].n * program.weight_specs[i].k;
    parameters += elements;
    if (program.trained[i]) trained += elements;
  }
  const int64_t bytes = StateBytes(spec, program.weight_specs, program.trained);
  char text[512];
  std::snprintf(text, sizeof text,
                "parameters %lld (%lld trained), %lld B with master, moments and gradients\n"
                "activations %lld B\nmicro-batches per step %lld\n",
                static_cast<long long>(parameters), static_cast<long long>(trained),
                static_cast<long long>(bytes), static_cast<long long>(program.arena_bytes),
                static_cast<long long>(spec.train.gradient_accumulation_steps));
  return Print(program) + text + DescribePolicies(*files.family, files.config, record);
}

}  // namespace tandem::training
