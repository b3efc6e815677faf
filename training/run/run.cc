#include "training/run/run.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <optional>

#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "training/dist/agreement.h"
#include "training/plan/plan.h"
#include "training/run/run_announcement.h"
#include "training/run/run_checkpoint.h"
#include "training/run/run_export.h"
#include "training/run/run_metrics.h"
#include "training/run/run_ranks.h"
#include "training/run/run_reference.h"
#include "training/run/run_saver.h"
#include "training/run/run_teacher.h"
#include "training/run/trace_window.h"
#include "training/setup/run_parts.h"
#include "training/setup/validation_set.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLossTail = 32;

double Seconds(std::chrono::steady_clock::time_point from) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

class Run {
  using Wait = RunSaver::Wait;

 public:
  Run(const TrainSpec& spec, const JobContext& context, Collectives* ranks)
      : spec_(spec),
        context_(context),
        ranks_(ranks),
        parts_(spec, context, ranks),
        checkpoints_(parts_, context.dir / "checkpoints",
                     {[this](const fs::path& dir) { Report("checkpoint", dir.string()); },
                      [this](const std::string& what) { Warn(what); }}) {
    if (!spec.data.eval.empty()) validation_.emplace(spec, parts_.files, parts_.pool);
    batches_.resize(static_cast<size_t>(parts_.own_batches()));
    if (ranks_ != nullptr) {
      CheckAgreement(*ranks_,
                     {{"the training data", parts_.data_sha256, "give all hosts the same files"},
                      {"the file of train.loss_library", parts_.loss_sha256.substr(0, 16),
                       "give all hosts the same file"}});
    }
  }

  TrainOutcome Go() {
    for (const std::string& note : spec_.notes) Warn(note);
    Begin();
    if (is_first()) {
      AnnounceRun(parts_, {.report = [this](const std::string& what) { Report("message", what); },
                           .warn = [this](const std::string& what) { Warn(what); }});
    }
    // A rollback needs a checkpoint to return to.
    if (spec_.train.on_nan == OnNan::kRollback && !checkpoints_.has_checkpoint()) Save(Wait::kYes);
    if (spec_.train.sample.at_start && progress_.step == 0) Sample();
    ProgressTask task("training " + spec_.run_name, "steps", spec_.train.steps, progress_.step);
    while (progress_.step < spec_.train.steps) {
      if (IsStopRequested()) return Stop();
      checkpoints_.Take(Wait::kNo);
      if (!OneStep()) break;
      task.Reach(progress_.step);
      if (window_.IsOver(progress_.step)) FlushMetrics();
      const bool last = progress_.step == spec_.train.steps;
      const bool exports = IsExportDue() && !last;
      if ((Due(spec_.train.eval_interval) || exports) && !last && Evaluate()) break;
      if (Due(spec_.train.sample.every) && !last) Sample();
      // Export before the save: a run resumed from that checkpoint does not repeat the export.
      if (exports) ExportStep();
      if (Due(spec_.checkpoint.period) && !last) {
        Save(Wait::kNo);
      } else if (Due(spec_.checkpoint.local_period) && !last) {
        Save(Wait::kNo, Place::kLocal);
      }
    }
    Finish();
    return Outcome();
  }

 private:
  // Whether any rank was asked to stop. All ranks then stop after the same step.
  bool IsStopRequested() const {
    const bool here = context_.stop.stop_requested();
    return ranks_ == nullptr ? here : ranks_->AnyRank(here);
  }

  bool Due(int64_t period) const { return period > 0 && progress_.step % period == 0; }

  // Call once per step: remembers the number of finished epochs.
  bool IsExportDue() {
    const auto epochs = static_cast<int64_t>(parts_.packer.epoch());
    const bool is_over = epochs > epochs_;
    epochs_ = epochs;
    return Due(spec_.checkpoint.export_every) || (spec_.checkpoint.export_epochs && is_over);
  }

  void Report(const char* kind, const std::string& message, double value = 0) {
    if (!context_.report || !is_first()) return;
    context_.report({kind, progress_.step, spec_.train.steps, value, message});
  }
  void Warn(const std::string& message) { Report("warning", message); }

  TrainOutcome Outcome() {
    outcome_.step = progress_.step;
    outcome_.best_eval_loss = progress_.best_eval_loss;
    outcome_.checkpoint = checkpoints_.newest();
    return outcome_;
  }

  void Begin() {
    const auto found = checkpoints_.Begin();
    const bool has_initial_weights =
        spec_.is_dpo() && spec_.dpo.loss.has_reference() && FindReference(found.has_value());
    if (spec_.is_distill()) AskTeacher(found.has_value());
    if (found) {
      progress_ = RestoreRun(parts_, *found, [this](const std::string& what) { Warn(what); });
      if (!progress_.losses.empty()) outcome_.loss = progress_.losses.back();
      Report("message", "resumed after step " + std::to_string(progress_.step));
    } else if (!has_initial_weights) {
      InitialWeights(parts_);
    }
    if (!found) parts_.trainer.parameters().ResetAverage();
    parts_.trainer.MastersChanged();
    epochs_ = static_cast<int64_t>(parts_.packer.epoch());
    if (!is_first()) return;
    metrics_.emplace(parts_, context_.dir, progress_.step);
    window_.Begin(spec_.profiler, progress_.step);
  }

  bool is_first() const { return parts_.is_first_rank(); }

  // Returns whether the parameters now hold the initial weights.
  bool FindReference(bool resumes) {
    return PrepareReference({.parts = parts_,
                             .validation = validation_ ? &*validation_ : nullptr,
                             .dir = context_.dir,
                             .cache_dir = context_.cache_dir,
                             .resumes = resumes,
                             .stop = context_.stop,
                             .report = [this](const std::string& what) { Report("message", what); },
                             .warn = [this](const std::string& what) { Warn(what); }});
  }

  void AskTeacher(bool resumes) {
    PrepareTeacher({.parts = parts_,
                    .validation = validation_ ? &*validation_ : nullptr,
                    .dir = context_.dir,
                    .resumes = resumes,
                    .stop = context_.stop,
                    .report = [this](const std::string& what) { Report("message", what); },
                    .warn = [this](const std::string& what) { Warn(what); }});
  }

  bool FillBatches(Trace* trace) {
    const TraceSpan span(trace, Trace::Lane::kData, "data");
    return NextBatches(parts_, batches_);
  }

  bool OneStep() {
    const auto start = std::chrono::steady_clock::now();
    Trace* const trace = window_.At(progress_.step);
    parts_.trainer.set_trace(trace);
    const TraceSpan whole(trace, Trace::Lane::kSteps, "step");
    if (!FillBatches(trace)) {
      Report("message", "all epochs are done");
      return false;
    }
    StepTimes times;
    times.data_seconds = Seconds(start);
    const StepResult step = parts_.trainer.Step(batches_);
    times.seconds = Seconds(start);
    if (!step.finite) {
      SkipStep(step, times);
      return true;
    }
    if (step.spike) Warn("spike: " + Shown(step) + ": the weights were not updated");

    outcome_.loss = step.loss;
    progress_.losses.push_back(step.loss);
    if (progress_.losses.size() > kLossTail) progress_.losses.pop_front();
    progress_.tokens_seen += step.total_weights;
    const int64_t number = progress_.step;
    if (!is_first()) {
      ++progress_.step;
      return true;
    }
    if (number % spec_.log_period == 0 || number + 1 == spec_.train.steps) {
      Report("step", metrics_->LogLine(number, step, times), step.loss);
    }
    metrics_->Step(number, step, times);
    ++progress_.step;
    return true;
  }

  std::string Shown(const StepResult& step) const {
    char text[160];
    std::snprintf(text, sizeof text, "loss %g with gradient norm %g at step %lld", step.loss,
                  step.raw_grad_norm, static_cast<long long>(progress_.step));
    return text;
  }

  // Handles a step whose loss or gradient is not finite. The weights are unchanged.
  void SkipStep(const StepResult& step, const StepTimes& times) {
    if (spec_.train.on_nan == OnNan::kRollback) return RollBack(step);
    if (spec_.train.on_nan == OnNan::kAbort) {
      throw Error(ErrorCode::kFailedPrecondition,
                  Shown(step) + ": the weights were not updated; lower the learning rate, check " +
                      "the data, or set train.on_nan");
    }
    Warn(Shown(step) + ": the step is skipped");
    if (metrics_) metrics_->LeftOut(progress_.step, step, times);
    ++progress_.step;
  }

  // Returns to the last checkpoint and writes it anew: a run killed now does not meet this data
  // again and keeps the count.
  void RollBack(const StepResult& step) {
    const auto found = checkpoints_.FindNewest();
    const int64_t rollbacks = progress_.rollbacks + 1;
    if (!found || rollbacks > spec_.train.max_rollbacks) {
      throw Error(ErrorCode::kFailedPrecondition,
                  Shown(step) + (found ? ", after " + std::to_string(rollbacks - 1) + " rollbacks"
                                       : ", and no checkpoint exists to roll back to"));
    }
    Warn(Shown(step) + ": rollback " + std::to_string(rollbacks) + " of at most " +
         std::to_string(spec_.train.max_rollbacks) + " to step " + std::to_string(found->step) +
         "; the data since then is skipped");
    progress_ = training::RollBack(parts_, *found, [this](const std::string& what) { Warn(what); });
    progress_.rollbacks = rollbacks;
    if (is_first()) metrics_.emplace(parts_, context_.dir, progress_.step);
    Save(Wait::kYes);
  }

  // Returns true when training should end.
  bool Evaluate() {
    if (!validation_) return false;
    const auto start = std::chrono::steady_clock::now();
    const EvaluationResult result = parts_.trainer.Evaluate(validation_->batches());
    outcome_.eval_loss = result.loss;
    evaluated_step_ = progress_.step;
    const double bits_per_byte =
        validation_->bytes() > 0 ? result.weighted_loss / std::log(2.0) / validation_->bytes() : 0;
    if (is_first()) {
      Report("eval", RunMetrics::EvalLine(progress_.step, result, bits_per_byte), result.loss);
      metrics_->Evaluation(progress_.step, result, bits_per_byte, Seconds(start));
      FlushMetrics();
    }

    const bool better = progress_.best_step < 0 || result.loss < progress_.best_eval_loss;
    if (better) {
      progress_.best_eval_loss = result.loss;
      progress_.best_step = progress_.step;
      progress_.evaluations_without_gain = 0;
      if (spec_.checkpoint.export_best &&
          Guarded([this](const std::string& what) { Warn(what); }, "exporting the best model",
                  [&] { ExportRun(parts_, context_.dir / "best"); })) {
        progress_.exported_best_step = progress_.best_step;
      }
    } else {
      ++progress_.evaluations_without_gain;
    }
    if (spec_.train.target_eval_loss > 0 && result.loss <= spec_.train.target_eval_loss) {
      Report("message", "stopping: the evaluation loss has reached train.target_eval_loss");
      return true;
    }
    const int64_t patience = spec_.train.early_stopping_patience;
    if (patience > 0 && progress_.evaluations_without_gain >= patience) {
      Report("message", "stopping: no better evaluation in the last " + std::to_string(patience));
      return true;
    }
    return false;
  }

  void Sample() {
    WriteSamples(parts_, context_.dir / "sample-model",
                 [this](const std::string& text) { Report("sample", text); });
  }

  void ExportStep() {
    const fs::path dir = context_.dir / "exports" / ("step-" + std::to_string(progress_.step));
    if (Guarded([this](const std::string& what) { Warn(what); }, "exporting " + dir.string(),
                [&] { ExportRun(parts_, dir); })) {
      Report("export", dir.string());
    }
  }

  enum class Place { kStorage, kLocal };

  void SaveTo(Place place, Wait wait) {
    place == Place::kLocal ? checkpoints_.SaveLocally(progress_)
                           : checkpoints_.Save(progress_, wait);
  }

  void Save(Wait wait, Place place = Place::kStorage) {
    if (!is_first()) return SaveTo(place, wait);
    const auto start = std::chrono::steady_clock::now();
    // A run resumed from this checkpoint will not write these rows again.
    Guarded([this](const std::string& what) { Warn(what); }, "syncing metrics",
            [this] { metrics_->Sync(); });
    {
      const TraceSpan span(window_.open(), Trace::Lane::kCheckpoint, "checkpoint");
      SaveTo(place, wait);
    }
    metrics_->Checkpoint(progress_.step, Seconds(start));
  }

  void FlushMetrics() {
    if (!is_first()) return;
    Guarded([this](const std::string& what) { Warn(what); }, "writing metrics",
            [this] {
              metrics_->Flush();
              window_.Write(context_.dir / "profile");
            });
  }

  TrainOutcome Stop() {
    Save(Wait::kYes);
    FlushMetrics();
    outcome_.status = TrainOutcome::Status::kStopped;
    return Outcome();
  }

  // hf/ or adapter/ holds the weights to serve: the best evaluated ones if there are any, else the
  // last.
  void Finish() {
    if (evaluated_step_ != progress_.step) Evaluate();
    Save(Wait::kYes);
    FlushMetrics();
    if (spec_.train.sample.every > 0) Sample();
    Report("message", MemoryLine(spec_));
    if (!spec_.checkpoint.export_model) return;
    const bool is_adapter = parts_.is_adapter();
    const fs::path dir = context_.dir / (is_adapter ? "adapter" : "hf");
    const fs::path best = context_.dir / "best";
    if (UsesBest(best)) {
      if (is_first()) ExportRun(parts_, best, dir);
      Report("message", "exported the weights of step " + std::to_string(progress_.best_step) +
                            ", which had the best evaluation");
    } else {
      ExportRun(parts_, dir);
    }
    (is_adapter ? outcome_.adapter_dir : outcome_.model_dir) = dir;
    Report("message",
           std::string(is_adapter ? "adapter" : "model") + " exported to " + dir.string());
    if (spec_.checkpoint.export_average) ExportAverage();
    if (spec_.lora.export_merged && is_adapter && is_first()) Merge(dir);
  }

  // Whether the last export takes the weights of the best evaluation. The first rank decides.
  bool UsesBest(const fs::path& best) const {
    // Ignores a best/ that another run or a failed export left behind.
    const bool uses = is_first() && validation_ && progress_.best_step != progress_.step &&
                      progress_.exported_best_step == progress_.best_step &&
                      HasWeights(parts_, best);
    return ranks_ == nullptr ? uses : ranks_->AnyRank(uses);
  }

  void ExportAverage() {
    const fs::path dir = context_.dir / "ema";
    ParameterStore& parameters = parts_.trainer.parameters();
    parameters.SwapAverage();
    ExportRun(parts_, dir);
    parameters.SwapAverage();
    Report("message", "moving average of the weights exported to " + dir.string());
  }

  void Merge(const fs::path& adapter) {
    const fs::path dir = context_.dir / "hf";
    outcome_.merged = ExportMerged(parts_, context_.cache_dir, adapter, dir);
    outcome_.model_dir = dir;
    char text[120];
    std::snprintf(text, sizeof text,
                  "; logits differ by %.2g from base plus adapter, at most %.2g is allowed",
                  outcome_.merged->max_abs_difference, outcome_.merged->bound);
    Report("message", "merged model exported to " + dir.string() + text);
  }

  const TrainSpec& spec_;
  const JobContext& context_;
  Collectives* const ranks_;
  RunParts parts_;
  RunSaver checkpoints_;
  std::optional<ValidationSet> validation_;
  std::vector<MicroBatch> batches_;
  std::optional<RunMetrics> metrics_;
  TraceWindow window_;

  RunProgress progress_;
  TrainOutcome outcome_;
  int64_t evaluated_step_ = -1;
  int64_t epochs_ = 0;  // finished after the last step
};

}  // namespace

TrainOutcome RunTraining(const TrainSpec& given, const JobContext& context, Collectives* ranks) {
  TrainSpec spec = given;
  const int64_t size = ranks == nullptr ? 1 : ranks->size();
  const Mesh mesh = ResolveMesh(spec.parallel.mesh, size);
  spec.step_shape = SplitStep(spec, mesh);
  RefuseWhatCannotFit(spec);
  if (ranks != nullptr) {
    CheckSameStart(*ranks, spec);
    ranks->Arrange(static_cast<int>(mesh.fsdp), static_cast<int>(mesh.tensor));
  }
  if (ranks == nullptr || ranks->is_first()) MakeDirectories(context.dir);
  const TrainOutcome outcome = Run(spec, context, ranks).Go();
  if (ranks != nullptr) ranks->Barrier();  // the first rank's files are complete
  return outcome;
}

}  // namespace tandem::training
