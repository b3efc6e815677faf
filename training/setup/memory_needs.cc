#include "training/setup/memory_needs.h"

#include <algorithm>
#include <bit>

#include "engine/base/error.h"
#include "training/lora/lora.h"
#include "training/ops/cross_entropy.h"
#include "training/optim/update_rules.h"
#include "training/setup/exported_tensors.h"
#include "training/setup/lora_base.h"
#include "training/setup/run_parts.h"
#include "training/setup/scratch_needs.h"
#include "training/step/base_parts.h"
#include "training/step/unit_schedule.h"

namespace tandem::training {
namespace {

using engine::WeightKind;
using engine::WeightSpec;

// Program, libraries, threads, tokenizer, template and the rows being packed.
constexpr int64_t kProcessBytes = 64 << 20;

// The weights that a run owns: the model's, or the adapter's on top of a base.
struct OwnedWeights {
  std::vector<WeightSpec> specs;
  std::vector<WeightSpec> whole_specs;  // of which a tensor split gives a rank `specs`
  std::vector<bool> trained;
  int64_t base_bytes = 0;
  bool base_in_blocks = false;
};

// The family's weights, or a rank's parts of them.
std::vector<WeightSpec> PartsOfWeights(const TrainSpec& spec, const ModelFiles& files) {
  const int64_t tensor = spec.step_shape ? spec.step_shape->tensor : 1;
  if (tensor == 1) return files.family->list_weights(files.config);
  return files.family->list_weights(
      PartOfConfig(*files.family, files.config, static_cast<int>(tensor)));
}

OwnedWeights OwnedBy(const TrainSpec& spec, const ModelFiles& files,
                     const std::vector<LoraTarget>& targets) {
  OwnedWeights owned;
  const std::vector<WeightSpec> weights = files.family->list_weights(files.config);
  std::vector<WeightSpec> parts = PartsOfWeights(spec, files);
  if (spec.lora.enable) {
    const auto dir = engine::ModelDir::Open(spec.model.load_parameters_path);
    const auto outline = engine::OutlineModel(dir, BaseLoadOptions(spec, dir, weights));
    owned.base_bytes = outline.weight_bytes;
    owned.base_in_blocks =
        std::any_of(outline.types.blocks.begin(), outline.types.blocks.end(),
                    [](engine::BlockFormat block) { return block != engine::BlockFormat::kNone; });
    owned.base_bytes += BasePartBytes(weights, parts, outline.types);
    owned.specs = LoraSpecs(parts, targets);
    owned.whole_specs = LoraSpecs(weights, targets);
  } else {
    owned.trained = TrainedWeights(spec, files, weights);
    owned.specs = std::move(parts);
    owned.whole_specs = weights;
  }
  if (owned.trained.empty()) owned.trained.assign(owned.specs.size(), true);
  return owned;
}

// Mirrors the allocations of ParameterStore.
std::vector<MemoryClass> StateClasses(const TrainSpec& spec, const OwnedWeights& owned) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  int64_t masters = 0;
  int64_t panels = 0;
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t average = 0;
  for (size_t i = 0; i < owned.specs.size(); ++i) {
    const WeightSpec& weight = owned.specs[i];
    const int64_t elements = weight.n * weight.k;
    masters += elements * kFloat;  // whole, or in two halves
    panels += weight.kind == WeightKind::kVector
                  ? elements * kFloat
                  : engine::PanelBytes(spec.compute, weight.n, weight.k);
    if (!owned.trained[i]) continue;
    gradients += elements * kFloat;
    moments += MomentBytes(MomentsOf(spec.train.optimizer, FormOf(weight)), elements);
    if (spec.train.optimizer.ema_decay > 0) average += elements * kFloat;
  }
  if (spec.parallel.shard_optimizer && spec.step_shape) {
    const int64_t ranks = spec.step_shape->ranks;
    moments = (moments + ranks - 1) / ranks;
  }
  const int64_t fsdp = spec.step_shape ? spec.step_shape->fsdp : 1;
  const auto part = [fsdp](int64_t bytes) { return (bytes + fsdp - 1) / fsdp; };
  for (int64_t* bytes : {&masters, &panels, &gradients, &moments, &average}) *bytes = part(*bytes);
  // The tree of world_invariant keeps one gradient per level.
  if (spec.parallel.world_invariant > 1) {
    gradients *= std::bit_width(static_cast<uint64_t>(spec.parallel.world_invariant));
  }
  std::vector<MemoryClass> classes;
  if (spec.lora.enable) classes.push_back({"base", owned.base_bytes});
  classes.insert(
      classes.end(),
      {{"masters", masters}, {"weights", panels}, {"gradients", gradients}, {"moments", moments}});
  if (average > 0) classes.push_back({"average", average});
  if (fsdp > 1) {
    const UnitNeeds units = UnitNeedsOf(owned.specs, owned.trained, spec.compute);
    classes.push_back({"gathered", units.bytes() - part(units.bytes())});
  }
  return classes;
}

// Bytes of the export that a checkpoint writes. Ranks that write together hold a file at a time, of
// weights or of moments.
int64_t ExportBytes(const TrainSpec& spec, const OwnedWeights& owned) {
  int64_t bytes = 0;
  int64_t moments = 0;
  for (size_t i = 0; i < owned.whole_specs.size(); ++i) {
    const WeightSpec& weight = owned.whole_specs[i];
    const int64_t elements = weight.n * weight.k;
    bytes += elements * static_cast<int64_t>(engine::DTypeBytes(spec.compute));
    if (!owned.trained[i]) continue;
    moments += MomentBytes(MomentsOf(spec.train.optimizer, FormOf(weight)), elements);
  }
  const StepShape shape = spec.step_shape.value_or(StepShape{});
  const int64_t ranks = shape.all_ranks();
  const bool together = spec.checkpoint.sharded || shape.fsdp > 1 || shape.tensor > 1;
  if (ranks == 1 || !together) return bytes;
  const auto file = [&](int64_t all) {
    return SharedFileBytes(all, ranks, spec.checkpoint.shard_bytes);
  };
  return std::max(file(bytes), file(moments));
}

// Bytes that the update of the largest matrix takes beside the state.
int64_t OptimizerScratch(const TrainSpec& spec, const OwnedWeights& owned) {
  int64_t bytes = 0;
  for (size_t i = 0; i < owned.specs.size(); ++i) {
    const WeightSpec& weight = owned.specs[i];
    if (!owned.trained[i] || !IsOrthogonalised(spec.train.optimizer, FormOf(weight))) continue;
    bytes = std::max(bytes, MuonScratchBytes(weight.n, weight.k));
  }
  return bytes;
}

// The classes that do not depend on rematerialisation; `program` may use any policy.
std::vector<MemoryClass> FixedClasses(const TrainSpec& spec, const ModelFiles& files,
                                      const OwnedWeights& owned, const Program& program) {
  std::vector<MemoryClass> classes = StateClasses(spec, owned);
  const int64_t rows = spec.rows_per_batch() * spec.tokens_per_row();
  const engine::ModelConfig& config = files.config;
  int64_t loss =
      CrossEntropyWorkspaceBytes(rows, config.vocab_size, config.hidden_dim, spec.compute);
  // Log-probabilities and weights of the tokens of pairs.
  if (spec.is_dpo()) loss += 2 * rows * static_cast<int64_t>(sizeof(float));
  classes.push_back({"loss", loss});
  const int threads =
      spec.resources.threads > 0 ? static_cast<int>(spec.resources.threads) : UsableCores();
  classes.push_back({"scratch", std::max(ScratchNeeds(program, threads, owned.base_in_blocks),
                                         OptimizerScratch(spec, owned))});
  classes.push_back({"export", ExportBytes(spec, owned)});
  classes.push_back({"process", kProcessBytes});
  return classes;
}

int64_t Sum(const std::vector<MemoryClass>& classes) {
  int64_t bytes = 0;
  for (const MemoryClass& one : classes) bytes += one.bytes;
  return bytes;
}

// Arguments for recording a run's program, except rematerialisation.
struct RunOutline {
  OwnedWeights owned;
  std::vector<bool> trained;
  std::vector<LoraTarget> targets;
};

RunOutline OutlineRun(const TrainSpec& spec, const ModelFiles& files) {
  RunOutline run;
  const std::vector<WeightSpec> weights = files.family->list_weights(files.config);
  if (spec.lora.enable) {
    run.targets = PlanAdapter(spec.lora, *files.family, files.config).targets;
  } else {
    run.trained = TrainedWeights(spec, files, weights);
  }
  run.owned = OwnedBy(spec, files, run.targets);
  return run;
}

Program RecordRun(const TrainSpec& spec, const ModelFiles& files, const RunOutline& run,
                  const RematOptions& remat) {
  TrainerOptions options = TrainerOptionsOf(spec);
  options.trained = run.trained;
  options.remat = remat;
  return Record(*files.family, TrainedConfig(files.config, options),
                RecordingOf(options, spec.compute, run.targets));
}

RematOptions ChooseRemat(const TrainSpec& spec, const ModelFiles& files, const RunOutline& run) {
  RematOptions remat = spec.train.remat;
  if (remat.policy != RematPolicy::kAuto || remat.max_bytes > 0) return remat;
  RematOptions none = remat;
  none.policy = RematPolicy::kNone;
  const Program program = RecordRun(spec, files, run, none);
  const int64_t fixed_bytes = Sum(FixedClasses(spec, files, run.owned, program));
  remat.max_bytes = spec.resources.memory_max_bytes - fixed_bytes;
  if (remat.max_bytes > 0) return remat;
  throw Error(ErrorCode::kResourceExhausted,
              "resources.memory_max_bytes: " + std::to_string(spec.resources.memory_max_bytes) +
                  " leaves nothing for activations: the rest of the run takes " +
                  std::to_string(fixed_bytes) +
                  " bytes; raise it, or use a smaller model or an adapter (lora)");
}

}  // namespace

int64_t MemoryNeeds::total_bytes() const { return Sum(classes); }

RematOptions RematFor(const TrainSpec& spec, const ModelFiles& files) {
  return ChooseRemat(spec, files, OutlineRun(spec, files));
}

MemoryNeeds FindMemoryNeeds(const TrainSpec& spec, const ModelFiles& files) {
  const RunOutline run = OutlineRun(spec, files);
  MemoryNeeds needs;
  needs.program = RecordRun(spec, files, run, ChooseRemat(spec, files, run));
  needs.classes = FixedClasses(spec, files, run.owned, needs.program);
  needs.classes.push_back({"activations", needs.program.arena_bytes});
  if (needs.program.packed_bytes > 0) {
    needs.classes.push_back({"packed relu", needs.program.packed_bytes});  // at most
  }
  if (spec.checkpoint.async && spec.checkpoint.period > 0) {
    for (const MemoryClass& one : needs.classes) {
      if (one.name == "moments" || one.name == "average") needs.checkpoint_copy_bytes += one.bytes;
      if (one.name == "masters" && spec.compute == engine::DType::kBF16) {
        needs.checkpoint_copy_bytes += one.bytes / 2;  // the low halves
      }
    }
  }
  return needs;
}

}  // namespace tandem::training
