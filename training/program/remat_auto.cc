#include <algorithm>
#include <limits>

#include "engine/base/error.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

// Longer groups hold more recomputed values than they save in layer inputs.
constexpr int64_t kLongestGroup = 16;

// The order in which to drop kept values: next is always the one with the lowest recomputation cost
// per freed byte, given the earlier ones. Ties go to the lowest layer, whose recomputation runs
// when most of the arena is free again.
class DropOrder {
 public:
  // `dropped` values are never kept.
  DropOrder(const Program& program, const std::vector<bool>& dropped)
      : p_(program), dropped_(dropped), made_(program.nodes.size(), false) {
    const std::vector<bool> inside = ChooseDropped(program, {.policy = RematPolicy::kFull});
    const std::vector<bool> read = ReadBackward();
    for (size_t v = 0; v < inside.size(); ++v) {
      if (!inside[v] || dropped[v]) continue;
      if (read[v]) candidates_.push_back(static_cast<int32_t>(v));
      // The backward pass does not read it, so it is never kept; a recomputation that needs it
      // recomputes it.
      dropped_[v] = !read[v];
    }
  }

  const std::vector<bool>& never_kept() const { return dropped_; }

  std::vector<int32_t> Find() {
    std::vector<int32_t> order;
    while (!candidates_.empty()) {
      size_t best = 0;
      double best_price = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < candidates_.size(); ++i) {
        const Value& value = p_.values[candidates_[i]];
        std::vector<int32_t> chain;
        const double price =
            Cost(value.producer, &chain) / static_cast<double>(p_.buffers[value.buffer].bytes);
        for (const int32_t node : chain) made_[node] = false;
        if (price < best_price) {
          best_price = price;
          best = i;
        }
      }
      const int32_t v = candidates_[best];
      std::vector<int32_t> chain;
      Cost(p_.values[v].producer, &chain);
      dropped_[v] = true;
      order.push_back(v);
      candidates_.erase(candidates_.begin() + static_cast<long>(best));
    }
    return order;
  }

 private:
  std::vector<bool> ReadBackward() const {
    std::vector<bool> read(p_.values.size(), false);
    for (const BackwardStep& step : p_.backward) {
      const Node& node = p_.nodes[step.node];
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (ReadsInputBackward(p_, node, i)) read[node.inputs[i]] = true;
      }
      if (Describe(node.op).reads_outputs_backward) {
        for (const int32_t v : node.outputs) read[v] = true;
      }
    }
    return read;
  }

  // Cost of running a node again with all its dropped inputs; an element-wise op counts one FLOP
  // per element. Marks the nodes as made and lists them.
  double Cost(int32_t index, std::vector<int32_t>* chain) {
    if (made_[index]) return 0;
    made_[index] = true;
    chain->push_back(index);
    const Node& node = p_.nodes[index];
    const int64_t elements = RowsOf(p_, node) * p_.values[node.outputs[0]].cols;
    auto cost = static_cast<double>(Describe(node.op).forward_flops(p_, node) + elements);
    if (node.save == ActivationSave::kReluSparse) return cost;  // only unpacked
    for (const int32_t v : node.inputs) {
      if (dropped_[v]) cost += Cost(p_.values[v].producer, chain);
    }
    return cost;
  }

  const Program& p_;
  std::vector<bool> dropped_;
  std::vector<bool> made_;  // per node
  std::vector<int32_t> candidates_;
};

std::vector<bool> Either(std::vector<bool> a, const std::vector<bool>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] = a[i] || b[i];
  return a;
}

int64_t ArenaWithout(const Program& program, const std::vector<bool>& dropped) {
  Program trial = program;
  RemakeDropped(&trial, dropped);
  AssignArena(&trial);
  return trial.arena_bytes;
}

class Fitter {
 public:
  Fitter(const Program& program, int64_t max_bytes, const std::vector<bool>& dropped)
      : p_(program), max_bytes_(max_bytes), dropped_(dropped) {}

  std::vector<bool> Find() {
    DropOrder finder(p_, dropped_);
    base_ = finder.never_kept();
    order_ = finder.Find();

    // Dropping more needs less memory, up to a few bytes. Finds the shortest prefix of the order
    // that fits by bisection.
    size_t too_few = 0;
    size_t enough = order_.size();
    if (Fits(Prefix(0), "none")) return Prefix(0);
    if (!Fits(Prefix(enough), "full")) return FindGroups();
    while (enough - too_few > 1) {
      const size_t middle = too_few + (enough - too_few) / 2;
      (Fits(Prefix(middle), "auto") ? enough : too_few) = middle;
    }
    return Prefix(enough);
  }

 private:
  std::vector<bool> Prefix(size_t n) const {
    std::vector<bool> dropped = base_;
    for (size_t i = 0; i < n; ++i) dropped[order_[i]] = true;
    return dropped;
  }

  bool Fits(const std::vector<bool>& dropped, const std::string& name) {
    const int64_t bytes = ArenaWithout(p_, dropped) + p_.packed_bytes;
    if (name == "none") none_ = bytes;
    if (bytes < smallest_) {
      smallest_ = bytes;
      smallest_name_ = name;
    }
    return bytes <= max_bytes_;
  }

  std::vector<bool> FindGroups() {
    const auto n = static_cast<int64_t>(FindBlocks(p_).size());
    for (int64_t every = 2; every <= std::min(n, kLongestGroup); ++every) {
      const std::vector<bool> dropped =
          Either(ChooseDropped(p_, {.policy = RematPolicy::kEveryK, .every = every}), dropped_);
      if (Fits(dropped, "every_k with train.remat_every=" + std::to_string(every))) return dropped;
    }
    throw Error(ErrorCode::kResourceExhausted,
                "train.remat=auto: the limit for activations is " + std::to_string(max_bytes_) +
                    " bytes; they need " + std::to_string(none_) +
                    " without recomputation and at least " + std::to_string(smallest_) + " (" +
                    smallest_name_ +
                    "). Lower train.per_device_batch_size or data.max_target_length, or raise the "
                    "limit (train.remat_max_bytes, resources.memory_max_bytes)");
  }

  const Program& p_;
  int64_t max_bytes_;
  const std::vector<bool>& dropped_;  // in any case
  std::vector<bool> base_;
  std::vector<int32_t> order_;
  int64_t none_ = 0;
  int64_t smallest_ = std::numeric_limits<int64_t>::max();
  std::string smallest_name_;
};

}  // namespace

void Rematerialize(Program* program, const RematOptions& options,
                   const std::vector<bool>& dropped) {
  program->remat = options.policy;
  switch (options.policy) {
    case RematPolicy::kNone:
      RemakeDropped(program, dropped);
      return;
    case RematPolicy::kAuto:
      RemakeDropped(program, Fitter(*program, options.max_bytes, dropped).Find());
      return;
    default:
      RemakeDropped(program, Either(ChooseDropped(*program, options), dropped));
  }
}

}  // namespace tandem::training
