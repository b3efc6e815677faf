#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "training/dist/collectives.h"
#include "training/loss/loss_library.h"
#include "training/optim/guards.h"
#include "training/program/executor.h"
#include "training/step/gradient_buckets.h"
#include "training/step/micro_batch.h"
#include "training/step/parameters.h"
#include "training/step/sharded_weights.h"

namespace tandem::training {

struct TrainerOptions {
  int64_t rows_per_batch = 1;  // packed rows in a micro-batch
  int64_t row_length = 0;
  int64_t max_segments = 1;  // per row, padding not counted
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  SpikeOptions spikes;
  uint64_t dropout_seed = 0;
  bool dropout = true;                 // false: ignores the dropout of the model's config and of
                                       // adapters
  std::optional<float> model_dropout;  // replaces the config's dropout, embeddings included
  float lora_dropout = 0;              // on the input of adapters
  std::vector<bool> trained;           // per weight; empty: all
  RematOptions remat;
  RouterLossOptions router_loss;  // models with experts only
  float neftune_alpha = 0;        // noise on embeddings (ops/neftune.h); 0: none
  float z_loss = 0;               // factor of the logits' squared log-sum-exp; 0: none
  std::optional<DpoOptions> dpo;  // set: batches hold pairs, and the loss is over pairs
  std::optional<DistillOptions>
      distill;  // set: batches hold a teacher's figures; not with the others
  std::shared_ptr<LossLibrary> loss = nullptr;  // replaces cross-entropy; not with dpo nor z_loss
  bool has_library_loss = false;  // `loss` is or will be set, which costs a second head
  // Ranks that share every step: each has the same number of its micro-batches, in rank order.
  // Null: this is the only one.
  Collectives* ranks = nullptr;
  // Begins to sum parts of the gradient over ranks while the backward pass of the last micro-batch
  // computes others. Changes no bit. Not with shard_moments, nor with several leaves of tree_sums.
  bool overlap = false;
  int64_t bucket_bytes = int64_t{32} << 20;  // least size of such a part
  // Each rank keeps and updates only its part of the moments. Changes no bit of the weights.
  bool shard_moments = false;
  // Ranks that share the parameters (FSDP): each keeps its part of masters, gradients, moments and
  // weights. They divide the number of ranks; `ranks` is arranged for them. 1: every rank has all.
  int64_t fsdp = 1;
  // Ranks that share each matrix and compute the same rows (training/program/tensor_split.h);
  // `ranks` is arranged for them. Without `ranks` the first of them is described.
  int tensor = 1;
  bool divide_rows = false;  // they divide the rows between these (sequence parallelism)
  // Adds the gradients of micro-batches in a binary tree instead of one after the other. With a
  // power of two of them, every number of ranks gives the same bits.
  bool tree_sums = false;
};

// Means over the trained tokens.
struct DistillFigures {
  double soft = 0;  // T^2 KL(teacher || model)
  double hard = 0;  // cross-entropy

  double Loss(const DistillOptions& options) const {
    return (1 - options.alpha) * hard + options.alpha * soft;
  }
};

struct StepResult {
  double loss = 0;           // mean over the trained tokens, or over pairs
  double total_weights = 0;  // number of trained tokens
  double z_loss = 0;         // mean of z_loss * log-sum-exp^2; not part of `loss`
  double accuracy = 0;       // share of these whose target is the model's likeliest token; 0 for
                             // pairs
  double raw_grad_norm = 0;  // before clipping
  double grad_norm = 0;      // after
  double learning_rate = 0;
  // False when nothing was trained or a guard skipped the update. The step counts, but weights and
  // optimiser count do not change.
  bool updated = false;
  bool finite = true;                           // loss and gradients
  bool spike = false;                           // see SpikeOptions
  std::optional<PreferenceFigures> preference;  // means over the pairs of a step
  std::optional<DistillFigures> distill;        // `loss` is their weighted sum
  bool is_library_loss = false;                 // `loss` is a library's, not cross-entropy
  // Models with experts: means over the step's tokens, before the coefficients; the largest load of
  // its micro-batches. `loss` does not contain them.
  std::optional<RouterFigures> routers;
};

struct EvaluationResult {
  double loss = 0;  // mean over tokens, or over pairs
  double weighted_loss = 0;
  double total_weights = 0;
  // Share of tokens whose target is the likeliest, or of pairs ranked as in the data.
  double accuracy = 0;
  std::optional<PreferenceFigures> preference;  // means
  std::optional<DistillFigures> distill;
  bool is_library_loss = false;
};

// The model's configuration with the dropout of the options.
engine::ModelConfig TrainedConfig(engine::ModelConfig config, const TrainerOptions& options);

// The arguments of Record for these options.
RecordOptions RecordingOf(const TrainerOptions& options, engine::DType dtype,
                          std::vector<LoraTarget> targets);

// With `ranks`, which all pass the same batches, each rank computes its share of them; the result
// has the same bits.
EvaluationResult EvaluateBatches(Executor& executor, std::span<const MicroBatch> batches,
                                 Collectives* ranks = nullptr);
// Log-probabilities of a batch's pairs, in order. Equal to serving's, bit for bit.
std::vector<PairLogProbs> LogProbsOfPairs(Executor& executor, const MicroBatch& batch);

// A model being trained: program, parameters and optimiser count. Knows neither files nor data
// sources. Single-threaded; borrows `ops`.
class Trainer {
 public:
  Trainer(const engine::FamilySpec& family, const engine::ModelConfig& config, engine::DType dtype,
          const TrainerOptions& options, engine::OpsContext& ops);

  // Trains adapters of these layers on a shared, unchanged base model. parameters() holds the
  // weights of LoraSpecs; all other weights are the base's. `options.trained` must be empty.
  Trainer(std::shared_ptr<const engine::Model> base, std::vector<LoraTarget> targets,
          const TrainerOptions& options, engine::OpsContext& ops);
  // The executor refers to members of this object.
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // One optimiser step over micro-batches, this rank's and those of all others: sums their
  // gradients and divides the loss by the tokens, or pairs, of all of them. A spike, or a loss or
  // gradient that is not finite, leaves the weights unchanged.
  StepResult Step(std::span<const MicroBatch> batches);
  // Forward and backward without the update. The gradients stay in parameters().gradients(); with
  // sharded moments only this rank's part is complete.
  StepResult Gradients(std::span<const MicroBatch> batches);
  EvaluationResult Evaluate(std::span<const MicroBatch> batches);

  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }
  // Call this after changing the masters from outside (loading, resuming).
  void MastersChanged();
  // The lengths of the rows of a base's weight: the first magnitudes of DoRA.
  std::vector<float> BaseRowNorms(int32_t weight);
  Executor& executor() { return *executor_; }
  // Records the time of later steps and evaluations in `trace`; null: stops recording.
  void set_trace(Trace* trace) {
    trace_ = trace;
    executor_->set_trace(trace);
    if (sharded_) sharded_->set_trace(trace);
  }
  const Program& program() const { return program_; }
  const engine::ModelConfig& config() const { return config_; }
  const engine::FamilySpec& family() const { return family_; }

  // The base of the adapters being trained; null when the weights themselves are trained.
  const std::shared_ptr<const engine::Model>& base() const { return base_; }
  const std::vector<LoraTarget>& lora_targets() const { return targets_; }

  int64_t optimizer_steps() const { return optimizer_steps_; }
  void set_optimizer_steps(int64_t steps) { optimizer_steps_ = steps; }
  SpikeGuard& spikes() { return spikes_; }
  const SpikeGuard& spikes() const { return spikes_; }

 private:
  EvaluationResult EvaluateLoss(std::span<const MicroBatch> batches);
  EvaluationResult EvaluateDistilled(std::span<const MicroBatch> batches);
  // Computes the factors of layers with DoRA whose A is one of the parameters [first, last), from
  // the present weights.
  void UpdateFactors(size_t first, size_t last);
  // Adds the gradients of all batches, times `scale`, and returns the figures of each.
  std::vector<double> TrainOnAll(std::span<const MicroBatch> batches, float scale, double rows);
  // Runs TrainOn for the rank's last micro-batch, and sums finished buckets meanwhile.
  CrossEntropyResult TrainOnLast(const MicroBatch& batch, float scale, double router_share,
                                 PreferenceFigures* figures);
  bool overlaps(size_t n_batches) const {
    return options_.ranks != nullptr && options_.overlap && !is_sharded() &&
           (!options_.tree_sums || n_batches == 1);
  }
  bool is_sharded() const { return parameters_.shard().size > 1; }
  // Adds this rank's gradients to those of the others.
  void SumOverRanks(size_t n_batches);
  // Adds the parts of gradients that the ranks of the tensor axis have of whole weights.
  void SumOverTensor();
  // Figures of all micro-batches of a step, `width` numbers each, in the order of their rows.
  std::vector<double> InRowOrder(std::vector<double> by_rank, size_t width) const;
  // The norm of the whole gradient.
  double GradientNorm();
  double SplitGradientNorm();  // with a tensor split
  bool is_split() const { return parameters_.tensor().is_split(); }
  // Ranks with the same part of the matrices.
  static constexpr auto kRows = Collectives::Group::kRows;
  // Gives all ranks the masters that each has updated.
  void GatherMasters();
  // Adds the gradient of local micro-batch i to the tree of `n`, which must be a power of two. With
  // shared weights only this rank's part.
  void AddToTree(int64_t i, int64_t n);
  // Adds a batch's gradients, times `scale`, and its pairs' figures. The returned loss is a sum
  // over tokens, or over pairs.
  CrossEntropyResult TrainOn(const MicroBatch& batch, float scale, double router_share,
                             PreferenceFigures* figures);

  const std::shared_ptr<const engine::Model> base_;  // of adapters; null: all weights are trained
  const std::vector<LoraTarget> targets_;
  const engine::FamilySpec& family_;
  const engine::ModelConfig config_;
  const TrainerOptions options_;
  engine::OpsContext& ops_;
  const Program program_;
  std::vector<engine::RopeTable> ropes_;
  ParameterStore parameters_;
  std::vector<AlignedBuffer> base_parts_;  // with a tensor split, of the base's matrices
  std::vector<AlignedBuffer> factors_;     // of targets with DoRA, [2 * outputs] each
  // The program's weights: the base's, then these factors, then the parameters.
  engine::Weights weights_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<ShardedWeights> sharded_;  // null: every rank has all weights
  Trace* trace_ = nullptr;
  std::vector<GradientBucket> buckets_;  // in the order of their sums; empty without ranks
  std::vector<AlignedBuffer> tree_;      // by level: the gradient of a complete subtree
  int64_t optimizer_steps_ = 0;
  SpikeGuard spikes_{options_.spikes};
};

}  // namespace tandem::training
