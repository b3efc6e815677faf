// Keys of checkpoints, the machine, logs and metrics.

#include "training/spec/spec_sections.h"

namespace tandem::training {

// clang-format off
namespace {

SpecValue Compute() {
  using engine::DType;
  SpecValue value = Choice<DType>(FIELD(compute), {{"bf16", DType::kBF16},
                                                   {"bfloat16", DType::kBF16},
                                                   {"f32", DType::kF32},
                                                   {"float32", DType::kF32}});
  value.set = [choose = value.set](TrainSpec& spec, const GivenValue& given) {
    const std::string& word = ScalarText(given);
    if (word == "int8" || word == "int4") {
      throw BadValue(word + " weights can be served but not trained: train in bf16 and serve the " +
                     "result with --dtype " + word +
                     ", or train an adapter on them with lora.base_dtype: " + word);
    }
    choose(spec, given);
  };
  return value;
}

}  // namespace

std::vector<SpecKey> CheckpointKeys() {
  return {
    {{"checkpoint.period", "checkpoint_period"}, Integer(FIELD(checkpoint.period), 0, kBig),
     "steps between checkpoints; 0: only at the end and when stopped"},
    {{"checkpoint.keep", "max_num_checkpoints_to_keep"},
     Integer(FIELD(checkpoint.keep), 1, 1 << 20), "number of newest checkpoints to keep"},
    {{"checkpoint.keep_parameters"}, Bool(FIELD(checkpoint.keep_parameters)),
     "an old checkpoint that is deleted leaves its weights in parameters/step-N, a model or adapter "
     "to serve"},
    {{"checkpoint.resume"}, Bool(FIELD(checkpoint.resume)),
     "resume from the newest valid checkpoint in the run's directory; false: move existing "
     "checkpoints aside"},
    {{"checkpoint.resume_on_changed_data", "resume_on_changed_data"},
     Choice<OnChangedData>(FIELD(checkpoint.on_changed_data),
                           {{"error", OnChangedData::kError},
                            {"continue", OnChangedData::kContinue}}),
     "reaction to training data that has changed since the checkpoint: end the run before its "
     "first step, or warn"},
    {{"checkpoint.on_unreadable"},
     Choice<OnUnreadable>(FIELD(checkpoint.on_unreadable), {{"error", OnUnreadable::kError},
                                                            {"restart", OnUnreadable::kRestart}}),
     "reaction if no checkpoint is readable: end with an error that names them, or move them "
     "aside and restart at step 0"},
    {{"checkpoint.async", "async_checkpointing"}, Bool(FIELD(checkpoint.async)),
     "write checkpoints during training, from a copy of weights and moments"},
    {{"checkpoint.local_directory", "local_checkpoint_directory"},
     Path(FIELD(checkpoint.local_dir)),
     "second place of checkpoints, such as a RAM disk: the newest of both places is restored. "
     "Storage gets those of `checkpoint.period` and the last one"},
    {{"checkpoint.local_period", "local_checkpoint_period"},
     Integer(FIELD(checkpoint.local_period), 0, kBig),
     "steps between checkpoints in `checkpoint.local_directory`"},
    {{"checkpoint.sharded"}, Bool(FIELD(checkpoint.sharded)),
     "every rank writes a part of each checkpoint, to a directory that all hosts share; always so "
     "with `parallel.fsdp` and `parallel.tensor`. Training waits for such checkpoints"},
    {{"checkpoint.shard_bytes"}, Integer(FIELD(checkpoint.shard_bytes), 1, 0x1p50),
     "most bytes of tensors in one file of a checkpoint that ranks write together"},
    {{"checkpoint.export"}, Bool(FIELD(checkpoint.export_model)),
     "write hf/ or adapter/ at the end"},
    {{"checkpoint.export_ema"}, Bool(FIELD(checkpoint.export_average)),
     "write ema/ at the end: the moving average of `train.optimizer.ema_decay`"},
    {{"checkpoint.export_best"}, Bool(FIELD(checkpoint.export_best)),
     "write best/ after each evaluation that is the best so far"},
    {{"checkpoint.export_every"}, Integer(FIELD(checkpoint.export_every), 0, kBig),
     "steps between permanent exports to exports/step-N, each with an evaluation; 0: none"},
    {{"checkpoint.export_epochs"}, Bool(FIELD(checkpoint.export_epochs)),
     "export to exports/step-N after each epoch"},
  };
}

std::vector<SpecKey> MachineKeys() {
  return {
    {{"precision.compute", "dtype"}, Compute(), "type of computation and of the export"},
    {{"resources.threads"}, Integer(FIELD(resources.threads), 0, 1024), "compute threads",
     "physical cores"},
    {{"resources.lower_priority"}, Bool(FIELD(resources.lower_priority)),
     "run at the lowest priority on the machine"},
    {{"resources.memory_max_bytes"}, Integer(FIELD(resources.memory_max_bytes), 0, 0x1p52),
     "memory limit; a run that needs more is refused; with lower_priority also the limit of the "
     "process's data",
     "the machine's available memory at the start of the run"},
    {{"observe.log_period", "log_period"}, Integer(FIELD(log_period), 1, kBig),
     "steps between log lines"},
    {{"observe.profiler", "profiler"},
     Choice<bool>(FIELD(profiler.enabled),
                  {{"none", false}, {"", false}, {"trace", true}, {"xplane", true}}),
     "`trace`: write profile/trace.json (for ui.perfetto.dev) and profile/summary.txt for some "
     "steps"},
    {{"observe.skip_first_n_steps", "skip_first_n_steps_for_profiler"},
     Integer(FIELD(profiler.skip_first_n_steps), 0, kBig), "steps of the process before the trace"},
    {{"observe.profiler_steps", "profiler_steps"}, Integer(FIELD(profiler.steps), 1, 10000),
     "number of traced steps"},
    {{"metrics.csv"}, Bool(FIELD(metrics.csv)),
     "write metrics.csv: one row per step and evaluation"},
    {{"metrics.tensorboard", "enable_tensorboard"}, Bool(FIELD(metrics.tensorboard)),
     "write tensorboard/: event files with the same scalars"},
    {{"metrics.wandb", "enable_wandb"}, Bool(FIELD(metrics.wandb)),
     "write wandb/: an offline run of W&B, for `wandb sync`"},
    {{"metrics.wandb_project", "wandb_project_name"}, Text(FIELD(metrics.wandb_project)),
     "W&B's project of the run"},
    {{"metrics.wandb_name", "wandb_run_name"}, Text(FIELD(metrics.wandb_name)),
     "W&B's name of the run", "`run_name`"},
    {{"report_to"},
     {[](TrainSpec& spec, const GivenValue& given) {
        for (const std::string& word : given.words) {
          if (word == "wandb") {
            spec.metrics.wandb = true;
          } else if (word == "tensorboard") {
            spec.metrics.tensorboard = true;
          } else if (!word.empty() && word != "none") {
            throw BadValue("must be none, tensorboard, wandb, or a list of them, got \"" + word +
                           "\"");
          }
        }
      }, nullptr, "none, tensorboard, wandb, or a list of them"},
     "trl's switch: sets `metrics.tensorboard` and `metrics.wandb`", "none"},
    {{"metrics.plot"}, Bool(FIELD(metrics.plot)),
     "write loss.svg: training and validation loss, redrawn at evaluations and at the end"},
  };
}
// clang-format on

}  // namespace tandem::training
