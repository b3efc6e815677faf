#include "training/plan.h"

#include <cstdio>

#include "training/lora/lora.h"
#include "training/lora_base.h"
#include "training/run_parts.h"

namespace tandem::training {

std::string DescribePlan(const TrainSpec& spec) {
  const ModelFiles files = LoadModelFiles(spec);
  RecordOptions record;
  int64_t base_bytes = 0;
  record.rows = spec.train.per_device_batch_size * spec.data.max_target_length;
  record.row_length = spec.data.max_target_length;
  record.max_segments = spec.train.per_device_batch_size * (spec.data.max_segments_per_seq + 1);
  record.dtype = spec.compute;
  if (spec.lora.enable) {
    record.lora = PlanAdapter(spec.lora, *files.family, files.config).targets;
    record.lora_dropout = static_cast<float>(spec.lora.dropout);
    const auto dir = engine::ModelDir::Open(spec.model.load_parameters_path);
    const auto load = BaseLoadOptions(spec, dir, files.family->list_weights(files.config));
    base_bytes = engine::OutlineModel(dir, load).weight_bytes;
  } else {
    record.trained = TrainedWeights(spec, files.family->list_weights(files.config));
  }
  const Program program = Record(*files.family, files.config, record);

  int64_t parameters = 0;
  int64_t trained = 0;
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    const int64_t elements = program.weight_specs[i].n * program.weight_specs[i].k;
    parameters += elements;
    if (program.trained[i]) trained += elements;
  }
  // Master (4 bytes, split or whole), panels, and for trained weights m, v and gradient. The base
  // of an adapter is as it is served.
  const int64_t width = static_cast<int64_t>(engine::DTypeBytes(spec.compute));
  const int64_t ours = spec.lora.enable ? trained : parameters;
  const int64_t bytes = base_bytes + ours * (width + 4) + trained * 12;
  char text[512];
  std::snprintf(text, sizeof text,
                "parameters %lld (%lld trained), %lld B with master, moments and gradients\n"
                "activations %lld B\nmicro-batches per step %lld\n",
                static_cast<long long>(parameters), static_cast<long long>(trained),
                static_cast<long long>(bytes), static_cast<long long>(program.arena_bytes),
                static_cast<long long>(spec.train.gradient_accumulation_steps));
  return Print(program) + text;
}

}  // namespace tandem::training
