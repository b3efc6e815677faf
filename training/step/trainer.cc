#include "training/step/trainer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/progress.h"
#include "engine/ops/dora.h"
#include "training/step/base_parts.h"
#include "training/step/library_loss.h"

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
constexpr size_t kPreferenceNumbers = 8;
constexpr size_t kDivergence = 3 + 4 + kPreferenceNumbers;  // the last result
constexpr size_t kBatchResults = kDivergence + 1;

std::array<double, kPreferenceNumbers> NumbersOf(const PreferenceFigures& f) {
  return {f.loss,   f.chosen_reward,  f.rejected_reward,  f.accuracy,
          f.margin, f.chosen_logprob, f.rejected_logprob, static_cast<double>(f.pairs)};
}

void AddNumbers(std::span<const double> numbers, PreferenceFigures* sum) {
  sum->loss += numbers[0];
  sum->chosen_reward += numbers[1];
  sum->rejected_reward += numbers[2];
  sum->accuracy += numbers[3];
  sum->margin += numbers[4];
  sum->chosen_logprob += numbers[5];
  sum->rejected_logprob += numbers[6];
  sum->pairs += static_cast<int64_t>(numbers[7]);
}

// Ranks with the same part of the matrices: each has rows of its own.
constexpr auto kRowRanks = Collectives::Group::kRows;

std::vector<double> FromAll(Collectives* ranks, std::vector<double> mine) {
  return ranks == nullptr ? mine : ranks->AllGather(mine, kRowRanks);
}

// Calls `compute` for batches 0 … n - 1, each on one rank. Returns `width` numbers per batch. With
// `together` all ranks call it equally often, for the last batch again where none is left.
template <class Compute>
std::vector<double> ShareBatches(Collectives* ranks, bool together, size_t n, size_t width,
                                 const Compute& compute) {
  const size_t size = ranks == nullptr ? 1 : static_cast<size_t>(ranks->size_of(kRowRanks));
  const size_t rank = ranks == nullptr ? 0 : static_cast<size_t>(ranks->rank_in(kRowRanks));
  const size_t each = (n + size - 1) / size;
  ProgressTask task("evaluating", "batches", static_cast<int64_t>(n));
  std::vector<double> mine(each * width, 0.0);
  for (size_t i = rank; i < n; i += size) {
    compute(i, std::span(mine).subspan(i / size * width, width));
    task.Reach(static_cast<int64_t>(std::min(n, i + size)));
  }
  if (together && n > 0 && rank + (each - 1) * size >= n) {
    std::vector<double> unused(width);
    compute(n - 1, std::span(unused));
  }
  const std::vector<double> all = FromAll(ranks, std::move(mine));
  std::vector<double> in_order(n * width);
  for (size_t i = 0; i < n; ++i) {
    const size_t from = (i % size * each + i / size) * width;
    std::copy_n(all.begin() + static_cast<int64_t>(from), width,
                in_order.begin() + static_cast<int64_t>(i * width));
  }
  return in_order;
}

// Of three numbers for each batch: its loss, weight, and weight of right tokens.
EvaluationResult MeanOf(const std::vector<double>& all) {
  EvaluationResult result;
  for (size_t i = 0; i < all.size(); i += 3) {
    result.weighted_loss += all[i];
    result.total_weights += all[i + 1];
    result.accuracy += all[i + 2];
  }
  if (result.total_weights > 0) {
    result.loss = result.weighted_loss / result.total_weights;
    result.accuracy /= result.total_weights;
  }
  return result;
}

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
    AddNumbers(std::span(all).subspan(i + 7, kPreferenceNumbers), &figures);
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

void Trainer::SumOverRanks(size_t n_batches) {
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  if (sharded_) {
    if (options_.tree_sums && n_batches > 1) sharded_->SumReplicas();
  } else if (overlaps(n_batches)) {
    options_.ranks->Wait();
  } else if (is_sharded()) {
    options_.ranks->ReduceScatter(parameters_.flat_gradient(), kRows);
  } else {
    options_.ranks->AllReduce(parameters_.flat_gradient(), kRows);
  }
}

void Trainer::SumOverTensor() {
  const TraceSpan span(trace_, Trace::Lane::kCompute, "sum over ranks");
  const TensorSplit& tensor = parameters_.tensor();
  // Calls work(gradient, elements) for this rank's part of each such weight.
  const auto each = [&](const auto& work) {
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (!tensor.weights[i].sums_gradient || !parameters_.trained()[i]) continue;
      const auto [begin, end] = parameters_.OwnRange(i, parameters_.shard().rank);
      work(parameters_.gradients()[i] + begin, static_cast<size_t>(end - begin));
    }
  };
  // Large gradients are added where they are, all others together.
  constexpr size_t kLarge = size_t{1} << 16;  // elements
  constexpr auto kGroup = Collectives::Group::kTensor;
  std::vector<float> sums;
  each([&](float* part, size_t n) {
    if (n >= kLarge) return options_.ranks->AllReduce({part, n}, kGroup);
    sums.insert(sums.end(), part, part + n);
  });
  if (sums.empty()) return;
  options_.ranks->AllReduce(sums, kGroup);
  size_t next = 0;
  each([&](float* part, size_t n) {
    if (n >= kLarge) return;
    std::copy_n(sums.begin() + static_cast<int64_t>(next), n, part);
    next += n;
  });
}

// Ranks that share parameters have neighbouring micro-batches (NextBatches of run_parts.h).
std::vector<double> Trainer::InRowOrder(std::vector<double> by_rank, size_t width) const {
  if (!sharded_) return by_rank;
  const auto fsdp = static_cast<size_t>(parameters_.shard().size);
  const auto ranks = static_cast<size_t>(options_.ranks->size_of(kRows));
  const size_t own = by_rank.size() / width / ranks;
  std::vector<double> in_order(by_rank.size());
  for (size_t rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < own; ++i) {
      const size_t to = (rank / fsdp * own + i) * fsdp + rank % fsdp;
      std::copy_n(by_rank.begin() + static_cast<int64_t>((rank * own + i) * width), width,
                  in_order.begin() + static_cast<int64_t>(to * width));
    }
  }
  return in_order;
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
    const auto numbers = NumbersOf(figures);
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

// Sums of squares: of the weights that all ranks of the tensor axis have, which count once, and of
// their parts of the others.
double Trainer::SplitGradientNorm() {
  std::array<double, 2> sums = {0, 0};
  const std::vector<double> blocks = SquaredBlocks(ops_, parameters_.states());
  size_t block = 0;
  for (size_t s = 0; s < parameters_.states().size(); ++s) {
    const WeightSplit& split = parameters_.tensor().weights[parameters_.weight_of_state(s)];
    const int64_t end = (parameters_.states()[s].elements + kNormBlock - 1) / kNormBlock;
    for (int64_t b = 0; b < end; ++b) {
      sums[split.axis == WeightSplit::Axis::kWhole ? 0 : 1] += blocks[block++];
    }
  }
  const auto add = [&](size_t first, Collectives::Group group) {
    const std::vector<double> all =
        options_.ranks->AllGather(std::span<const double>(sums).subspan(first), group);
    const size_t width = sums.size() - first;
    for (size_t i = first; i < sums.size(); ++i) {
      sums[i] = 0;
      for (size_t at = i - first; at < all.size(); at += width) sums[i] += all[at];
    }
  };
  if (is_sharded()) add(0, sharded_ ? Collectives::Group::kFsdp : kRows);
  add(1, Collectives::Group::kTensor);
  return std::sqrt(sums[0] + sums[1]);
}

double Trainer::GradientNorm() {
  if (is_split()) return SplitGradientNorm();
  if (!is_sharded()) return GlobalNorm(ops_, parameters_.states());
  // Every block lies in one part, so its sum has the bits of a run without shards.
  const std::vector<double> mine = parameters_.InUnits(SquaredBlocks(ops_, parameters_.states()));
  const auto group = sharded_ ? Collectives::Group::kFsdp : Collectives::Group::kAll;
  const std::vector<double> all = options_.ranks->AllGather(mine, group);
  double total = 0;
  size_t first = 0;  // block of the unit in every rank's part
  for (const ParameterStore::Unit& unit : parameters_.units()) {
    const auto blocks =
        static_cast<size_t>(unit.elements() / parameters_.shard().size / kNormBlock);
    for (size_t rank = 0; rank * mine.size() < all.size(); ++rank) {
      for (size_t b = 0; b < blocks; ++b) total += all[rank * mine.size() + first + b];
    }
    first += blocks;
  }
  return std::sqrt(total);
}

void Trainer::GatherMasters() {
  constexpr int64_t kAtOnce = int64_t{1} << 20;
  const TraceSpan span(trace_, Trace::Lane::kCompute, "gather masters");
  const int64_t part = parameters_.shard_elements();
  const auto& shard = parameters_.shard();
  std::vector<uint32_t> mine;
  std::vector<uint32_t> all;
  for (int64_t at = 0; at < part; at += kAtOnce) {
    const auto n = static_cast<size_t>(std::min(kAtOnce, part - at));
    mine.resize(n);
    all.resize(n * static_cast<size_t>(shard.size));
    parameters_.PackMasters(shard.rank * part + at, mine);
    options_.ranks->AllGather(std::as_bytes(std::span(mine)),
                              std::as_writable_bytes(std::span(all)), kRows);
    for (int rank = 0; rank < shard.size; ++rank) {
      if (rank == shard.rank) continue;
      parameters_.UnpackMasters(rank * part + at,
                                std::span(all).subspan(static_cast<size_t>(rank) * n, n));
    }
  }
}

EvaluationResult Trainer::EvaluateLoss(std::span<const MicroBatch> batches) {
  const std::vector<double> all =
      ShareBatches(options_.ranks, sharded_ != nullptr, batches.size(), 3,
                   [&](size_t b, std::span<double> numbers) {
                     std::vector<float> token_logprobs(batches[b].tokens.size(), 0.0f);
                     const CrossEntropyResult one =
                         executor_->Evaluate(batches[b].View(0), token_logprobs.data());
                     numbers[0] = ApplyLoss(*options_.loss, batches[b], token_logprobs, {});
                     numbers[1] = one.weight;
                     numbers[2] = one.correct_weight;
                   });
  EvaluationResult result = MeanOf(all);
  result.is_library_loss = true;
  return result;
}

EvaluationResult Trainer::EvaluateDistilled(std::span<const MicroBatch> batches) {
  constexpr size_t kWidth = 4;
  const std::vector<double> all =
      ShareBatches(options_.ranks, sharded_ != nullptr, batches.size(), kWidth,
                   [&](size_t b, std::span<double> numbers) {
                     const Distillation distillation = batches[b].ViewTeacher(*options_.distill);
                     ProgramBatch view = batches[b].View(0);
                     view.distillation = &distillation;
                     const CrossEntropyResult one = executor_->Evaluate(view, nullptr);
                     numbers[0] = one.weighted_loss;
                     numbers[1] = one.weight;
                     numbers[2] = one.correct_weight;
                     numbers[3] = one.weighted_divergence;
                   });
  std::vector<double> of_tokens;
  double divergence = 0;
  for (size_t i = 0; i < all.size(); i += kWidth) {
    of_tokens.insert(of_tokens.end(), all.begin() + static_cast<int64_t>(i),
                     all.begin() + static_cast<int64_t>(i + 3));
    divergence += all[i + 3];
  }
  EvaluationResult result = MeanOf(of_tokens);
  result.distill = DistillFigures{divergence / std::max(result.total_weights, 1.0), result.loss};
  result.loss = result.distill->Loss(*options_.distill);
  return result;
}

EvaluationResult Trainer::Evaluate(std::span<const MicroBatch> batches) {
  if (options_.loss) return EvaluateLoss(batches);
  if (options_.distill) return EvaluateDistilled(batches);
  if (!options_.dpo) return EvaluateBatches(*executor_, batches, options_.ranks);
  constexpr size_t kWidth = kPreferenceNumbers + 1;
  const std::vector<double> all = ShareBatches(
      options_.ranks, sharded_ != nullptr, batches.size(), kWidth,
      [&](size_t b, std::span<double> numbers) {
        const std::vector<PairLogProbs> policy = LogProbsOfPairs(*executor_, batches[b]);
        PreferenceFigures figures;
        for (size_t i = 0; i < policy.size(); ++i) {
          figures.Add(*options_.dpo, policy[i], batches[b].pairs[i].reference,
                      TokensOf(batches[b].pairs[i], batches[b].targets));
        }
        const auto of_pairs = NumbersOf(figures);
        std::copy(of_pairs.begin(), of_pairs.end(), numbers.begin());
        numbers[kPreferenceNumbers] = batches[b].weight();
      });
  EvaluationResult result;
  PreferenceFigures figures;
  for (size_t i = 0; i < all.size(); i += kWidth) {
    AddNumbers(std::span(all).subspan(i, kPreferenceNumbers), &figures);
    result.total_weights += all[i + kPreferenceNumbers];
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

EvaluationResult EvaluateBatches(Executor& executor, std::span<const MicroBatch> batches,
                                 Collectives* ranks) {
  const std::vector<double> all = ShareBatches(
      ranks, executor.is_observed(), batches.size(), 3, [&](size_t b, std::span<double> numbers) {
        const CrossEntropyResult one = executor.Evaluate(batches[b].View(0), nullptr);
        numbers[0] = one.weighted_loss;
        numbers[1] = one.weight;
        numbers[2] = one.correct_weight;
      });
  return MeanOf(all);
}

}  // namespace tandem::training
