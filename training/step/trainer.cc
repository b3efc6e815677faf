#include "training/step/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/ops/dora.h"
#include "training/step/base_parts.h"
#include "training/step/library_loss.h"
#include "training/step/row_ranks.h"

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
  record.neftune_alpha = options.neftune_alpha;
  record.z_loss = options.z_loss;
  record.lora_dropout = options.dropout ? options.lora_dropout : 0;
  record.head_twice = options.dpo.has_value() || options.has_library_loss;
  if (options.tensor > 1) {
    constexpr auto kGroup = Collectives::Group::kTensor;
    record.tensor = {options.ranks == nullptr ? 0 : options.ranks->rank_in(kGroup), options.tensor,
                     options.divide_rows};
  }
  return record;
}

namespace {

StateShard ShardOf(const TrainerOptions& options) {
  if (options.ranks == nullptr) return {};
  if (options.fsdp > 1) {
    TANDEM_CHECK(!options.shard_moments);
    constexpr auto kGroup = Collectives::Group::kFsdp;
    return {options.ranks->rank_in(kGroup), options.ranks->size_of(kGroup), true};
  }
  if (!options.shard_moments) return {};
  constexpr auto kGroup = Collectives::Group::kRows;
  return {options.ranks->rank_in(kGroup), options.ranks->size_of(kGroup)};
}

void ConnectTensorRanks(const TrainerOptions& options, Executor& executor) {
  if (options.tensor == 1) return;
  TANDEM_CHECK(options.ranks != nullptr);
  constexpr auto kGroup = Collectives::Group::kTensor;
  Collectives* const ranks = options.ranks;
  executor.set_exchange(
      {.sum = [ranks](std::span<float> values) { ranks->AllReduce(values, kGroup); },
       .sum_parts = [ranks](std::span<float> values) { ranks->ReduceScatter(values, kGroup); },
       .gather = [ranks](std::span<const std::byte> mine,
                         std::span<std::byte> all) { ranks->AllGather(mine, all, kGroup); }});
}

std::unique_ptr<ShardedWeights> ShardWeights(const TrainerOptions& options, const Program& program,
                                             ParameterStore& parameters, Executor& executor) {
  if (!parameters.shares_weights()) return nullptr;
  auto sharded =
      std::make_unique<ShardedWeights>(program, parameters, *options.ranks, options.overlap);
  executor.set_observer(sharded.get());
  return sharded;
}

}  // namespace

Trainer::Trainer(const engine::FamilySpec& family, const engine::ModelConfig& config,
                 engine::DType dtype, const TrainerOptions& options, engine::OpsContext& ops)
    : family_(family),
      config_(TrainedConfig(config, options)),
      options_(options),
      ops_(ops),
      program_(Record(family, config_, RecordingOf(options, dtype, {}))),
      ropes_(engine::MakeRopeTables(family, config_, options.row_length)),
      parameters_(program_.weight_specs, dtype, options.trained, options.optimizer,
                  ShardOf(options), program_.tensor),
      weights_(parameters_.weights()),
      executor_(
          std::make_unique<Executor>(program_, ops, ropes_, weights_, parameters_.gradients())),
      sharded_(ShardWeights(options_, program_, parameters_, *executor_)) {
  ConnectTensorRanks(options_, *executor_);
}

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
      parameters_(AdapterSpecs(program_, targets_), base_->dtype(), {}, options.optimizer,
                  ShardOf(options), program_.tensor.From(base_->weight_specs().size())),
      weights_(PartsOfBase(*base_, program_, ops, &base_parts_)) {
  TANDEM_CHECK(!targets_.empty());
  for (const LoraTarget& target : targets_) {
    if (target.form != LoraForm::kDora) continue;
    const int64_t n = base_->weight_specs()[static_cast<size_t>(target.weight)].n;
    factors_.emplace_back(static_cast<size_t>(2 * n) * sizeof(float));
    engine::Weight weight;
    weight.index = static_cast<int32_t>(weights_.size());
    weight.spec = &program_.weight_specs[weights_.size()];
    weight.vector = factors_.back().as<float>();
    weights_.push_back(weight);
  }
  std::vector<float*> gradients(weights_.size(), nullptr);
  weights_.insert(weights_.end(), parameters_.weights().begin(), parameters_.weights().end());
  gradients.insert(gradients.end(), parameters_.gradients().begin(), parameters_.gradients().end());
  executor_ = std::make_unique<Executor>(program_, ops, ropes_, weights_, gradients);
  sharded_ = ShardWeights(options_, program_, parameters_, *executor_);
  ConnectTensorRanks(options_, *executor_);
}

void Trainer::MastersChanged() {
  if (sharded_) {
    // The weights of a target are in one unit.
    return sharded_->Repack(
        ops_, [this](const ParameterStore::Unit& unit) { UpdateFactors(unit.first, unit.last); });
  }
  parameters_.Repack(ops_);
  UpdateFactors(0, parameters_.size());
}

void Trainer::UpdateFactors(size_t first, size_t last) {
  if (factors_.empty()) return;
  size_t next = 0;
  size_t parameter = 0;  // the target's A
  for (const LoraTarget& target : targets_) {
    const bool is_dora = target.form == LoraForm::kDora;
    if (is_dora && parameter >= first && parameter < last) {
      const engine::PanelMatrix& w = base_->weights()[static_cast<size_t>(target.weight)].panels;
      const engine::Weights& own = parameters_.weights();
      auto* factors = factors_[next].as<float>();
      DoraFactors(ops_, w,
                  {own[parameter].panels, own[parameter + 1].panels, target.scale, nullptr},
                  own[parameter + 2].vector, factors, factors + w.n);
    }
    next += is_dora ? 1 : 0;
    parameter += static_cast<size_t>(LoraSpecCount(target));
  }
}

std::vector<float> Trainer::BaseRowNorms(int32_t weight) {
  const engine::PanelMatrix& w = base_->weights()[static_cast<size_t>(weight)].panels;
  std::vector<float> norms(static_cast<size_t>(w.n));
  engine::RowNorms(ops_, w, nullptr, norms.data());
  return norms;
}

namespace {

// The figures of one micro-batch as numbers, to gather from ranks: counts before the pass, and
// results after it.
constexpr size_t kBatchCounts = 3;  // weight, rows of samples, pairs
constexpr size_t kDivergence = 3 + 4 + PreferenceFigures::kNumbers;  // the last result
constexpr size_t kBatchResults = kDivergence + 1;

}  // namespace

StepResult Trainer::Gradients(std::span<const MicroBatch> batches) {
  StepResult result;
  result.is_library_loss = options_.loss != nullptr;
  std::vector<double> mine;
  for (const MicroBatch& batch : batches) {
    mine.insert(mine.end(), {batch.weight(), static_cast<double>(batch.rows_of_samples()),
                             static_cast<double>(batch.pairs.size())});
  }
  const std::vector<double> counts = FromAll(options_.ranks, std::move(mine));
  double rows = 0;
  double pairs = 0;
  for (size_t i = 0; i < counts.size(); i += kBatchCounts) {
    result.total_weights += counts[i];
    rows += counts[i + 1];
    pairs += counts[i + 2];
  }
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "zero gradients");
    parameters_.ZeroGradients(ops_);
  }
  if (result.total_weights == 0) return result;

  // The mean loss divides by tokens, or by pairs, of all ranks: ranks may hold different numbers.
  const double terms = options_.dpo ? pairs : result.total_weights;
  const std::vector<double> mine_done = TrainOnAll(batches, static_cast<float>(1 / terms), rows);
  if (options_.ranks != nullptr) SumOverRanks(batches.size());
  if (is_split()) SumOverTensor();
  const std::vector<double> all = InRowOrder(FromAll(options_.ranks, mine_done), kBatchResults);
  double correct = 0;
  double divergence = 0;
  PreferenceFigures figures;
  for (size_t i = 0; i < all.size(); i += kBatchResults) {
    result.loss += all[i];
    divergence += all[i + kDivergence];
    correct += all[i + 1];
    result.z_loss += all[i + 2] / terms;
    figures.AddNumbers(std::span(all).subspan(i + 7, PreferenceFigures::kNumbers));
    if (all[i + 3] == 0) continue;  // no experts
    if (!result.routers) result.routers.emplace();
    result.routers->balance += all[i + 4];
    result.routers->z += all[i + 5];
    result.routers->most_loaded = std::max(result.routers->most_loaded, all[i + 6]);
  }
  result.loss /= terms;
  if (options_.distill) {
    result.distill = DistillFigures{divergence / terms, result.loss};
    result.loss = result.distill->Loss(*options_.distill);
  }
  if (options_.dpo) {
    result.preference = figures.Mean();
  } else {
    result.accuracy = correct / terms;
  }
  return result;
}

std::vector<double> Trainer::TrainOnAll(std::span<const MicroBatch> batches, float scale,
                                        double rows) {
  std::vector<double> results;
  for (size_t i = 0; i < batches.size(); ++i) {
    const double share = rows > 0 ? static_cast<double>(batches[i].rows_of_samples()) / rows : 0;
    PreferenceFigures figures;
    const bool is_last = i + 1 == batches.size();
    const bool sums = is_last && overlaps(batches.size());
    // In a tree of several leaves replicas add their subtrees only.
    if (sharded_) {
      sharded_->set_sums_replicas(is_last && (!options_.tree_sums || batches.size() == 1));
    }
    const CrossEntropyResult one = sums ? TrainOnLast(batches[i], scale, share, &figures)
                                        : TrainOn(batches[i], scale, share, &figures);
    const auto routers = executor_->router_figures();
    results.insert(results.end(), {one.weighted_loss, one.correct_weight, one.weighted_z_loss});
    results.push_back(routers ? 1 : 0);
    results.push_back(routers ? routers->balance * share : 0);
    results.push_back(routers ? routers->z * share : 0);
    results.push_back(routers ? routers->most_loaded : 0);
    const auto numbers = figures.Numbers();
    results.insert(results.end(), numbers.begin(), numbers.end());
    results.push_back(one.weighted_divergence);
    if (options_.tree_sums) {
      AddToTree(static_cast<int64_t>(i), static_cast<int64_t>(batches.size()));
    }
  }
  return results;
}

CrossEntropyResult Trainer::TrainOnLast(const MicroBatch& batch, float scale, double router_share,
                                        PreferenceFigures* figures) {
  if (buckets_.empty()) {
    buckets_ = MakeGradientBuckets(program_, parameters_,
                                   static_cast<int64_t>(parameters_.flat_gradient().size()),
                                   options_.bucket_bytes);
  }
  size_t next = 0;
  executor_->set_on_backward([&](size_t done) {
    for (; next < buckets_.size() && buckets_[next].ready <= done; ++next) {
      const GradientBucket& bucket = buckets_[next];
      options_.ranks->StartAllReduce(
          parameters_.flat_gradient().subspan(static_cast<size_t>(bucket.begin),
                                              static_cast<size_t>(bucket.end - bucket.begin)),
          kRows);
    }
  });
  const CrossEntropyResult result =
      UndoOnFailure([&] { return TrainOn(batch, scale, router_share, figures); },
                    [&] {
                      options_.ranks->Abandon();  // the sums use memory of this object
                      executor_->set_on_backward({});
                    });
  executor_->set_on_backward({});
  TANDEM_CHECK(next == buckets_.size());
  return result;
}

// A binary counter: the ones of `i` at its end are complete subtrees to the left of this leaf.
void Trainer::AddToTree(int64_t i, int64_t n) {
  // Calls work(gradient, place in the tree's buffers, elements) for all elements of this rank.
  const auto in_blocks = [&](const auto& work) {
    constexpr int64_t kBlock = 1 << 16;
    int64_t place = 0;
    for (const ParameterStore::Unit& unit : parameters_.units()) {
      const std::span<float> part =
          sharded_ ? parameters_.OwnGradient(unit) : parameters_.flat_gradient();
      const auto all = static_cast<int64_t>(part.size());
      ops_.pool().ParallelFor((all + kBlock - 1) / kBlock, [&](int64_t block, int) {
        const int64_t begin = block * kBlock;
        work(part.data() + begin, place + begin, std::min(kBlock, all - begin));
      });
      place += all;
    }
  };
  size_t level = 0;
  for (; (i >> level & 1) != 0; ++level) {
    const float* left = tree_[level].as<float>();
    in_blocks([&](float* gradient, int64_t place, int64_t count) {
      for (int64_t e = 0; e < count; ++e) gradient[e] += left[place + e];
    });
  }
  if (i + 1 == n) return;
  if (tree_.size() <= level) tree_.resize(level + 1);
  if (tree_[level].size() == 0) {
    const int64_t own = sharded_ ? parameters_.shard_elements()
                                 : static_cast<int64_t>(parameters_.flat_gradient().size());
    tree_[level] = AlignedBuffer(static_cast<size_t>(own) * sizeof(float));
  }
  in_blocks([&](float* gradient, int64_t place, int64_t count) {
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    std::memcpy(tree_[level].as<float>() + place, gradient, bytes);
    std::memset(gradient, 0, bytes);
  });
}

CrossEntropyResult Trainer::TrainOn(const MicroBatch& batch, float scale, double router_share,
                                    PreferenceFigures* figures) {
  ProgramBatch view = batch.View(options_.dropout_seed);
  std::optional<Distillation> distillation;
  if (options_.distill) {
    distillation = batch.ViewTeacher(*options_.distill);
    view.distillation = &*distillation;
  }
  const auto train = [&](const Reweigh& reweigh) {
    // Operations in flight use memory of this object.
    return UndoOnFailure([&] { return executor_->Train(view, scale, reweigh, router_share); },
                         [&] {
                           if (sharded_) options_.ranks->Abandon();
                         });
  };
  if (options_.loss) {
    double sum = 0;
    CrossEntropyResult result =
        train([&](std::span<const float> token_logprobs, std::span<float> weights) {
          sum = ApplyLoss(*options_.loss, batch, token_logprobs, weights);
        });
    result.weighted_loss = sum;
    return result;
  }
  if (!options_.dpo) return train({});
  CrossEntropyResult result =
      train([&](std::span<const float> token_logprobs, std::span<float> weights) {
        WeighPairs(*options_.dpo, batch.pairs, batch.targets, token_logprobs, weights, figures);
      });
  result.weighted_loss = figures->loss;
  return result;
}

StepResult Trainer::Step(std::span<const MicroBatch> batches) {
  StepResult result = Gradients(batches);
  result.learning_rate = LearningRate(options_.schedule, optimizer_steps_);
  if (result.total_weights == 0) return result;

  const double clip = options_.optimizer.clip_norm;
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "gradient norm");
    result.raw_grad_norm = GradientNorm();
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
  if (is_sharded() && !sharded_) GatherMasters();
  parameters_.UpdateAverage(ops_);
  {
    const TraceSpan span(trace_, Trace::Lane::kCompute, "repack");
    MastersChanged();
  }
  ++optimizer_steps_;
  result.updated = true;
  return result;
}

}  // namespace tandem::training
