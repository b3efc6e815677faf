#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/family.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "training/optim/guards.h"
#include "training/program/executor.h"
#include "training/step/micro_batch.h"
#include "training/step/parameters.h"

namespace tandem::training {

struct TrainerOptions {
  int64_t rows_per_batch = 1;  // packed rows in a micro-batch
  int64_t row_length = 0;
  int64_t max_segments = 1;  // of one row, padding not counted
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  SpikeOptions spikes;
  uint64_t dropout_seed = 0;
  bool dropout = true;                 // false: as if the model's config and the adapters had none
  std::optional<float> model_dropout;  // in place of the config's, embeddings included
  float lora_dropout = 0;              // on what adapters read
  std::vector<bool> trained;           // per weight; empty: all
  RematOptions remat;
  std::optional<DpoOptions> dpo;  // set: batches hold pairs, the loss is theirs
};

struct StepResult {
  double loss = 0;           // mean over the trained tokens, of pairs over pairs
  double total_weights = 0;  // number of trained tokens
  double accuracy = 0;       // share of them that the model held for the likeliest; not of pairs
  double raw_grad_norm = 0;  // before clipping
  double grad_norm = 0;      // after
  double learning_rate = 0;
  // False when nothing was trained, or the guards say no: the step counts, the weights stay, and
  // so does the optimiser's count.
  bool updated = false;
  bool finite = true;                           // loss and gradients
  bool spike = false;                           // see SpikeOptions
  std::optional<PreferenceFigures> preference;  // means over the pairs of a step
};

struct EvaluationResult {
  double loss = 0;  // mean over tokens, of pairs over pairs
  double weighted_loss = 0;
  double total_weights = 0;
  // Share of tokens that the model holds for the likeliest; of pairs that it sees as their data do.
  double accuracy = 0;
  std::optional<PreferenceFigures> preference;  // means
};

// The model's configuration as training uses it: with the dropout of the options.
engine::ModelConfig TrainedConfig(engine::ModelConfig config, const TrainerOptions& options);

// What Record is told for these options.
RecordOptions RecordingOf(const TrainerOptions& options, engine::DType dtype,
                          std::vector<LoraTarget> targets);

EvaluationResult EvaluateBatches(Executor& executor, std::span<const MicroBatch> batches);
// The log-probabilities of the pairs of a batch, in their order: serving's, bit for bit.
std::vector<PairLogProbs> LogProbsOfPairs(Executor& executor, const MicroBatch& batch);

// A model being trained: program, parameters and optimiser count. Knows no files and no data
// source; one thread. Borrows `ops`.
class Trainer {
 public:
  Trainer(const engine::FamilySpec& family, const engine::ModelConfig& config, engine::DType dtype,
          const TrainerOptions& options, engine::OpsContext& ops);

  // Trains adapters of these layers on a base model that stays as it is, and is shared with whoever
  // else uses it: parameters() are A and B of each target in order, all other weights are the
  // base's own. `options.trained` must be empty.
  Trainer(std::shared_ptr<const engine::Model> base, std::vector<LoraTarget> targets,
          const TrainerOptions& options, engine::OpsContext& ops);
  // The executor refers to what stands beside it.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // One optimiser step over micro-batches whose gradients are summed; the loss is divided by the
  // weight of them all. A loss or gradient that is not finite, and a spike, leave the weights
  // alone.
  StepResult Step(std::span<const MicroBatch> batches);
  // Forward and backward without the update: the gradients stay in parameters().gradients().
  StepResult Gradients(std::span<const MicroBatch> batches);
  EvaluationResult Evaluate(std::span<const MicroBatch> batches);

  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }
  // After the masters were changed from outside (loading, resuming).
  void MastersChanged() { parameters_.Repack(ops_); }
  Executor& executor() { return *executor_; }
  // Where the time of steps and evaluations is recorded from now on; null: nowhere.
  void set_trace(Trace* trace) {
    trace_ = trace;
    executor_->set_trace(trace);
  }
  const Program& program() const { return program_; }
  const engine::ModelConfig& config() const { return config_; }
  const engine::FamilySpec& family() const { return family_; }

  // What the adapters being trained belong to; null when the weights themselves are trained.
  const std::shared_ptr<const engine::Model>& base() const { return base_; }
  const std::vector<LoraTarget>& lora_targets() const { return targets_; }

  int64_t optimizer_steps() const { return optimizer_steps_; }
  void set_optimizer_steps(int64_t steps) { optimizer_steps_ = steps; }
  SpikeGuard& spikes() { return spikes_; }
  const SpikeGuard& spikes() const { return spikes_; }

 private:
  // Adds a batch's gradients, times `scale`, and figures of pairs. The loss is the sum over tokens,
  // or over pairs.
  CrossEntropyResult TrainOn(const MicroBatch& batch, float scale, PreferenceFigures* figures);

  const std::shared_ptr<const engine::Model> base_;  // of adapters; null: all weights are trained
  const std::vector<LoraTarget> targets_;
  const engine::FamilySpec& family_;
  const engine::ModelConfig config_;
  const TrainerOptions options_;
  engine::OpsContext& ops_;
  const Program program_;
  std::vector<engine::RopeTable> ropes_;
  ParameterStore parameters_;
  engine::Weights weights_;  // what the program computes with: the base's, then the parameters
  std::unique_ptr<Executor> executor_;
  Trace* trace_ = nullptr;
  int64_t optimizer_steps_ = 0;
  SpikeGuard spikes_{options_.spikes};
};

}  // namespace tandem::training
