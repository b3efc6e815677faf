#include "training/setup/memory_needs.h"

#include <algorithm>
#include <bit>
#include <string_view>

#include "engine/base/error.h"
#include "training/lora/lora.h"
#include "training/ops/cross_entropy.h"
#include "training/optim/update_rules.h"
#include "training/setup/exported_tensors.h"
#include "training/setup/lora_base.h"
#include "training/setup/run_parts.h"
#include "training/setup/scratch_needs.h"
#include "training/step/base_parts.h"
#include "training/step/export_dtype.h"
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
  const StepShape shape = spec.step_shape.value_or(StepShape());
  if (shape.tensor == 1) return files.family->list_weights(files.config);
  return files.family->list_weights(
      PartOfConfig(*files.family, files.config,
                   {.size = static_cast<int>(shape.tensor), .divides_rows = shape.divides_rows}));
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

// State of all trained weights, or of all frozen ones, before ranks divide it. Mirrors the
// allocations of ParameterStore.
struct StateBytes {
  int64_t masters = 0;  // whole, or in two halves
  int64_t low = 0;      // of these, the low halves
  int64_t panels = 0;
  // Of trained weights only.
  int64_t gradients = 0;
  int64_t moments = 0;
  int64_t average = 0;

  // What a checkpoint stores beside the weights.
  int64_t of_optimizer() const { return low + moments + average; }
};

StateBytes StateOf(const TrainSpec& spec, const OwnedWeights& owned,
                   const std::vector<WeightSpec>& specs, bool trained) {
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  StateBytes bytes;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (owned.trained[i] != trained) continue;
    const WeightSpec& weight = specs[i];
    const int64_t elements = weight.n * weight.k;
    bytes.masters += elements * kFloat;
    bytes.panels += weight.kind == WeightKind::kVector
                        ? elements * kFloat
                        : engine::PanelBytes(spec.compute, weight.n, weight.k);
    if (!trained) continue;
    if (spec.compute == engine::DType::kBF16) bytes.low += elements * kFloat / 2;
    bytes.gradients += elements * kFloat;
    bytes.moments += MomentBytes(MomentsOf(spec.train.optimizer, FormOf(weight)), elements);
    if (spec.train.optimizer.ema_decay > 0) bytes.average += elements * kFloat;
  }
  return bytes;
}

// Ranks that share the rows; of these, those that share the parameters; ranks with parts of
// matrices.
int64_t RanksOf(const TrainSpec& spec) { return spec.step_shape ? spec.step_shape->ranks : 1; }
int64_t FsdpOf(const TrainSpec& spec) { return spec.step_shape ? spec.step_shape->fsdp : 1; }
int64_t TensorOf(const TrainSpec& spec) { return spec.step_shape ? spec.step_shape->tensor : 1; }
int64_t AllRanksOf(const TrainSpec& spec) { return RanksOf(spec) * TensorOf(spec); }

// As in shared_files.h.
bool WriteTogether(const TrainSpec& spec) {
  return AllRanksOf(spec) > 1 &&
         (spec.checkpoint.sharded || FsdpOf(spec) > 1 || TensorOf(spec) > 1);
}

std::vector<MemoryClass> StateClasses(const TrainSpec& spec, const OwnedWeights& owned) {
  const StateBytes frozen = StateOf(spec, owned, owned.specs, false);  // whole on every rank
  StateBytes state = StateOf(spec, owned, owned.specs, true);
  const auto part = [](int64_t bytes, int64_t ranks) { return (bytes + ranks - 1) / ranks; };
  if (spec.parallel.shard_optimizer) state.moments = part(state.moments, RanksOf(spec));
  const int64_t fsdp = FsdpOf(spec);
  for (int64_t* bytes :
       {&state.masters, &state.panels, &state.gradients, &state.moments, &state.average}) {
    *bytes = part(*bytes, fsdp);
  }
  // The tree of world_invariant keeps one gradient per level.
  if (spec.parallel.world_invariant > 1) {
    state.gradients *= std::bit_width(static_cast<uint64_t>(spec.parallel.world_invariant));
  }
  std::vector<MemoryClass> classes;
  if (spec.lora.enable) classes.push_back({"base", owned.base_bytes});
  classes.insert(classes.end(), {{"masters", frozen.masters + state.masters},
                                 {"weights", frozen.panels + state.panels},
                                 {"gradients", state.gradients},
                                 {"moments", state.moments}});
  if (state.average > 0) classes.push_back({"average", state.average});
  if (fsdp > 1) {
    const UnitNeeds units = UnitNeedsOf(owned.specs, owned.trained, spec.compute);
    classes.push_back({"gathered", units.bytes() - part(units.bytes(), fsdp)});
  }
  return classes;
}

// Bytes of the export that a checkpoint writes: copies of the weights, and state that is in parts
// on the ranks. Ranks that write together hold a file at a time, of weights or of state.
int64_t ExportBytes(const TrainSpec& spec, const OwnedWeights& owned) {
  const auto width = static_cast<int64_t>(engine::DTypeBytes(spec.compute));
  int64_t weights = 0;
  int64_t largest = 0;  // tensor
  for (const WeightSpec& weight : owned.whole_specs) {
    weights += weight.n * weight.k *
               static_cast<int64_t>(engine::DTypeBytes(ExportDType(weight, spec.compute)));
    largest = std::max(largest, weight.n * weight.k);
  }
  const StateBytes state = StateOf(spec, owned, owned.whole_specs, true);
  int64_t gathered = 0;
  if (RanksOf(spec) > 1 && spec.parallel.shard_optimizer) gathered = state.moments;
  if (FsdpOf(spec) > 1 || TensorOf(spec) > 1) gathered = state.of_optimizer();
  if (!WriteTogether(spec)) return weights + gathered;
  const auto file = [&](int64_t all, int64_t most) {
    return SharedFileBytes(all, AllRanksOf(spec), most);
  };
  // An adapter is one file. A file has one tensor at least.
  const int64_t of_weights =
      file(weights, spec.lora.enable ? INT64_MAX : spec.checkpoint.shard_bytes);
  int64_t of_state = std::min(gathered, file(state.of_optimizer(), spec.checkpoint.shard_bytes));
  if (gathered > 0) {
    of_state = std::max(of_state, largest * static_cast<int64_t>(sizeof(float)));
  }
  return std::max({of_weights, largest * width, of_state});
}

// Bytes of the copies of an asynchronous checkpoint. Ranks that write together make none.
int64_t CopyBytes(const TrainSpec& spec, const OwnedWeights& owned) {
  if (!spec.checkpoint.async || spec.checkpoint.period == 0 || WriteTogether(spec)) return 0;
  return StateOf(spec, owned, owned.specs, true).of_optimizer();
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

int64_t BytesOf(const std::vector<MemoryClass>& classes, std::string_view name) {
  const auto found = std::find_if(classes.begin(), classes.end(),
                                  [&](const MemoryClass& one) { return one.name == name; });
  return found == classes.end() ? 0 : found->bytes;
}

// The classes that do not depend on rematerialisation; `program` may use any policy.
std::vector<MemoryClass> FixedClasses(const TrainSpec& spec, const ModelFiles& files,
                                      const OwnedWeights& owned, const Program& program) {
  std::vector<MemoryClass> classes = StateClasses(spec, owned);
  const engine::ModelConfig& config = files.config;
  int64_t loss = CrossEntropyWorkspaceBytes(program.part_rows(), config.vocab_size,
                                            config.hidden_dim, spec.compute, spec.is_distill());
  // Log-probabilities and weights of tokens, for losses over pairs or of a library.
  if (spec.is_dpo() || !spec.train.loss_library.empty())
    loss += 2 * program.rows * static_cast<int64_t>(sizeof(float));
  if (spec.is_distill()) {  // the teacher's tokens and their log-probabilities
    constexpr int64_t kEach = sizeof(TokenId) + sizeof(float);
    loss += program.rows * spec.distill.loss.top_k * kEach * spec.train.gradient_accumulation_steps;
  }
  classes.push_back({"loss", loss});
  const int threads =
      spec.resources.threads > 0 ? static_cast<int>(spec.resources.threads) : UsableCores();
  classes.push_back({"scratch", std::max(ScratchNeeds(program, threads, owned.base_in_blocks),
                                         OptimizerScratch(spec, owned))});
  // Ranks drop a step's gathered weights before they export: only what exceeds these is more.
  classes.push_back(
      {"export", std::max<int64_t>(0, ExportBytes(spec, owned) - BytesOf(classes, "gathered"))});
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
  needs.checkpoint_copy_bytes = CopyBytes(spec, run.owned);
  return needs;
}

}  // namespace tandem::training
