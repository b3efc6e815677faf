#include "training/run/run_checkpoint.h"

#include <nlohmann/json.hpp>
#include <system_error>

#include "engine/adapter/lora_settings.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "training/run/run_export.h"
#include "training/setup/exported_tensors.h"
#include "training/step/moment_shards.h"
#include "training/step/tensor_files.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxStateBytes = 64 << 20;
constexpr int64_t kStateVersion = 1;

// Shortens a list of hundreds of modules to its beginning.
std::string Shortened(const ordered_json& value) { return Quoted(value.dump()); }

// An absent list is recorded as a text, because null means that a checkpoint lacks the setting.
ordered_json Listed(const std::optional<std::vector<std::string>>& words) {
  return words ? ordered_json(*words) : ordered_json("norm scales and biases");
}

// The name and content of train.loss_library.
std::string LossLibraryOf(const RunParts& parts) {
  if (parts.loss_sha256.empty()) return "";
  return parts.spec.train.loss_library.filename().string() + " " + parts.loss_sha256.substr(0, 12);
}

// Settings that a resumed run should share with the run it continues. A difference is a warning.
ordered_json Settings(const RunParts& parts) {
  const TrainSection& t = parts.spec.train;
  ordered_json settings = {{"samples", parts.data.source->size()},
                           {"max_target_length", parts.spec.data.max_target_length},
                           {"packing", static_cast<int>(parts.spec.data.packing)},
                           {"overflow", static_cast<int>(parts.spec.data.overflow)},
                           {"header", static_cast<int>(parts.spec.data.header)},
                           {"shuffle", parts.spec.data.shuffle},
                           {"data_seed", parts.spec.data.seed},
                           {"data_order", static_cast<int>(parts.spec.data.order)},
                           {"shuffle_window", parts.spec.data.shuffle_window},
                           {"mixture_weights", parts.spec.data.mixture_weights},
                           {"loss_mask", static_cast<int>(parts.spec.data.loss_mask)},
                           {"per_device_batch_size", t.per_device_batch_size},
                           {"gradient_accumulation_steps", t.gradient_accumulation_steps},
                           {"optimizer", static_cast<int>(t.optimizer.kind)},
                           {"optimizer_state", static_cast<int>(t.optimizer.state)},
                           {"momentum", t.optimizer.momentum},
                           {"b1", t.optimizer.b1},
                           {"b2", t.optimizer.b2},
                           {"eps", t.optimizer.eps},
                           {"weight_decay", t.optimizer.weight_decay},
                           {"decay_exclude", Listed(t.optimizer.decay_exclude)},
                           {"clip_norm", t.optimizer.clip_norm},
                           {"learning_rate", t.schedule.learning_rate},
                           {"schedule_steps", t.schedule.schedule_steps},
                           {"warmup_fraction", t.schedule.warmup_fraction},
                           {"final_fraction", t.schedule.final_fraction},
                           {"schedule", static_cast<int>(t.schedule.kind)},
                           {"warmup_steps", t.schedule.warmup_steps},
                           {"decay_fraction", t.schedule.decay_fraction},
                           {"decay_steps", t.schedule.decay_steps},
                           {"decay_style", static_cast<int>(t.schedule.decay_style)}};
  settings["ema_decay"] = t.optimizer.ema_decay;
  settings["muon_beta"] = t.optimizer.muon_beta;
  settings["muon_consistent_rms"] = t.optimizer.muon_consistent_rms;
  settings["z_loss"] = t.z_loss;
  settings["loss_library"] = LossLibraryOf(parts);
  settings["loss_options"] = t.loss_options;
  settings["neftune_noise_alpha"] = t.neftune_alpha;
  settings["router_aux_loss"] = t.router_aux_loss;
  settings["router_z_loss"] = t.router_z_loss;
  settings["dropout"] = parts.trainer.config().dropout;
  if (parts.is_adapter()) settings["lora_dropout"] = parts.spec.lora.dropout;
  if (parts.spec.is_dpo()) {
    settings["dpo_algo"] = static_cast<int>(parts.spec.dpo.loss.algorithm);
    settings["orpo_lambda"] = parts.spec.dpo.loss.orpo_lambda;
    settings["dpo_beta"] = parts.spec.dpo.loss.beta;
    settings["dpo_label_smoothing"] = parts.spec.dpo.loss.label_smoothing;
    settings["dpo_max_prompt_length"] = parts.spec.dpo.max_prompt_length;
  }
  if (parts.spec.is_distill()) {
    settings["distill_alpha"] = parts.spec.distill.loss.alpha;
    settings["distill_temperature"] = parts.spec.distill.loss.temperature;
    settings["distill_top_k"] = parts.spec.distill.loss.top_k;
  }
  return settings;
}

int64_t RanksOf(const RunParts& parts) { return parts.ranks == nullptr ? 1 : parts.ranks->size(); }
int64_t TensorOf(const RunParts& parts) {
  return parts.spec.step_shape ? parts.spec.step_shape->tensor : 1;
}

ordered_json StateJson(const RunParts& parts, const RunProgress& progress) {
  const PackerState& packer = parts.packer.state();
  const SpikeGuard::State& spikes = parts.trainer.spikes().state();
  return {
      {"version", kStateVersion},
      {"step", progress.step},
      {"optimizer_steps", parts.trainer.optimizer_steps()},
      {"tokens_seen", progress.tokens_seen},
      {"packer", {{"next", packer.next}, {"pending", packer.pending}, {"offset", packer.offset}}},
      {"best_eval_loss", progress.best_eval_loss},
      {"best_step", progress.best_step},
      {"exported_best_step", progress.exported_best_step},
      {"evaluations_without_gain", progress.evaluations_without_gain},
      {"rollbacks", progress.rollbacks},
      {"spikes", {{"losses", spikes.losses}, {"norms", spikes.norms}}},
      {"losses", progress.losses},
      {"ranks", RanksOf(parts)},
      {"tensor", TensorOf(parts)},
      {"base", parts.trainer.base() ? parts.trainer.base()->content_hash() : ""},
      {"base_weights", parts.trainer.base() ? parts.trainer.base()->weights_type() : ""},
      {"data_sha256", parts.data_sha256},
      {"settings", Settings(parts)}};
}

[[noreturn]] void ThrowOther(const FoundCheckpoint& found, const std::string& what) {
  throw Error(
      ErrorCode::kInvalidArgument,
      found.dir.string() + ": " + what + "; choose another run_name, or checkpoint.resume=false");
}

// Compares the fields that define the adapter. The base may have moved since.
void CheckSameAdapter(const RunParts& parts, const FoundCheckpoint& found,
                      const ordered_json& state, const std::string& source) {
  const fs::path path = found.dir / "adapter_config.json";
  if (fs::exists(path) != (parts.trainer.base() != nullptr)) {
    ThrowOther(found, parts.trainer.base()
                          ? "the checkpoint is of a model, but lora trains an adapter"
                          : "the checkpoint is of an adapter, but the spec has no lora");
  }
  if (!parts.trainer.base()) return;
  const auto theirs =
      engine::ParseUntrustedJson(engine::ReadWholeFile(path, kMaxStateBytes), path.string());
  const auto ours = engine::ParseUntrustedJson(AdapterConfig(parts), "lora");
  for (const char* field : {"r", "lora_alpha", "use_rslora", "target_modules", "use_dora",
                            "modules_to_save", "rank_pattern", "alpha_pattern"}) {
    const ordered_json there = theirs.is_object() ? theirs.value(field, ordered_json()) : nullptr;
    if (there == ours.at(field) || (engine::IsUnset(there) && engine::IsUnset(ours.at(field)))) {
      continue;
    }
    ThrowOther(found, "the checkpoint's adapter has a different lora '" + std::string(field) +
                          "': " + Shortened(there) + ", now " + Shortened(ours.at(field)));
  }
  const engine::Model& base = *parts.trainer.base();
  if (engine::JsonStringOr(state, "base", "", source) != base.content_hash()) {
    ThrowOther(found, "the checkpoint's adapter belongs to a different model than " +
                          parts.spec.model.load_parameters_path.string() + " has now");
  }
  const std::string held = engine::JsonStringOr(state, "base_weights", "", source);
  if (!held.empty() && held != base.weights_type()) {
    ThrowOther(found, "the checkpoint's adapter was trained on weights in " + held +
                          ", but lora.base_dtype now gives " + base.weights_type());
  }
}

// Compares contents, not names: moved files are the same data. Earlier versions recorded no hash.
void CheckSameData(const RunParts& parts, const FoundCheckpoint& found, const ordered_json& state,
                   const std::string& source, const WarnFunction& warn) {
  const std::string then = engine::JsonStringOr(state, "data_sha256", "", source);
  if (then.empty() || parts.data_sha256.empty() || then == parts.data_sha256) return;
  const std::string what = "the training data has changed: " + parts.spec.data.train.string() +
                           " has the content hash " + parts.data_sha256.substr(0, 12) +
                           ", the checkpoint's data had " + then.substr(0, 12);
  if (parts.spec.checkpoint.on_changed_data == OnChangedData::kContinue) {
    return warn(what + "; the run resumes at the same position of the new data");
  }
  throw Error(ErrorCode::kInvalidArgument,
              found.dir.string() + ": " + what +
                  "; restore the data, choose another run_name, or set "
                  "checkpoint.resume_on_changed_data=continue");
}

// A step has the same rows on any number of ranks, but other sums give other last digits, and other
// tensor sizes also other dropout masks.
void CheckSameRanks(const RunParts& parts, const FoundCheckpoint& found, const ordered_json& state,
                    const std::string& source) {
  const int64_t then = engine::JsonIntOr(state, "ranks", 1, 1, INT64_MAX, source);
  const int64_t now = RanksOf(parts);
  // Earlier versions recorded no tensor size.
  const int64_t tensor = engine::JsonIntOr(state, "tensor", TensorOf(parts), 1, INT64_MAX, source);
  if ((then == now && tensor == TensorOf(parts)) || parts.spec.parallel.elastic) return;
  if (then == now) {
    throw Error(ErrorCode::kInvalidArgument,
                found.dir.string() + ": the checkpoint is of a run with ici_tensor_parallelism " +
                    std::to_string(tensor) + ", now " + std::to_string(TensorOf(parts)) +
                    ": set it as before, or set elastic=true");
  }
  throw Error(ErrorCode::kInvalidArgument,
              found.dir.string() + ": the checkpoint is of a run on " + std::to_string(then) +
                  (then == 1 ? " rank" : " ranks") + ", now " + std::to_string(now) +
                  (now == 1 ? " runs" : " run") +
                  ": start as many ranks as before, or set elastic=true");
}

// Throws when the checkpoint belongs to another run. Warns about permitted differences.
void CheckSameRun(const RunParts& parts, const FoundCheckpoint& found, const ordered_json& state,
                  const std::string& source, const WarnFunction& warn) {
  const std::string config = engine::ReadWholeFile(found.dir / "config.json", kMaxStateBytes);
  if (config != parts.files.texts.at("config.json")) {
    ThrowOther(found, "the checkpoint has a different model configuration or precision");
  }
  if (engine::JsonInt(state, "version", 0, INT64_MAX, source) != kStateVersion) {
    throw Error(ErrorCode::kUnsupported, source + ": has an unknown version");
  }
  CheckSameAdapter(parts, found, state, source);
  CheckSameData(parts, found, state, source, warn);
  if (found.isa_key != parts.ops.kernels().key) {
    warn("the checkpoint was written with arithmetic " + found.isa_key + ", this machine has " +
         std::string(parts.ops.kernels().key) + ": losses may differ in the last digits");
  }
  CheckSameRanks(parts, found, state, source);
  const ordered_json settings = Settings(parts);
  for (const auto& [key, value] : settings.items()) {
    const ordered_json there = state.at("settings").value(key, ordered_json());
    // Checkpoints of earlier versions lack some settings.
    if (there != value && !there.is_null()) {
      warn("resuming with a changed " + key + ": " + there.dump() + " became " + value.dump());
    }
  }
}

}  // namespace

CheckpointContents TextsOf(const RunParts& parts, const RunProgress& progress) {
  CheckpointContents contents;
  contents.step = progress.step;
  contents.arch = std::string(parts.files.family->name);
  contents.isa_key = std::string(parts.ops.kernels().key);
  contents.texts = parts.files.texts;
  contents.texts["train_state.json"] = StateJson(parts, progress).dump(2) + "\n";
  if (parts.trainer.base()) contents.texts["adapter_config.json"] = AdapterConfig(parts);
  return contents;
}

CheckpointContents ContentsOf(const RunParts& parts, const RunProgress& progress,
                              const std::vector<engine::NamedTensor>& moments,
                              std::vector<std::vector<std::byte>>* bytes) {
  CheckpointContents contents = TextsOf(parts, progress);
  contents.tensor_files.push_back(
      {WeightsFile(parts), ExportedTensors(parts.trainer.parameters(), bytes)});
  if (parts.trainer.base()) contents.tensor_files.back().metadata = AdapterMetadata(parts);
  contents.tensor_files.push_back(
      {"optim.safetensors", parts.trainer.parameters().OptimizerTensors()});
  auto& optimizer = contents.tensor_files.back().tensors;
  optimizer.insert(optimizer.end(), moments.begin(), moments.end());
  return contents;
}

namespace {

// Reads the weights of the checkpoint, and the optimiser's tensors that are no parts of ranks.
void ReadTensors(RunParts& parts, const FoundCheckpoint& found) {
  if (parts.trainer.base()) {
    const fs::path weights = found.dir / "adapter_model.safetensors";
    parts.trainer.parameters().LoadFrom(engine::SafetensorsFile::Open(weights), weights.string());
  } else {
    parts.trainer.parameters().LoadFrom(engine::ModelDir::Open(found.dir));
  }
  parts.trainer.parameters().RestoreOptimizer(TensorFiles::Open(found.dir, "optim"),
                                              found.dir.string());
}

// As ReadTensors, on every rank; each keeps its parts.
void ReadSharedTensors(RunParts& parts, const FoundCheckpoint& found) {
  std::error_code failed;
  const bool is_there = fs::is_directory(found.dir, failed);
  if (parts.ranks->AnyRank(!is_there)) {
    const std::string local = parts.spec.checkpoint.local_dir.string();
    const bool is_local = !local.empty() && found.dir.string().starts_with(local);
    throw Error(ErrorCode::kFailedPrecondition,
                found.dir.string() + (is_there ? ": another rank" : ": this rank") +
                    " cannot read it: with ici_fsdp_parallelism or ici_tensor_parallelism, " +
                    (is_local ? "checkpoint.local_directory" : "base_output_directory") +
                    " must be a directory that all hosts share");
  }
  ReadTensors(parts, found);
  RestoreMoments(parts.trainer.parameters(), TensorFiles::Open(found.dir, "optim"),
                 found.dir.string());
}

void ScatterIfSharded(RunParts& parts, const FoundCheckpoint& found) {
  ParameterStore& parameters = parts.trainer.parameters();
  if (parameters.shard().size == 1) return;
  std::optional<TensorFiles> files;
  if (parts.is_first_rank()) files = TensorFiles::Open(found.dir, "optim");
  ScatterMoments(*parts.ranks, parameters, files ? &*files : nullptr, found.dir.string());
}

}  // namespace

RunProgress RestoreRun(RunParts& parts, const FoundCheckpoint& found, const WarnFunction& warn) {
  const std::string source = (found.dir / "train_state.json").string();
  std::string text;
  const ParameterStore& parameters = parts.trainer.parameters();
  const bool has_parts = parameters.shares_weights() || parameters.tensor().is_split();
  if (parts.is_first_rank()) {
    text = engine::ReadWholeFile(source, kMaxStateBytes);
    CheckSameRun(parts, found, engine::ParseUntrustedJson(text, source), source, warn);
    if (!has_parts) ReadTensors(parts, found);
  }
  if (parts.ranks != nullptr) text = parts.ranks->BroadcastText(text, 0);
  if (has_parts) {
    ReadSharedTensors(parts, found);
  } else if (parts.ranks != nullptr) {
    // The first rank's disk may be its own.
    parts.trainer.parameters().VisitState(
        [&](std::span<std::byte> bytes) { parts.ranks->Broadcast(bytes, 0); });
    ScatterIfSharded(parts, found);
  }
  const ordered_json state = engine::ParseUntrustedJson(text, source);
  RunProgress progress;
  parts.trainer.set_optimizer_steps(
      engine::JsonInt(state, "optimizer_steps", 0, INT64_MAX, source));
  const ordered_json& packer = state.at("packer");
  parts.packer.Restore({.next = packer.at("next").get<int64_t>(),
                        .pending = packer.at("pending").get<std::vector<int64_t>>(),
                        .offset = packer.at("offset").get<int64_t>()});
  progress.step = engine::JsonInt(state, "step", 0, INT64_MAX, source);
  progress.tokens_seen = engine::JsonNumberOr(state, "tokens_seen", 0, 0, 1e300, source);
  progress.best_eval_loss = engine::JsonNumberOr(state, "best_eval_loss", 0, -1e300, 1e300, source);
  progress.best_step = engine::JsonInt(state, "best_step", -1, INT64_MAX, source);
  progress.exported_best_step =
      engine::JsonIntOr(state, "exported_best_step", -1, -1, INT64_MAX, source);
  progress.evaluations_without_gain =
      engine::JsonInt(state, "evaluations_without_gain", 0, INT64_MAX, source);
  progress.rollbacks = engine::JsonIntOr(state, "rollbacks", 0, 0, INT64_MAX, source);
  const ordered_json spikes = state.value("spikes", ordered_json::object());
  parts.trainer.spikes().Restore(
      {spikes.value("losses", std::deque<double>()), spikes.value("norms", std::deque<double>())});
  progress.losses = state.at("losses").get<std::deque<double>>();
  return progress;
}

}  // namespace tandem::training
