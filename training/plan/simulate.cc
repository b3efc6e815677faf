#include "training/plan/simulate.h"

#include <algorithm>
#include <cstdio>
#include <deque>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "training/setup/memory_needs.h"
#include "training/setup/model_files.h"
#include "training/step/gradient_buckets.h"
#include "training/step/unit_schedule.h"

namespace tandem::training {
namespace {

constexpr double kFloatBytes = sizeof(float);
constexpr int64_t kMostByDefault = 256;

// FLOPs of each position: the nodes, and then the backward steps.
std::vector<double> FlopsOf(const Program& program) {
  std::vector<double> flops;
  for (const Node& node : program.nodes) {
    double one = static_cast<double>(Describe(node.op).forward_flops(program, node));
    if (node.op == OpKind::kCrossEntropy) {
      one += static_cast<double>(Describe(node.op).backward_flops(program, node));
    }
    flops.push_back(one);
  }
  for (const BackwardStep& step : program.backward) {
    const Node& node = program.nodes[static_cast<size_t>(step.node)];
    const OpDescription& op = Describe(node.op);
    flops.push_back(static_cast<double>(step.remake ? op.forward_flops(program, node)
                                                    : op.backward_flops(program, node)));
  }
  return flops;
}

// The training thread and the communication thread of one rank.
class Timeline {
 public:
  Timeline(const Program& program, const LinkModel& link, double batch_s)
      : link_(link), flops_(FlopsOf(program)) {
    double all = 0;
    for (const double one : flops_) all += one;
    seconds_per_flop_ = all > 0 ? batch_s / all : 0;
  }

  void Compute(size_t position) { now_ += flops_[position] * seconds_per_flop_; }
  size_t positions() const { return flops_.size(); }
  // Each of n ranks gives its n - 1 parts of `bytes` away, or gets those of the others. Returns the
  // end; operations wait for those before them.
  double Exchange(double bytes, int64_t n, bool adds) {
    if (n == 1) return now_;
    const double moved = bytes * static_cast<double>(n - 1) / static_cast<double>(n);
    free_ = std::max(free_, now_) + static_cast<double>(n - 1) * link_.latency_us * 1e-6 +
            moved / (link_.gbit_per_s * 1e9 / 8) +
            (adds ? moved / (link_.add_gbyte_per_s * 1e9) : 0);
    sent_ += moved;
    return free_;
  }
  double AllReduce(double bytes, int64_t n) {
    Exchange(bytes, n, true);
    return Exchange(bytes, n, false);
  }
  void WaitUntil(double time) { now_ = std::max(now_, time); }
  void WaitForAll() { WaitUntil(free_); }
  double now() const { return now_; }
  double sent() const { return sent_; }

 private:
  const LinkModel link_;
  std::vector<double> flops_;
  double seconds_per_flop_ = 0;
  double now_ = 0;   // of the training thread
  double free_ = 0;  // when the communication thread has nothing left
  double sent_ = 0;
};

struct Model {
  Program program;
  std::vector<engine::WeightSpec> specs;  // of the parameters
  std::vector<bool> trained;
};

Model ModelOf(const TrainSpec& spec) {
  Model model;
  model.program = FindMemoryNeeds(spec, LoadModelFiles(spec)).program;
  const auto& specs = model.program.weight_specs;
  const auto& trained = model.program.trained;
  // Adapters follow the base's weights, which are frozen.
  size_t first = 0;
  while (spec.lora.enable && first < specs.size() && !trained[first]) ++first;
  model.specs.assign(specs.begin() + static_cast<int64_t>(first), specs.end());
  model.trained.assign(trained.begin() + static_cast<int64_t>(first), trained.end());
  return model;
}

double ElementsOf(const engine::WeightSpec& spec) {
  return static_cast<double>(spec.n) * static_cast<double>(spec.k);
}

double ElementsOf(const Model& model) {
  double elements = 0;
  for (size_t i = 0; i < model.specs.size(); ++i) {
    if (model.trained[i]) elements += ElementsOf(model.specs[i]);
  }
  return elements;
}

struct Bucket {
  double bytes = 0;
  size_t ready = 0;
};

// As MakeGradientBuckets.
std::vector<Bucket> BucketsOf(const Model& model, const TrainSpec& spec) {
  const std::vector<size_t> ready = FinalSteps(model.program, model.specs.size());
  std::vector<Bucket> buckets;
  Bucket open;
  for (size_t i = 0; i < model.specs.size(); ++i) {
    if (!model.trained[i]) continue;
    open.bytes += ElementsOf(model.specs[i]) * kFloatBytes;
    open.ready = std::max(open.ready, ready[i]);
    if (open.bytes < static_cast<double>(spec.parallel.bucket_bytes)) continue;
    buckets.push_back(open);
    open = {};
  }
  if (open.bytes > 0) buckets.push_back(open);
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Bucket& a, const Bucket& b) { return a.ready < b.ready; });
  return buckets;
}

// What a step's micro-batch does beside its computation.
struct Batch {
  bool overlaps = false;       // communication hides behind computation
  bool sums_replicas = false;  // the sum over replicas is part of it
};

// Every rank has all parameters: buckets are summed during the last backward pass.
void RunReplicas(const Model& model, const TrainSpec& spec, int64_t ranks, Batch batch,
                 Timeline* time) {
  std::vector<Bucket> buckets;
  if (batch.overlaps && batch.sums_replicas) buckets = BucketsOf(model, spec);
  const size_t n_nodes = model.program.nodes.size();
  size_t next = 0;
  for (size_t p = 0; p < time->positions(); ++p) {
    time->Compute(p);
    for (; p + 1 >= n_nodes && next < buckets.size() && buckets[next].ready <= p + 1 - n_nodes;
         ++next) {
      time->AllReduce(buckets[next].bytes, ranks);
    }
  }
  time->WaitForAll();
}

// As ShardedWeights.
void RunShared(const Model& model, int64_t ranks, int64_t fsdp, Batch batch, double width,
               Timeline* time) {
  const std::vector<size_t> unit_of = UnitsOf(model.specs);
  const UnitSchedule schedule = MakeUnitSchedule(model.program, unit_of, model.trained);
  std::vector<double> elements(unit_of.empty() ? 0 : unit_of.back() + 1, 0.0);
  for (size_t i = 0; i < unit_of.size(); ++i) {
    if (model.trained[i]) elements[unit_of[i]] += ElementsOf(model.specs[i]);
  }
  std::vector<double> there(elements.size(), -1);  // when the weights are whole; -1: dropped
  const auto gather = [&](size_t unit) {
    if (there[unit] < 0) there[unit] = time->Exchange(elements[unit] * width, fsdp, false);
  };
  std::deque<double> sums;
  size_t next_sum = 0;
  const size_t most_sums = batch.overlaps ? kMostSums : 0;
  const size_t n_nodes = model.program.nodes.size();
  for (size_t p = 0; p < time->positions(); ++p) {
    const std::vector<size_t>& next = schedule.next_training[p + 1];
    for (const size_t unit : schedule.uses[p]) gather(unit);
    if (batch.overlaps) {
      for (const size_t unit : next) gather(unit);
    }
    for (const size_t unit : schedule.uses[p]) time->WaitUntil(there[unit]);
    time->Compute(p);
    for (const size_t unit : schedule.uses[p]) {
      if (std::find(next.begin(), next.end(), unit) == next.end()) there[unit] = -1;
    }
    for (; p + 1 > n_nodes && next_sum < schedule.sums.size() &&
           schedule.sums[next_sum].ready <= p + 1 - n_nodes;
         ++next_sum) {
      const double bytes = elements[schedule.sums[next_sum].unit] * kFloatBytes;
      sums.push_back(time->Exchange(bytes, fsdp, true));
      if (batch.sums_replicas) time->AllReduce(bytes / static_cast<double>(fsdp), ranks / fsdp);
    }
    for (; sums.size() > most_sums; sums.pop_front()) time->WaitUntil(sums.front());
  }
  time->WaitForAll();
}

// Sums that follow the last micro-batch, and what the update gathers.
void EndStep(const Model& model, const TrainSpec& spec, int64_t ranks, int64_t fsdp, Batch last,
             double width, Timeline* time) {
  const double bytes = ElementsOf(model) * kFloatBytes;
  if (fsdp > 1) {
    if (!last.sums_replicas) {
      time->AllReduce(bytes / static_cast<double>(fsdp), ranks / fsdp);
      time->WaitForAll();
    }
    for (size_t i = 0; i < model.specs.size(); ++i) {  // the masters, to pack the weights
      if (!model.trained[i]) continue;
      time->WaitUntil(time->Exchange(ElementsOf(model.specs[i]) * width, fsdp, false));
    }
    return;
  }
  if (spec.parallel.shard_optimizer) {
    time->Exchange(bytes, ranks, true);
    time->WaitForAll();
    time->Exchange(bytes, ranks, false);  // the masters that each rank has updated
  } else if (!last.overlaps || !last.sums_replicas) {
    time->AllReduce(bytes, ranks);
  }
  time->WaitForAll();
}

// Whether the sums of the last micro-batch run beside it, as in Trainer and ShardedWeights.
Batch LastBatch(const TrainSpec& spec, int64_t fsdp) {
  // In a tree of several leaves replicas add their subtrees only.
  const bool has_subtree =
      spec.parallel.world_invariant > 0 && spec.train.gradient_accumulation_steps > 1;
  if (fsdp > 1) return {spec.parallel.overlap, !has_subtree};
  const bool overlaps = spec.parallel.overlap && !spec.parallel.shard_optimizer && !has_subtree;
  return {overlaps, overlaps};
}

std::vector<int64_t> RanksThatSuit(const MeshRequest& mesh) {
  std::vector<int64_t> ranks;
  for (int64_t n = 2; n <= kMostByDefault; n *= 2) {
    const auto error = ErrorOf({ErrorCode::kInvalidArgument}, [&] { ResolveMesh(mesh, n); });
    if (!error) ranks.push_back(n);
  }
  if (!ranks.empty()) return ranks;
  throw Error(ErrorCode::kInvalidArgument,
              "--simulate: no power of two from 2 to 256 ranks suits the mesh: set an axis to -1");
}

}  // namespace

SimulatedStep SimulateStep(const TrainSpec& spec, int64_t ranks, int64_t fsdp, double compute_s,
                           const LinkModel& link) {
  const Model model = ModelOf(spec);
  const int64_t batches = spec.train.gradient_accumulation_steps;
  Timeline time(model.program, link, compute_s / static_cast<double>(batches));
  const auto width = static_cast<double>(engine::DTypeBytes(spec.compute));
  const Batch last = LastBatch(spec, fsdp);
  for (int64_t b = 0; b < batches; ++b) {
    const Batch batch{last.overlaps, last.sums_replicas && b + 1 == batches};
    if (fsdp == 1) {
      RunReplicas(model, spec, ranks, batch, &time);
    } else {
      RunShared(model, ranks, fsdp, batch, width, &time);
    }
  }
  EndStep(model, spec, ranks, fsdp, last, width, &time);
  return {ranks, compute_s, time.now() - compute_s, time.sent()};
}

std::string DescribeSimulation(const TrainSpec& given, double compute_s, const LinkModel& link,
                               std::vector<int64_t> ranks) {
  if (compute_s <= 0 || link.gbit_per_s <= 0 || link.latency_us < 0 || link.add_gbyte_per_s <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "--simulate: the seconds of a step and the link's figures must be above 0");
  }
  TrainSpec spec = given;
  spec.step_shape.reset();
  if (ranks.empty()) ranks = RanksThatSuit(spec.parallel.mesh);
  char line[640];
  std::snprintf(
      line, sizeof line,
      "simulated: each rank computes %.3f s a step; a link of %g Gbit/s each way with %g us "
      "a message;\nsums at %g GB/s; links do not disturb each other, and all ranks are "
      "equally fast\n  ranks      mesh   exposed s    of step   GB sent\n",
      compute_s, link.gbit_per_s, link.latency_us, link.add_gbyte_per_s);
  std::string text = line;
  for (const int64_t n : ranks) {
    const Mesh mesh = ResolveMesh(spec.parallel.mesh, n);
    if (mesh.tensor > 1) {
      throw Error(ErrorCode::kUnsupported, "--simulate: it has no model of " +
                                               std::string(TensorKey(mesh.divides_rows)) +
                                               ": set it to 1, or use "
                                               "--sharding, which counts the bytes of all axes");
    }
    const SimulatedStep step = SimulateStep(spec, n, mesh.fsdp, compute_s, link);
    std::snprintf(line, sizeof line, "  %5lld  %4lldx%-4lld %10.3f  %8.1f %%  %8.3f\n",
                  static_cast<long long>(n), static_cast<long long>(mesh.data),
                  static_cast<long long>(mesh.fsdp), step.exposed_s, 100 * (1 - step.efficiency()),
                  step.sent_bytes / 1e9);
    text += line;
  }
  return text;
}

}  // namespace tandem::training
