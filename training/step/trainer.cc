#include "training/step/trainer.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/base/progress.h"

namespace tandem::training {

engine::ModelConfig TrainedConfig(engine::ModelConfig config, const TrainerOptions& options) {
  if (options.model_dropout) config.dropout = config.embedding_dropout = *options.model_dropout;
  if (!options.dropout) config.dropout = config.embedding_dropout = 0;
  return config;
}

RecordOptions RecordingOf(const TrainerOptions& options, engine::DType dtype,
                          std::vector<LoraTarget> targets) {
  RecordOptions record;
  record.rows = options.rows_per_batch * options.row_length;
  record.row_length = options.row_length;
  record.max_segments = options.rows_per_batch * (options.max_segments + 1);  // + padding
  record.dtype = dtype;
  record.trained = options.trained;
  record.lora = std::move(targets);
  record.remat = options.remat;
  record.router_loss = options.router_loss;
  record.lora_dropout = options.dropout ? options.lora_dropout : 0;
  record.head_twice = options.dpo.has_value();
  return record;
}

Trainer::Trainer(const engine::FamilySpec& family, const engine::ModelConfig& config,
                 engine::DType dtype, const TrainerOptions& options, engine::OpsContext& ops)
    : family_(family),
      config_(TrainedConfig(config, options)),
      options_(options),
      ops_(ops),
      program_(Record(family, config_, RecordingOf(options, dtype, {}))),
      ropes_(engine::MakeRopeTables(family, config_, options.row_length)),
      parameters_(program_.weight_specs, dtype, options.trained, options.optimizer),
      weights_(parameters_.weights()),
      executor_(
          std::make_unique<Executor>(program_, ops, ropes_, weights_, parameters_.gradients())) {}

Trainer::Trainer(std::shared_ptr<const engine::Model> base, std::vector<LoraTarget> targets,
                 const TrainerOptions& options, engine::OpsContext& ops)
    : base_(std::move(base)),
      targets_(std::move(targets)),
      family_(base_->family()),
      config_(TrainedConfig(base_->config(), options)),
      options_(options),
      ops_(ops),
      program_(Record(family_, config_, RecordingOf(options, base_->dtype(), targets_))),
      ropes_(engine::MakeRopeTables(family_, config_, options.row_length)),
      parameters_(LoraSpecs(base_->weight_specs(), targets_), base_->dtype(), {},
                  options.optimizer),
      weights_(base_->weights()) {
  TANDEM_CHECK(!targets_.empty());
  weights_.insert(weights_.end(), parameters_.weights().begin(), parameters_.weights().end());
  std::vector<float*> gradients(base_->weights().size(), nullptr);
  gradients.insert(gradients.end(), parameters_.gradients().begin(), parameters_.gradients().end());
  executor_ = std::make_unique<Executor>(program_, ops, ropes_, weights_, gradients);
}

namespace {

void AddRouters(const std::optional<RouterFigures>& one, double share,
                std::optional<RouterFigures>* sum) {
  if (!one) return;
  if (!*sum) sum->emplace();
  (*sum)->balance += one->balance * share;
  (*sum)->z += one->z * share;
  (*sum)->most_loaded = std::max((*sum)->most_loaded, one->most_loaded);
}

}  // namespace

StepResult Trainer::Gradients(std::span<const MicroBatch> batches) {
  StepResult result;
  for (const MicroBatch& batch : batches) result.total_weights += batch.weight();
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "zero gradients");
    parameters_.ZeroGradients(ops_);
  }
  if (result.total_weights == 0) return result;

  // The mean loss divides by tokens, or by pairs.
  double terms = result.total_weights;
  if (options_.dpo) {
    terms = 0;
    for (const MicroBatch& batch : batches) terms += static_cast<double>(batch.pairs.size());
  }
  const auto scale = static_cast<float>(1 / terms);
  double loss = 0;
  PreferenceFigures figures;
  double correct = 0;
  double rows = 0;
  for (const MicroBatch& batch : batches) rows += static_cast<double>(batch.rows_of_samples());
  for (const MicroBatch& batch : batches) {
    const double share = rows > 0 ? static_cast<double>(batch.rows_of_samples()) / rows : 0;
    const CrossEntropyResult one = TrainOn(batch, scale, share, &figures);
    loss += one.weighted_loss;
    correct += one.correct_weight;
    AddRouters(executor_->router_figures(), share, &result.routers);
  }
  result.loss = loss / terms;
  if (options_.dpo) {
    result.preference = figures.Mean();
  } else {
    result.accuracy = correct / terms;
  }
  return result;
}

CrossEntropyResult Trainer::TrainOn(const MicroBatch& batch, float scale, double router_share,
                                    PreferenceFigures* figures) {
  const ProgramBatch view = batch.View(options_.dropout_seed);
  if (!options_.dpo) return executor_->Train(view, scale, {}, router_share);
  const double before = figures->loss;
  CrossEntropyResult result = executor_->Train(
      view, scale,
      [&](std::span<const float> token_logprobs, std::span<float> weights) {
        WeighPairs(*options_.dpo, batch.pairs, batch.targets, token_logprobs, weights, figures);
      },
      router_share);
  result.weighted_loss = figures->loss - before;
  return result;
}

StepResult Trainer::Step(std::span<const MicroBatch> batches) {
  StepResult result = Gradients(batches);
  result.learning_rate = LearningRate(options_.schedule, optimizer_steps_);
  if (result.total_weights == 0) return result;

  const double clip = options_.optimizer.clip_norm;
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "gradient norm");
    result.raw_grad_norm = GlobalNorm(ops_, parameters_.states());
  }
  result.finite = std::isfinite(result.loss) && std::isfinite(result.raw_grad_norm);
  if (!result.finite) return result;
  result.spike = spikes_.IsSpike(result.loss, result.raw_grad_norm);
  if (result.spike) return result;
  const bool clips = clip > 0 && result.raw_grad_norm >= clip;
  const double scale = clips ? clip / result.raw_grad_norm : 1;
  result.grad_norm = result.raw_grad_norm * scale;
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "optimizer");
    ApplyOptimizer(ops_, options_.optimizer, result.learning_rate, optimizer_steps_, scale,
                   parameters_.states());
  }
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "repack");
    parameters_.Repack(ops_);
  }
  ++optimizer_steps_;
  result.updated = true;
  return result;
}

EvaluationResult Trainer::Evaluate(std::span<const MicroBatch> batches) {
  if (!options_.dpo) return EvaluateBatches(*executor_, batches);
  EvaluationResult result;
  PreferenceFigures figures;
  ProgressTask task("evaluating", "batches", static_cast<int64_t>(batches.size()));
  for (const MicroBatch& batch : batches) {
    const std::vector<PairLogProbs> policy = LogProbsOfPairs(*executor_, batch);
    for (size_t i = 0; i < policy.size(); ++i) {
      figures.Add(*options_.dpo, policy[i], batch.pairs[i].reference);
    }
    result.total_weights += batch.weight();
    task.Add(1);
  }
  result.weighted_loss = figures.loss;
  result.preference = figures.Mean();
  result.loss = result.preference->loss;
  result.accuracy = result.preference->accuracy;
  return result;
}

std::vector<PairLogProbs> LogProbsOfPairs(Executor& executor, const MicroBatch& batch) {
  std::vector<float> token_logprobs(batch.tokens.size(), 0.0f);
  executor.Evaluate(batch.View(0), token_logprobs.data());
  std::vector<PairLogProbs> logprobs;
  for (const PairRows& pair : batch.pairs) {
    logprobs.push_back(LogProbsOf(pair, batch.targets, token_logprobs));
  }
  return logprobs;
}

EvaluationResult EvaluateBatches(Executor& executor, std::span<const MicroBatch> batches) {
  EvaluationResult result;
  ProgressTask task("evaluating", "batches", static_cast<int64_t>(batches.size()));
  for (const MicroBatch& batch : batches) {
    const CrossEntropyResult one = executor.Evaluate(batch.View(0), nullptr);
    result.weighted_loss += one.weighted_loss;
    result.total_weights += one.weight;
    result.accuracy += one.correct_weight;
    task.Add(1);
  }
  if (result.total_weights > 0) {
    result.loss = result.weighted_loss / result.total_weights;
    result.accuracy /= result.total_weights;
  }
  return result;
}

}  // namespace tandem::training
