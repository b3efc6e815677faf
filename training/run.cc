#include "training/run.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/quoted.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/kernels/kernels.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "training/checkpoint/checkpoint_store.h"
#include "training/data/sample_maker.h"
#include "training/flops.h"
#include "training/lora/lora.h"
#include "training/lora_base.h"
#include "training/model_files.h"
#include "training/name_pattern.h"
#include "training/sample.h"
#include "training/trainer.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxStateBytes = 64 << 20;
constexpr size_t kLossTail = 32;
constexpr int64_t kStateVersion = 1;

// Of lists of hundreds of modules the beginning is enough.
std::string Shortened(const ordered_json& value) { return Quoted(value.dump()); }

std::vector<bool> TrainedWeights(const TrainSpec& spec,
                                 const std::vector<engine::WeightSpec>& weights) {
  if (spec.model.trainable.empty()) return {};
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
  if (!any) throw Error(ErrorCode::kInvalidArgument, "model.trainable: matches no weight");
  return trained;
}

TrainerOptions TrainerOptionsOf(const TrainSpec& spec, const ModelFiles& files) {
  TrainerOptions options;
  options.rows_per_batch = spec.train.per_device_batch_size;
  options.row_length = spec.data.max_target_length;
  options.max_segments = spec.data.max_segments_per_seq;
  options.optimizer = spec.train.optimizer;
  options.schedule = spec.train.schedule;
  options.dropout_seed = spec.data.seed;
  options.lora_dropout = static_cast<float>(spec.lora.dropout);
  options.trained = TrainedWeights(spec, files.family->list_weights(files.config));
  return options;
}

SampleOptions SampleOptionsOf(const TrainSpec& spec, const ModelFiles& files) {
  SampleOptions options;
  if (spec.data.add_bos) options.bos = files.bos;
  if (spec.data.add_eos) options.eos = files.eos;
  options.content_word_header = spec.data.header == Header::kContentWords;
  options.seed = spec.data.seed;
  return options;
}

PackerOptions PackerOptionsOf(const TrainSpec& spec, int64_t n_samples) {
  PackerOptions options;
  options.row_length = spec.data.max_target_length;
  options.max_segments = spec.data.max_segments_per_seq;
  options.packing = spec.data.packing;
  options.overflow = spec.data.overflow;
  options.shuffle = spec.data.shuffle;
  options.seed = spec.data.seed;
  options.n_samples = n_samples;
  options.n_epochs = spec.data.num_epoch;
  return options;
}

Trainer MakeTrainer(const TrainSpec& spec, const ModelFiles& files, const fs::path& cache_dir,
                    engine::OpsContext& ops) {
  const TrainerOptions options = TrainerOptionsOf(spec, files);
  if (!spec.lora.enable) {
    return Trainer(*files.family, files.config, spec.compute, options, ops);
  }
  // The base as it is served, from the same packed file where there is one.
  const engine::ModelDir dir = engine::ModelDir::Open(spec.model.load_parameters_path);
  engine::LoadOptions load = BaseLoadOptions(spec, dir, files.family->list_weights(files.config));
  load.cache_dir = cache_dir;
  auto base = engine::Model::Load(dir, load, ops);
  std::vector<LoraTarget> targets = ChooseLoraTargets(spec.lora, base->family(), base->config());
  return Trainer(std::move(base), std::move(targets), options, ops);
}

double Seconds(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// The validation text as micro-batches, packed once: in order, nothing cut off.
class ValidationSet {
 public:
  ValidationSet(const TrainSpec& spec, const ModelFiles& files)
      : corpus_(TextCorpus::Open(spec.data.eval, spec.data.delimiter)) {
    const SampleMaker maker(corpus_, *files.tokenizer, SampleOptionsOf(spec, files));
    PackerOptions options = PackerOptionsOf(spec, maker.size());
    options.overflow = Overflow::kSplit;
    options.shuffle = false;
    options.n_epochs = 1;
    Packer packer(options, [&](int64_t i) { return maker.Make(i); });
    PackedRow row;
    bool more = packer.Next(&row);
    while (more) {
      MicroBatch batch;
      for (int64_t r = 0; r < spec.train.per_device_batch_size; ++r) {
        batch.Append(more ? row : PaddingRow(options.row_length, options.pad));
        more = more && packer.Next(&row);
      }
      for (const TokenId target : batch.targets) {
        if (target < 0 || files.tokenizer->IsSpecial(target)) continue;
        bytes_ += static_cast<double>(files.tokenizer->TokenBytes(target).size());
      }
      batches_.push_back(std::move(batch));
      const auto n = static_cast<int64_t>(batches_.size());
      if (spec.train.eval_steps > 0 && n == spec.train.eval_steps) break;
    }
  }

  std::span<const MicroBatch> batches() const { return batches_; }
  double bytes() const { return bytes_; }  // of the predicted text

 private:
  TextCorpus corpus_;
  std::vector<MicroBatch> batches_;
  double bytes_ = 0;
};

class Run {
 public:
  Run(const TrainSpec& spec, const JobContext& context)
      : spec_(spec),
        context_(context),
        pool_(static_cast<int>(spec.resources.threads)),
        ops_(engine::Kernels(), pool_),
        files_(LoadModelFiles(spec)),
        corpus_(TextCorpus::Open(spec.data.train, spec.data.delimiter)),
        maker_(corpus_, *files_.tokenizer, SampleOptionsOf(spec, files_)),
        packer_(PackerOptionsOf(spec, maker_.size()), [this](int64_t i) { return maker_.Make(i); }),
        trainer_(MakeTrainer(spec, files_, context.cache_dir, ops_)),
        checkpoints_(context.dir / "checkpoints", spec.checkpoint.keep) {
    if (!spec.data.eval.empty()) validation_.emplace(spec, files_);
    batches_.resize(static_cast<size_t>(spec.train.gradient_accumulation_steps));
  }

  TrainOutcome Go() {
    for (const std::string& note : spec_.notes) Warn(note);
    Begin();
    OpenMetrics();
    while (outcome_.step < spec_.train.steps) {
      if (context_.stop.stop_requested()) return Stop();
      if (!OneStep()) break;
      const int64_t done = outcome_.step;
      const bool last = done == spec_.train.steps;
      if (Due(spec_.train.eval_interval) && !last && Evaluate()) break;
      if (Due(spec_.train.sample.every) && !last) Sample();
      if (Due(spec_.checkpoint.period) && !last) Save();
    }
    Finish();
    return outcome_;
  }

 private:
  bool Due(int64_t period) const { return period > 0 && outcome_.step % period == 0; }

  void Report(const char* kind, const std::string& message, double value = 0) {
    if (!context_.report) return;
    context_.report({kind, outcome_.step, spec_.train.steps, value, message});
  }
  void Warn(const std::string& message) { Report("warning", message); }

  void Begin() {
    std::optional<FoundCheckpoint> found;
    if (spec_.checkpoint.resume) {
      found = checkpoints_.FindNewest([this](const std::string& what) { Warn(what); });
    }
    if (found) {
      Restore(*found);
    } else if (trainer_.base()) {
      ParameterStore& adapter = trainer_.parameters();
      for (size_t i = 0; i < adapter.size(); ++i) {
        adapter.SetMaster(i,
                          InitialLora(adapter.specs()[i], spec_.lora.init, spec_.model.init_seed));
      }
    } else if (!spec_.model.load_parameters_path.empty()) {
      trainer_.parameters().LoadFrom(engine::ModelDir::Open(spec_.model.load_parameters_path));
    } else {
      trainer_.parameters().InitFresh(spec_.model.init_seed, spec_.model.init_std,
                                      files_.config.n_layers);
    }
    trainer_.MastersChanged();
    const bool gated =
        std::any_of(trainer_.program().nodes.begin(), trainer_.program().nodes.end(),
                    [](const Node& node) { return node.op == OpKind::kGatedActivation; });
    // MaxText's count is of all weights; what adapters save of it, the program knows.
    tflop_per_step_ = trainer_.base()
                          ? static_cast<double>(trainer_.program().training_flops()) / 1e12
                          : TflopPerStep(files_.config, gated, spec_.train.per_device_batch_size,
                                         spec_.data.max_target_length);
    tflop_per_step_ *= static_cast<double>(spec_.train.gradient_accumulation_steps);

    char base[64] = "";
    if (trainer_.base()) {
      std::snprintf(base, sizeof base, "base %.1f MiB%s, ",
                    static_cast<double>(trainer_.base()->weight_bytes()) / 0x1p20,
                    trainer_.base()->is_mapped() ? " (mapped)" : "");
      Report("message", "an adapter of rank " + std::to_string(spec_.lora.rank) + " for " +
                            std::to_string(trainer_.lora_targets().size()) +
                            " linear layers of a model of " +
                            std::to_string(trainer_.base()->parameter_count()) + " parameters in " +
                            trainer_.base()->weights_type());
    }
    char text[320];
    std::snprintf(
        text, sizeof text,
        "%lld parameters, %s, %lld samples, arithmetic %s, memory: %sparameters %.1f MiB, "
        "activations %.1f MiB",
        static_cast<long long>(trainer_.parameters().parameter_count()),
        std::string(engine::DTypeName(spec_.compute)).c_str(),
        static_cast<long long>(corpus_.size()), std::string(ops_.kernels().key).c_str(), base,
        static_cast<double>(trainer_.parameters().bytes()) / 0x1p20,
        static_cast<double>(trainer_.program().arena_bytes) / 0x1p20);
    Report("message", text);
  }

  // The next micro-batches of a step; false at the end of the data.
  bool NextBatches() {
    bool any = false;
    for (MicroBatch& batch : batches_) {
      batch.Clear();
      for (int64_t r = 0; r < spec_.train.per_device_batch_size; ++r) {
        PackedRow row;
        if (packer_.Next(&row)) {
          any = true;
        } else {
          row = PaddingRow(spec_.data.max_target_length, 0);
        }
        batch.Append(row);
      }
    }
    return any;
  }

  bool OneStep() {
    const auto start = std::chrono::steady_clock::now();
    if (!NextBatches()) {
      Report("message", "all epochs are done");
      return false;
    }
    const double data_seconds = Seconds(start);
    const StepResult step = trainer_.Step(batches_);
    const double seconds = Seconds(start);

    outcome_.loss = step.loss;
    losses_.push_back(step.loss);
    if (losses_.size() > kLossTail) losses_.pop_front();
    tokens_seen_ += step.total_weights;
    Log(step, seconds, data_seconds);
    ++outcome_.step;
    return true;
  }

  void Log(const StepResult& step, double seconds, double data_seconds) {
    const double tokens =
        static_cast<double>(spec_.train.per_device_batch_size * spec_.data.max_target_length *
                            spec_.train.gradient_accumulation_steps);
    if (outcome_.step % spec_.log_period == 0 || outcome_.step + 1 == spec_.train.steps) {
      char line[256];
      std::snprintf(line, sizeof line,
                    "completed step: %lld, seconds: %.3f, TFLOP/s/device: %.3f, "
                    "Tokens/s/device: %.3f, total_weights: %lld, loss: %.3f",
                    static_cast<long long>(outcome_.step), seconds, tflop_per_step_ / seconds,
                    tokens / seconds, static_cast<long long>(step.total_weights), step.loss);
      Report("step", line, step.loss);
    }
    WriteMetrics({{"step", outcome_.step},
                  {"learning/loss", step.loss},
                  {"learning/perplexity", std::exp(step.loss)},
                  {"learning/total_weights", step.total_weights},
                  {"learning/grad_norm", step.grad_norm},
                  {"learning/raw_grad_norm", step.raw_grad_norm},
                  {"learning/current_learning_rate", step.learning_rate},
                  {"learning/updated", step.updated},
                  {"perf/step_time_seconds", seconds},
                  {"perf/data_wait_seconds", data_seconds},
                  {"perf/per_device_tflops", tflop_per_step_},
                  {"perf/per_device_tflops_per_sec", tflop_per_step_ / seconds},
                  {"perf/per_device_tokens", tokens},
                  {"perf/per_device_tokens_per_sec", tokens / seconds},
                  {"perf/real_tokens_per_sec", step.total_weights / seconds},
                  {"data/epoch", packer_.epoch()}});
  }

  // A killed predecessor may have left half a line.
  void OpenMetrics() {
    const fs::path path = context_.dir / "metrics.jsonl";
    std::ifstream old(path, std::ios::binary | std::ios::ate);
    bool half_line = false;
    if (old && old.tellg() > 0) {
      old.seekg(-1, std::ios::end);
      half_line = old.get() != '\n';
    }
    metrics_.open(path, std::ios::app);
    if (half_line) metrics_ << '\n';
  }

  // One line, flushed: a crash loses nothing. Metrics are not worth failing for: after a full disk
  // they go on where there is room again.
  void WriteMetrics(const ordered_json& line) {
    metrics_.clear();
    metrics_ << line.dump() << '\n' << std::flush;
  }

  // True when training should end.
  bool Evaluate() {
    if (!validation_) return false;
    const EvaluationResult result = trainer_.Evaluate(validation_->batches());
    outcome_.eval_loss = result.loss;
    evaluated_step_ = outcome_.step;
    const double bits_per_byte =
        validation_->bytes() > 0 ? result.weighted_loss / std::log(2.0) / validation_->bytes() : 0;
    char text[160];
    std::snprintf(
        text, sizeof text, "eval after step: %lld, loss: %.4f, perplexity: %.3f, bits/byte: %.4f",
        static_cast<long long>(outcome_.step), result.loss, std::exp(result.loss), bits_per_byte);
    Report("eval", text, result.loss);
    WriteMetrics({{"step", outcome_.step},
                  {"eval/avg_loss", result.loss},
                  {"eval/avg_perplexity", std::exp(result.loss)},
                  {"eval/bits_per_byte", bits_per_byte},
                  {"eval/total_weights", result.total_weights}});

    const bool better = best_step_ < 0 || result.loss < outcome_.best_eval_loss;
    if (better) {
      outcome_.best_eval_loss = result.loss;
      best_step_ = outcome_.step;
      evaluations_without_gain_ = 0;
      if (spec_.checkpoint.export_best &&
          Guarded("exporting the best model", [&] { Export(context_.dir / "best"); })) {
        exported_best_step_ = best_step_;
      }
    } else {
      ++evaluations_without_gain_;
    }
    if (spec_.train.target_eval_loss > 0 && result.loss <= spec_.train.target_eval_loss) {
      Report("message", "the target evaluation loss is reached");
      return true;
    }
    const int64_t patience = spec_.train.early_stopping_patience;
    if (patience > 0 && evaluations_without_gain_ >= patience) {
      Report("message", "no better evaluation in " + std::to_string(patience) + ": stopping early");
      return true;
    }
    return false;
  }

  std::string AdapterConfig() const {
    return LoraConfigOf(spec_.lora, trainer_.lora_targets(), trainer_.base()->weight_specs(),
                        spec_.model.load_parameters_path.string());
  }

  std::map<std::string, std::string> AdapterMetadata() const {
    return engine::LoraMetadata(trainer_.base()->content_hash(), trainer_.base()->dtype(),
                                trainer_.base()->weights_type());
  }

  // The model or the adapter as it stands.
  fs::path Export(const fs::path& dir) {
    return trainer_.base()
               ? ExportAdapter(AdapterConfig(), AdapterMetadata(), trainer_.parameters(), dir)
               : ExportModel(files_, trainer_.parameters(), dir);
  }

  // Through files and ModelRunner, as a server would run the model at this moment.
  void Sample() {
    const fs::path dir = context_.dir / "sample-model";
    Export(dir);
    engine::LoadOptions load;
    load.dtype = spec_.compute;
    const auto model = trainer_.base()
                           ? trainer_.base()
                           : engine::Model::Load(engine::ModelDir::Open(dir), load, ops_);
    std::shared_ptr<const engine::Adapter> adapter;
    if (trainer_.base()) {
      adapter = engine::Adapter::Load(engine::LoraAdapter::Open(dir), model, ops_);
    }
    for (const std::string& prompt : spec_.train.sample.prompts) {
      std::vector<TokenId> ids;
      if (spec_.data.add_bos && files_.bos) ids.push_back(*files_.bos);
      const auto text = files_.tokenizer->Encode(prompt, engine::SpecialTokens::kParseSpecial);
      ids.insert(ids.end(), text.begin(), text.end());
      const std::vector<TokenId> generated =
          Generate(model, ops_, ids, spec_.train.sample, adapter.get());
      Report("sample", prompt + engine::Decode(*files_.tokenizer, generated, true));
    }
    fs::remove_all(dir);
  }

  ordered_json StateJson() const {
    const PackerState& packer = packer_.state();
    return {
        {"version", kStateVersion},
        {"step", outcome_.step},
        {"optimizer_steps", trainer_.optimizer_steps()},
        {"tokens_seen", tokens_seen_},
        {"packer", {{"next", packer.next}, {"pending", packer.pending}, {"offset", packer.offset}}},
        {"best_eval_loss", outcome_.best_eval_loss},
        {"best_step", best_step_},
        {"exported_best_step", exported_best_step_},
        {"evaluations_without_gain", evaluations_without_gain_},
        {"losses", losses_},
        {"base", trainer_.base() ? trainer_.base()->content_hash() : ""},
        {"base_weights", trainer_.base() ? trainer_.base()->weights_type() : ""},
        {"settings", Settings()}};
  }

  // What a resumed run must share with the one it continues, or at least be warned about.
  ordered_json Settings() const {
    const TrainSection& t = spec_.train;
    ordered_json settings = {{"samples", corpus_.size()},
                             {"max_target_length", spec_.data.max_target_length},
                             {"packing", static_cast<int>(spec_.data.packing)},
                             {"overflow", static_cast<int>(spec_.data.overflow)},
                             {"header", static_cast<int>(spec_.data.header)},
                             {"shuffle", spec_.data.shuffle},
                             {"data_seed", spec_.data.seed},
                             {"per_device_batch_size", t.per_device_batch_size},
                             {"gradient_accumulation_steps", t.gradient_accumulation_steps},
                             {"optimizer", static_cast<int>(t.optimizer.kind)},
                             {"b1", t.optimizer.b1},
                             {"b2", t.optimizer.b2},
                             {"eps", t.optimizer.eps},
                             {"weight_decay", t.optimizer.weight_decay},
                             {"clip_norm", t.optimizer.clip_norm},
                             {"learning_rate", t.schedule.learning_rate},
                             {"schedule_steps", t.schedule.schedule_steps},
                             {"warmup_fraction", t.schedule.warmup_fraction},
                             {"final_fraction", t.schedule.final_fraction},
                             {"constant", t.schedule.constant}};
    if (trainer_.base()) settings["lora_dropout"] = spec_.lora.dropout;
    return settings;
  }

  [[noreturn]] static void ThrowOther(const FoundCheckpoint& found, const std::string& what) {
    throw Error(
        ErrorCode::kInvalidArgument,
        found.dir.string() + ": " + what + "; choose another run_name, or checkpoint.resume=false");
  }

  // What makes the adapter another one is compared; the base may have moved since.
  void CheckSameAdapter(const FoundCheckpoint& found, const ordered_json& state,
                        const std::string& source) const {
    const fs::path path = found.dir / "adapter_config.json";
    if (fs::exists(path) != (trainer_.base() != nullptr)) {
      ThrowOther(found, trainer_.base() ? "the checkpoint is of a model, lora asks for an adapter"
                                        : "the checkpoint is of an adapter, which needs lora");
    }
    if (!trainer_.base()) return;
    const auto theirs =
        engine::ParseUntrustedJson(engine::ReadWholeFile(path, kMaxStateBytes), path.string());
    const auto ours = engine::ParseUntrustedJson(AdapterConfig(), "lora");
    for (const char* field : {"r", "lora_alpha", "use_rslora", "target_modules"}) {
      const ordered_json there = theirs.is_object() ? theirs.value(field, ordered_json()) : nullptr;
      if (there == ours.at(field)) continue;
      ThrowOther(found, "the checkpoint's adapter has another '" + std::string(field) +
                            "' than lora asks for: " + Shortened(there) + ", now " +
                            Shortened(ours.at(field)));
    }
    const engine::Model& base = *trainer_.base();
    if (engine::JsonStringOr(state, "base", "", source) != base.content_hash()) {
      ThrowOther(found, "the checkpoint's adapter belongs to another model than " +
                            spec_.model.load_parameters_path.string() + " holds now");
    }
    const std::string held = engine::JsonStringOr(state, "base_weights", "", source);
    if (!held.empty() && held != base.weights_type()) {
      ThrowOther(found, "the checkpoint's adapter was trained beside weights in " + held +
                            ", lora.base_dtype now asks for " + base.weights_type());
    }
  }

  // Throws when the checkpoint is of another run than this; what may differ is warned about.
  void CheckSameRun(const FoundCheckpoint& found, const ordered_json& state,
                    const std::string& source) {
    const std::string config = engine::ReadWholeFile(found.dir / "config.json", kMaxStateBytes);
    if (config != files_.texts.at("config.json")) {
      ThrowOther(found, "the checkpoint is of another model configuration or precision");
    }
    if (engine::JsonInt(state, "version", 0, INT64_MAX, source) != kStateVersion) {
      throw Error(ErrorCode::kUnsupported, source + ": unknown version");
    }
    CheckSameAdapter(found, state, source);
    if (found.isa_key != ops_.kernels().key) {
      Warn("the checkpoint was written with arithmetic " + found.isa_key + ", this is " +
           std::string(ops_.kernels().key) + ": losses will differ in the last digits");
    }
    const ordered_json settings = Settings();
    for (const auto& [key, value] : settings.items()) {
      const ordered_json there = state.at("settings").value(key, ordered_json());
      if (there != value) {
        Warn("resuming with another " + key + ": " + there.dump() + " became " + value.dump());
      }
    }
  }

  void Restore(const FoundCheckpoint& found) {
    const std::string source = (found.dir / "train_state.json").string();
    const ordered_json state =
        engine::ParseUntrustedJson(engine::ReadWholeFile(source, kMaxStateBytes), source);
    CheckSameRun(found, state, source);

    if (trainer_.base()) {
      const fs::path weights = found.dir / "adapter_model.safetensors";
      trainer_.parameters().LoadFrom(engine::SafetensorsFile::Open(weights), weights.string());
    } else {
      trainer_.parameters().LoadFrom(engine::ModelDir::Open(found.dir));
    }
    const fs::path optim = found.dir / "optim.safetensors";
    trainer_.parameters().RestoreOptimizer(engine::SafetensorsFile::Open(optim), optim.string());
    trainer_.set_optimizer_steps(engine::JsonInt(state, "optimizer_steps", 0, INT64_MAX, source));
    const ordered_json& packer = state.at("packer");
    packer_.Restore({.next = packer.at("next").get<int64_t>(),
                     .pending = packer.at("pending").get<std::vector<int64_t>>(),
                     .offset = packer.at("offset").get<int64_t>()});
    outcome_.step = engine::JsonInt(state, "step", 0, INT64_MAX, source);
    tokens_seen_ = engine::JsonNumberOr(state, "tokens_seen", 0, 0, 1e300, source);
    outcome_.best_eval_loss =
        engine::JsonNumberOr(state, "best_eval_loss", 0, -1e300, 1e300, source);
    best_step_ = engine::JsonInt(state, "best_step", -1, INT64_MAX, source);
    exported_best_step_ = engine::JsonIntOr(state, "exported_best_step", -1, -1, INT64_MAX, source);
    evaluations_without_gain_ =
        engine::JsonInt(state, "evaluations_without_gain", 0, INT64_MAX, source);
    losses_ = state.at("losses").get<std::deque<double>>();
    if (!losses_.empty()) outcome_.loss = losses_.back();
    outcome_.checkpoint = found.dir;
    Report("message", "resumed after step " + std::to_string(outcome_.step));
  }

  // A disk that is full must not end a run that may yet find room: what was saved before is still
  // there. Returns whether it worked.
  template <class Action>
  bool Guarded(const std::string& what, const Action& action) {
    try {
      action();
      return true;
    } catch (const fs::filesystem_error& error) {
      Warn(what + " failed, training goes on: " + error.what());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kIo) throw;
      Warn(what + " failed, training goes on: " + error.what());
    }
    return false;
  }

  bool Save() {
    return Guarded("saving a checkpoint", [&] {
      CheckpointContents contents;
      contents.step = outcome_.step;
      contents.arch = std::string(files_.family->name);
      contents.isa_key = std::string(ops_.kernels().key);
      contents.texts = files_.texts;
      contents.texts["train_state.json"] = StateJson().dump(2) + "\n";
      if (trainer_.base()) contents.texts["adapter_config.json"] = AdapterConfig();
      std::vector<std::vector<std::byte>> bytes;
      contents.tensor_files.push_back(
          {WeightsFile(), ExportedTensors(trainer_.parameters(), &bytes)});
      if (trainer_.base()) contents.tensor_files.back().metadata = AdapterMetadata();
      contents.tensor_files.push_back(
          {"optim.safetensors", trainer_.parameters().OptimizerTensors()});
      outcome_.checkpoint = checkpoints_.Save(contents);
      Report("checkpoint", outcome_.checkpoint.string());
    });
  }

  TrainOutcome Stop() {
    Save();
    outcome_.status = TrainOutcome::Status::kStopped;
    return outcome_;
  }

  const char* WeightsFile() const {
    return trainer_.base() ? "adapter_model.safetensors" : "model.safetensors";
  }

  // hf/ or adapter/ is what one would serve: the best evaluated weights where there are any, else
  // the last.
  void Finish() {
    if (evaluated_step_ != outcome_.step) Evaluate();
    Save();
    if (spec_.train.sample.every > 0) Sample();
    if (!spec_.checkpoint.export_model) return;
    const bool is_adapter = trainer_.base() != nullptr;
    const fs::path dir = context_.dir / (is_adapter ? "adapter" : "hf");
    const fs::path best = context_.dir / "best" / WeightsFile();
    // A best/ that another run, or an export that failed, has left there is not ours to publish.
    const bool has_best = exported_best_step_ == best_step_ && fs::exists(best);
    if (validation_ && best_step_ != outcome_.step && has_best) {
      if (is_adapter) {
        ExportAdapter(AdapterConfig(), best, dir);
      } else {
        ExportModel(files_, best, dir);
      }
      Report("message", "exported the weights of step " + std::to_string(best_step_) +
                            ", whose evaluation was best");
    } else {
      Export(dir);
    }
    (is_adapter ? outcome_.adapter_dir : outcome_.model_dir) = dir;
    Report("message",
           std::string(is_adapter ? "adapter" : "model") + " exported to " + dir.string());
  }

  const TrainSpec& spec_;
  const JobContext& context_;
  ThreadPool pool_;
  engine::OpsContext ops_;
  ModelFiles files_;
  TextCorpus corpus_;
  SampleMaker maker_;
  Packer packer_;
  Trainer trainer_;
  CheckpointStore checkpoints_;
  std::optional<ValidationSet> validation_;
  std::vector<MicroBatch> batches_;
  std::ofstream metrics_;

  TrainOutcome outcome_;
  std::deque<double> losses_;  // of the last steps
  double tokens_seen_ = 0;
  double tflop_per_step_ = 0;
  int64_t best_step_ = -1;
  int64_t exported_best_step_ = -1;  // whose weights best/ holds; -1: none of this run's
  int64_t evaluated_step_ = -1;
  int64_t evaluations_without_gain_ = 0;
};

}  // namespace

TrainOutcome RunTraining(const TrainSpec& spec, const JobContext& context) {
  fs::create_directories(context.dir);
  return Run(spec, context).Go();
}

std::string DescribePlan(const TrainSpec& spec) {
  const ModelFiles files = LoadModelFiles(spec);
  RecordOptions record;
  int64_t base_bytes = 0;
  record.rows = spec.train.per_device_batch_size * spec.data.max_target_length;
  record.row_length = spec.data.max_target_length;
  record.max_segments = spec.train.per_device_batch_size * (spec.data.max_segments_per_seq + 1);
  record.dtype = spec.compute;
  if (spec.lora.enable) {
    record.lora = ChooseLoraTargets(spec.lora, *files.family, files.config);
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
