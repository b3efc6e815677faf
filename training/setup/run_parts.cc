#include "training/setup/run_parts.h"

#include <algorithm>

#include "engine/kernels/kernels.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/tools/merge_adapter.h"
#include "training/lora/lora.h"
#include "training/lora/name_pattern.h"
#include "training/loss/loss_library.h"
#include "training/setup/lora_base.h"
#include "training/setup/memory_needs.h"
#include "training/setup/teacher_rows.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// Hosts with other numbers of cores have other scratch memory, so `remat` auto leaves them other
// budgets. The least of all counts: ranks must record the same program.
RematOptions SharedRemat(RematOptions own, Collectives* ranks) {
  if (ranks == nullptr || own.policy != RematPolicy::kAuto) return own;
  const auto mine = static_cast<double>(own.max_bytes);
  for (const double one : ranks->AllGather({&mine, 1})) {
    own.max_bytes = std::min(own.max_bytes, static_cast<int64_t>(one));
  }
  return own;
}

Trainer MakeTrainer(const TrainSpec& spec, const ModelFiles& files, const AdapterPlan& adapter,
                    const fs::path& cache_dir, Collectives* ranks, engine::OpsContext& ops) {
  TrainerOptions options = TrainerOptionsOf(spec);
  options.ranks = ranks;
  if (options.has_library_loss) {
    options.loss = LossLibrary::Open(spec.train.loss_library, spec.train.loss_options);
  }
  const std::vector<engine::WeightSpec> weights = files.family->list_weights(files.config);
  if (spec.is_distill()) options.distill = spec.distill.loss;
  options.trained = TrainedWeights(spec, files, weights);
  options.remat = SharedRemat(RematFor(spec, files), ranks);
  if (!spec.lora.enable) {
    return Trainer(*files.family, files.config, spec.compute, options, ops);
  }
  // Loads the base as a server does, from the same packed file if one exists.
  const engine::ModelDir dir = engine::ModelDir::Open(spec.model.load_parameters_path);
  if (spec.lora.export_merged) engine::RefuseMergeIntoBlocks(dir);
  engine::LoadOptions load = BaseLoadOptions(spec, dir, files.family->list_weights(files.config));
  load.cache_dir = cache_dir;
  auto base = engine::Model::Load(dir, load, ops);
  return Trainer(std::move(base), adapter.targets, options, ops);
}

// The row check's record in the run's directory; empty without a directory.
fs::path RecordIn(const fs::path& dir) {
  return dir.empty() ? fs::path() : dir / "checked-rows.json";
}

constexpr TokenId kPaddingId = 0;

}  // namespace

namespace {

// The weights that model.trainable names.
std::vector<bool> NamedWeights(const TrainSpec& spec,
                               const std::vector<engine::WeightSpec>& weights) {
  std::vector<bool> trained(weights.size(), false);
  bool any = false;
  for (const std::string& pattern : spec.model.trainable) {
    const NamePattern trainable("model.trainable", pattern);
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!trainable.IsIn(weights[i].name)) continue;
      trained[i] = true;
      any = true;
    }
  }
  if (!any)
    throw Error(ErrorCode::kInvalidArgument,
                "model.trainable: no expression matches a weight name");
  return trained;
}

}  // namespace

std::vector<bool> TrainedWeights(const TrainSpec& spec, const ModelFiles& files,
                                 const std::vector<engine::WeightSpec>& weights) {
  std::vector<bool> trained;
  if (!spec.model.trainable.empty()) trained = NamedWeights(spec, weights);
  if (!spec.model.freeze_router) return trained;
  const std::vector<bool> routers = engine::RouterWeights(*files.family, files.config, weights);
  if (std::find(routers.begin(), routers.end(), true) == routers.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "model.freeze_router: family " + std::string(files.family->name) +
                    " has no router in this configuration: leave the key out");
  }
  trained.resize(weights.size(), true);
  for (size_t i = 0; i < routers.size(); ++i) {
    if (routers[i]) trained[i] = false;
  }
  return trained;
}

TrainerOptions TrainerOptionsOf(const TrainSpec& spec) {
  TrainerOptions options;
  options.rows_per_batch = spec.rows_per_batch() * spec.sequences_per_row();
  options.row_length = spec.data.max_target_length;
  options.max_segments = spec.data.max_segments_per_seq;
  options.optimizer = spec.train.optimizer;
  options.schedule = spec.train.schedule;
  options.spikes = spec.train.spikes;
  options.dropout_seed = spec.data.seed;
  options.dropout = spec.model.enable_dropout;
  if (spec.model.dropout) options.model_dropout = static_cast<float>(*spec.model.dropout);
  options.lora_dropout = static_cast<float>(spec.lora.dropout);
  options.router_loss = {spec.train.router_aux_loss, spec.train.router_z_loss};
  options.neftune_alpha = static_cast<float>(spec.train.neftune_alpha);
  options.z_loss = static_cast<float>(spec.train.z_loss);
  options.overlap = spec.parallel.overlap;
  options.bucket_bytes = spec.parallel.bucket_bytes;
  options.shard_moments = spec.parallel.shard_optimizer;
  options.fsdp = spec.step_shape ? spec.step_shape->fsdp : 1;
  options.tensor = spec.step_shape ? static_cast<int>(spec.step_shape->tensor) : 1;
  options.divide_rows = spec.step_shape && spec.step_shape->divides_rows;
  options.tree_sums = spec.parallel.world_invariant > 0;
  if (spec.is_dpo()) options.dpo = spec.dpo.loss;
  options.has_library_loss = !spec.train.loss_library.empty();
  return options;
}

Sample MakeSample(const TrainSpec& spec, const OpenedData& data, int64_t i) {
  Sample sample = data.source->Make(i);
  if (spec.data.loss_mask == LossMask::kAll) {
    TrainOnAll(&sample, static_cast<size_t>(spec.data.max_target_length) + 1, kPaddingId);
  }
  return sample;
}

PackerOptions PackerOptionsOf(const TrainSpec& spec, const OpenedData& data) {
  PackerOptions options;
  options.order = spec.data.order;
  options.shuffle_window = spec.data.shuffle_window;
  options.mixture = data.mixture;
  options.pad = kPaddingId;
  options.row_length = spec.tokens_per_row();
  options.max_sequence = spec.data.max_target_length;
  options.max_segments = spec.data.max_segments_per_seq;
  options.packing = spec.data.packing;
  options.overflow = spec.data.overflow;
  options.shuffle = spec.data.shuffle;
  options.seed = spec.data.seed;
  options.n_samples = data.source->size();
  options.n_epochs = spec.data.num_epoch;
  return options;
}

RunParts::RunParts(const TrainSpec& given, const JobContext& context, Collectives* shared)
    : spec(given),
      ranks(shared),
      pool(static_cast<int>(spec.resources.threads)),
      ops(engine::Kernels(), pool),
      files(LoadModelFiles(spec)),
      data(OpenData(spec, files, pool,
                    {.record = is_first_rank() ? RecordIn(context.dir) : fs::path()})),
      data_sha256(context.dir.empty() ? "" : HashOfFiles(data.files, context.cache_dir)),
      packer(PackerOptionsOf(spec, data), [this](int64_t i) { return MakeSample(spec, data, i); }),
      adapter(spec.lora.enable ? PlanAdapter(spec.lora, *files.family, files.config)
                               : AdapterPlan()),
      trainer(MakeTrainer(spec, files, adapter, context.cache_dir, ranks, ops)),
      loss_sha256(spec.train.loss_library.empty() ? ""
                                                  : HashOfFiles({spec.train.loss_library}, {})) {
  if (spec.kind != "train.pretrain") {
    turn_ends = AddEndTokens(TurnEnds(*data.source, *files.tokenizer), &files);
  }
}

namespace {

SampleIndex IndexOfSamples(const RunParts& parts) {
  const PackerOptions options = PackerOptionsOf(parts.spec, parts.data);
  const SampleOrder order{.n = options.n_samples,
                          .shuffle = options.shuffle,
                          .kind = options.order,
                          .seed = options.seed,
                          .window = options.shuffle_window,
                          .mixture = options.mixture};
  return [order](int64_t number) { return order.IndexOf(number); };
}

}  // namespace

bool NextBatches(RunParts& parts, std::span<MicroBatch> batches) {
  const auto own = static_cast<int64_t>(batches.size());
  constexpr auto kRows = Collectives::Group::kRows;
  const int64_t rank = parts.ranks == nullptr ? 0 : parts.ranks->rank_in(kRows);
  // Ranks that share parameters sum each micro-batch at once: theirs are neighbours, so that these
  // sums are the lower levels of the tree of world_invariant.
  const int64_t fsdp = parts.spec.step_shape ? parts.spec.step_shape->fsdp : 1;
  const int64_t first = rank / fsdp * fsdp * own + rank % fsdp;
  bool any = false;
  for (int64_t b = 0; b < parts.spec.batches_per_step(); ++b) {
    const int64_t i = (b - first) / fsdp;
    const bool is_own = b >= first && (b - first) % fsdp == 0 && i < own;
    MicroBatch* batch = is_own ? &batches[static_cast<size_t>(i)] : nullptr;
    if (batch != nullptr) batch->Clear();
    for (int64_t r = 0; r < parts.spec.rows_per_batch(); ++r) {
      PackedRow row;
      if (parts.packer.Next(&row)) {
        any = true;
      } else if (batch != nullptr) {
        row = PaddingRow(parts.spec.tokens_per_row(), 0, parts.spec.data.max_target_length);
      }
      if (batch != nullptr) batch->Append(row);
    }
    if (batch != nullptr && !parts.reference.empty()) batch->SetReference(parts.reference);
    if (batch != nullptr && parts.teacher) {
      FillTeacherRows(*parts.teacher, IndexOfSamples(parts), batch);
    }
  }
  return any;
}

void InitialWeights(RunParts& parts) {
  const TrainSpec& spec = parts.spec;
  ParameterStore& parameters = parts.trainer.parameters();
  if (parts.is_adapter() && !spec.lora.load_path.empty()) {
    LoadAdapterWeights(parts.adapter, *parts.files.family, parts.files.config, parameters);
  } else if (parts.is_adapter()) {
    InitialAdapterWeights(parts.adapter, engine::ModelDir::Open(spec.model.load_parameters_path),
                          spec.model.init_seed, parts.trainer);
  } else if (!spec.model.load_parameters_path.empty()) {
    parameters.LoadFrom(engine::ModelDir::Open(spec.model.load_parameters_path));
  } else {
    parameters.InitFresh(spec.model.init_seed, spec.model.init_std, parts.files.config.n_layers,
                         spec.model.init);
  }
}

}  // namespace tandem::training
