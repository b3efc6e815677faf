#include "training/run.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "training/checkpoint/checkpoint_store.h"
#include "training/checkpoint/checkpoint_writer.h"
#include "training/flops.h"
#include "training/lora/lora.h"
#include "training/run_checkpoint.h"
#include "training/run_export.h"
#include "training/run_parts.h"
#include "training/validation_set.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kLossTail = 32;

double Seconds(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

class Run {
 public:
  Run(const TrainSpec& spec, const JobContext& context)
      : spec_(spec),
        context_(context),
        parts_(spec, context),
        checkpoints_(context.dir / "checkpoints", spec.checkpoint.keep),
        writer_(checkpoints_) {
    if (!spec.data.eval.empty()) validation_.emplace(spec, parts_.files);
    batches_.resize(static_cast<size_t>(spec.train.gradient_accumulation_steps));
  }

  TrainOutcome Go() {
    for (const std::string& note : spec_.notes) Warn(note);
    Begin();
    Announce();
    OpenMetrics();
    // So that there is something to go back to.
    if (spec_.train.on_nan == OnNan::kRollback && outcome_.checkpoint.empty()) Save(Wait::kYes);
    while (progress_.step < spec_.train.steps) {
      if (context_.stop.stop_requested()) return Stop();
      TakeSaved(Wait::kNo);
      if (!OneStep()) break;
      const bool last = progress_.step == spec_.train.steps;
      if (Due(spec_.train.eval_interval) && !last && Evaluate()) break;
      if (Due(spec_.train.sample.every) && !last) Sample();
      if (Due(spec_.checkpoint.period) && !last) Save(Wait::kNo);
    }
    Finish();
    return Outcome();
  }

 private:
  bool Due(int64_t period) const { return period > 0 && progress_.step % period == 0; }

  void Report(const char* kind, const std::string& message, double value = 0) {
    if (!context_.report) return;
    context_.report({kind, progress_.step, spec_.train.steps, value, message});
  }
  void Warn(const std::string& message) { Report("warning", message); }

  TrainOutcome Outcome() {
    outcome_.step = progress_.step;
    outcome_.best_eval_loss = progress_.best_eval_loss;
    return outcome_;
  }

  void Resume(const FoundCheckpoint& found, const WarnFunction& warn) {
    progress_ = RestoreRun(parts_, found, warn);
    if (!progress_.losses.empty()) outcome_.loss = progress_.losses.back();
    outcome_.checkpoint = found.dir;
    Report("message", "resumed after step " + std::to_string(progress_.step));
  }

  void Begin() {
    std::optional<FoundCheckpoint> found;
    const WarnFunction warn = [this](const std::string& what) { Warn(what); };
    if (spec_.checkpoint.resume) {
      found = checkpoints_.FindNewest(warn);
    } else if (const fs::path aside = checkpoints_.SetAside(); !aside.empty()) {
      Warn("checkpoints of an earlier run are now in " + aside.string());
    }
    if (found) {
      Resume(*found, warn);
    } else {
      InitialWeights(parts_);
    }
    Trainer& trainer = parts_.trainer;
    trainer.MastersChanged();
    const bool gated =
        std::any_of(trainer.program().nodes.begin(), trainer.program().nodes.end(),
                    [](const Node& node) { return node.op == OpKind::kGatedActivation; });
    // MaxText's count is of all weights; what adapters save of it, the program knows.
    tflop_per_step_ =
        trainer.base() ? static_cast<double>(trainer.program().training_flops()) / 1e12
                       : TflopPerStep(parts_.files.config, gated, spec_.train.per_device_batch_size,
                                      spec_.data.max_target_length);
    tflop_per_step_ *= static_cast<double>(spec_.train.gradient_accumulation_steps);
  }

  void AnnounceTargets() {
    const engine::Model& base = *parts_.trainer.base();
    for (const std::string& line :
         DescribeTargets(parts_.trainer.lora_targets(), base.weight_specs())) {
      Report("message", "  " + line);
    }
    for (const std::string& name : TargetsPassedOver(spec_.lora, base.family(), base.config())) {
      Warn("lora.module_path also matches " + name + ", which can have no adapter");
    }
    const std::string& trained_beside = parts_.adapter.base_hash;
    if (!trained_beside.empty() && trained_beside != base.content_hash()) {
      Warn("the adapter of lora.load_path was trained beside other weights than these");
    }
  }

  void Announce() {
    const Trainer& trainer = parts_.trainer;
    char base[64] = "";
    if (trainer.base()) {
      std::snprintf(base, sizeof base, "base %.1f MiB%s, ",
                    static_cast<double>(trainer.base()->weight_bytes()) / 0x1p20,
                    trainer.base()->is_mapped() ? " (mapped)" : "");
      Report("message", "an adapter of rank " + std::to_string(parts_.adapter.options.rank) +
                            " for " + std::to_string(trainer.lora_targets().size()) +
                            " linear layers of a model of " +
                            std::to_string(trainer.base()->parameter_count()) + " parameters in " +
                            trainer.base()->weights_type());
      AnnounceTargets();
    }
    char text[320];
    std::snprintf(
        text, sizeof text,
        "%lld parameters, %s, %lld samples, arithmetic %s, memory: %sparameters %.1f MiB, "
        "activations %.1f MiB",
        static_cast<long long>(trainer.parameters().parameter_count()),
        std::string(engine::DTypeName(spec_.compute)).c_str(),
        static_cast<long long>(parts_.corpus.size()), std::string(parts_.ops.kernels().key).c_str(),
        base, static_cast<double>(trainer.parameters().bytes()) / 0x1p20,
        static_cast<double>(trainer.program().arena_bytes) / 0x1p20);
    Report("message", text);
  }

  // The next micro-batches of a step; false at the end of the data.
  bool NextBatches() {
    bool any = false;
    for (MicroBatch& batch : batches_) {
      batch.Clear();
      for (int64_t r = 0; r < spec_.train.per_device_batch_size; ++r) {
        PackedRow row;
        if (parts_.packer.Next(&row)) {
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
    const StepResult step = parts_.trainer.Step(batches_);
    const double seconds = Seconds(start);
    if (!step.finite) {
      LeaveOut(step);
      return true;
    }
    if (step.spike) Warn("a spike, " + Shown(step) + ": the weights were not updated");

    outcome_.loss = step.loss;
    progress_.losses.push_back(step.loss);
    if (progress_.losses.size() > kLossTail) progress_.losses.pop_front();
    progress_.tokens_seen += step.total_weights;
    Log(step, seconds, data_seconds);
    ++progress_.step;
    return true;
  }

  std::string Shown(const StepResult& step) const {
    char text[160];
    std::snprintf(text, sizeof text, "loss %g with gradient norm %g at step %lld", step.loss,
                  step.raw_grad_norm, static_cast<long long>(progress_.step));
    return text;
  }

  // A step whose loss or gradient is not finite; the weights are as they were before it.
  void LeaveOut(const StepResult& step) {
    if (spec_.train.on_nan == OnNan::kRollback) return RollBack(step);
    if (spec_.train.on_nan == OnNan::kAbort) {
      throw Error(ErrorCode::kFailedPrecondition,
                  Shown(step) + ": the weights were not updated; lower the learning rate, check " +
                      "the data, or see train.on_nan");
    }
    Warn(Shown(step) + ": the step is left out");
    WriteMetrics({{"step", progress_.step},
                  {"learning/total_weights", step.total_weights},
                  {"learning/updated", false},
                  {"learning/finite", false}});
    ++progress_.step;
  }

  // To the last checkpoint, which is then written anew: with the data behind this step's, and so
  // that a run killed now does not meet that again.
  void RollBack(const StepResult& step) {
    const std::string what = Shown(step);
    TakeSaved(Wait::kYes);
    const WarnFunction warn = [this](const std::string& text) { Warn(text); };
    const auto found = checkpoints_.FindNewest(warn);
    if (!found || progress_.rollbacks >= spec_.train.max_rollbacks) {
      throw Error(ErrorCode::kFailedPrecondition,
                  what + (found ? ", after " + std::to_string(progress_.rollbacks) + " rollbacks"
                                : ", and there is no checkpoint to go back to"));
    }
    const int64_t rollbacks = progress_.rollbacks + 1;
    Warn(what + ": rollback " + std::to_string(rollbacks) + " of at most " +
         std::to_string(spec_.train.max_rollbacks) + " to step " + std::to_string(found->step) +
         "; the data up to here is skipped");
    const PackerState ahead = parts_.packer.state();
    Resume(*found, warn);
    progress_.rollbacks = rollbacks;
    parts_.packer.Restore(ahead);
    parts_.trainer.MastersChanged();
    Save(Wait::kYes);
  }

  void Log(const StepResult& step, double seconds, double data_seconds) {
    const double tokens =
        static_cast<double>(spec_.train.per_device_batch_size * spec_.data.max_target_length *
                            spec_.train.gradient_accumulation_steps);
    if (progress_.step % spec_.log_period == 0 || progress_.step + 1 == spec_.train.steps) {
      char line[256];
      std::snprintf(line, sizeof line,
                    "completed step: %lld, seconds: %.3f, TFLOP/s/device: %.3f, "
                    "Tokens/s/device: %.3f, total_weights: %lld, loss: %.3f",
                    static_cast<long long>(progress_.step), seconds, tflop_per_step_ / seconds,
                    tokens / seconds, static_cast<long long>(step.total_weights), step.loss);
      Report("step", line, step.loss);
    }
    WriteMetrics({{"step", progress_.step},
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
                  {"data/epoch", parts_.packer.epoch()}});
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
    const EvaluationResult result = parts_.trainer.Evaluate(validation_->batches());
    outcome_.eval_loss = result.loss;
    evaluated_step_ = progress_.step;
    const double bits_per_byte =
        validation_->bytes() > 0 ? result.weighted_loss / std::log(2.0) / validation_->bytes() : 0;
    char text[160];
    std::snprintf(
        text, sizeof text, "eval after step: %lld, loss: %.4f, perplexity: %.3f, bits/byte: %.4f",
        static_cast<long long>(progress_.step), result.loss, std::exp(result.loss), bits_per_byte);
    Report("eval", text, result.loss);
    WriteMetrics({{"step", progress_.step},
                  {"eval/avg_loss", result.loss},
                  {"eval/avg_perplexity", std::exp(result.loss)},
                  {"eval/bits_per_byte", bits_per_byte},
                  {"eval/total_weights", result.total_weights}});

    const bool better = progress_.best_step < 0 || result.loss < progress_.best_eval_loss;
    if (better) {
      progress_.best_eval_loss = result.loss;
      progress_.best_step = progress_.step;
      progress_.evaluations_without_gain = 0;
      if (spec_.checkpoint.export_best &&
          Guarded("exporting the best model", [&] { ExportRun(parts_, context_.dir / "best"); })) {
        progress_.exported_best_step = progress_.best_step;
      }
    } else {
      ++progress_.evaluations_without_gain;
    }
    if (spec_.train.target_eval_loss > 0 && result.loss <= spec_.train.target_eval_loss) {
      Report("message", "the target evaluation loss is reached");
      return true;
    }
    const int64_t patience = spec_.train.early_stopping_patience;
    if (patience > 0 && progress_.evaluations_without_gain >= patience) {
      Report("message", "no better evaluation in " + std::to_string(patience) + ": stopping early");
      return true;
    }
    return false;
  }

  void Sample() {
    WriteSamples(parts_, context_.dir / "sample-model",
                 [this](const std::string& text) { Report("sample", text); });
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

  enum class Wait { kNo, kYes };

  void Saved(const fs::path& checkpoint) {
    outcome_.checkpoint = checkpoint;
    Report("checkpoint", checkpoint.string());
  }

  // The outcome of the save in flight, if there is one and it is done or waited for.
  void TakeSaved(Wait wait) {
    const auto result = writer_.Take(wait == Wait::kYes);
    if (!result) return;
    Guarded("saving a checkpoint", [&] {
      if (result->failure) std::rethrow_exception(result->failure);
      Saved(result->dir);
    });
  }

  // One at a time: a save waits for the one before it.
  void Save(Wait wait) {
    TakeSaved(Wait::kYes);
    Guarded("saving a checkpoint", [&] {
      CheckpointSnapshot snapshot;
      snapshot.contents = ContentsOf(parts_, progress_, &snapshot.bytes);
      if (wait == Wait::kNo && spec_.checkpoint.async) {
        if (CopyTensors(snapshot.contents.tensor_files.back(), &snapshot.copies)) {
          return writer_.Start(std::move(snapshot));
        }
        Warn("no memory for a copy of the moments: training waits for this checkpoint");
      }
      Saved(checkpoints_.Save(snapshot.contents));
    });
  }

  TrainOutcome Stop() {
    Save(Wait::kYes);
    outcome_.status = TrainOutcome::Status::kStopped;
    return Outcome();
  }

  // hf/ or adapter/ is what one would serve: the best evaluated weights where there are any, else
  // the last.
  void Finish() {
    if (evaluated_step_ != progress_.step) Evaluate();
    Save(Wait::kYes);
    if (spec_.train.sample.every > 0) Sample();
    if (!spec_.checkpoint.export_model) return;
    const bool is_adapter = parts_.is_adapter();
    const fs::path dir = context_.dir / (is_adapter ? "adapter" : "hf");
    const fs::path best = context_.dir / "best" / WeightsFile(parts_);
    // A best/ that another run, or an export that failed, has left there is not ours to publish.
    const bool has_best = progress_.exported_best_step == progress_.best_step && fs::exists(best);
    if (validation_ && progress_.best_step != progress_.step && has_best) {
      ExportRun(parts_, best, dir);
      Report("message", "exported the weights of step " + std::to_string(progress_.best_step) +
                            ", whose evaluation was best");
    } else {
      ExportRun(parts_, dir);
    }
    (is_adapter ? outcome_.adapter_dir : outcome_.model_dir) = dir;
    Report("message",
           std::string(is_adapter ? "adapter" : "model") + " exported to " + dir.string());
  }

  const TrainSpec& spec_;
  const JobContext& context_;
  RunParts parts_;
  CheckpointStore checkpoints_;
  CheckpointWriter writer_;
  std::optional<ValidationSet> validation_;
  std::vector<MicroBatch> batches_;
  std::ofstream metrics_;

  RunProgress progress_;
  TrainOutcome outcome_;
  double tflop_per_step_ = 0;
  int64_t evaluated_step_ = -1;
};

}  // namespace

TrainOutcome RunTraining(const TrainSpec& spec, const JobContext& context) {
  fs::create_directories(context.dir);
  return Run(spec, context).Go();
}

}  // namespace tandem::training
