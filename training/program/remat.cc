#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

// Tensors that policies name, like MaxText's checkpoint names. Queries, keys and values are
// attention's inputs: after RoPE, in the compute dtype.
enum Part : unsigned {
  kQkv = 1,
  kContext = 2,
  kOut = 4,
  kMlpWi = 8,
  kMlpWo = 16,
};

struct PolicyDescription {
  std::string_view name;
  unsigned kept;
};

// In the order of RematPolicy. kNone and kAuto ignore the last column.
constexpr std::array<PolicyDescription, 11> kPolicies = {{
    {"none", 0},
    {"minimal_with_context", kQkv | kContext | kOut | kMlpWi | kMlpWo},
    {"minimal", kQkv | kOut | kMlpWi | kMlpWo},
    {"save_dot_except_mlpwi", kQkv | kOut | kMlpWo},
    {"save_dot_except_mlp", kQkv | kOut},
    {"save_dot_with_context_except_mlp", kQkv | kContext | kOut},
    {"save_qkv_proj", kQkv},
    {"save_out_proj", kOut},
    {"full", 0},
    {"every_k", 0},
    {"auto", 0},
}};

// The Part of each value, from the graph alone; 0: no part.
std::vector<unsigned> NameParts(const Program& program) {
  std::vector<unsigned> parts(program.values.size(), 0);
  std::vector<bool> is_activation(program.values.size(), false);
  for (const Node& node : program.nodes) {
    switch (node.op) {
      case OpKind::kAttention:
        for (const int32_t v : node.inputs) parts[v] = kQkv;
        parts[node.outputs[0]] = kContext;
        break;
      case OpKind::kGatedActivation:
      case OpKind::kActivate:
        for (const int32_t v : node.inputs) parts[v] = kMlpWi;
        is_activation[node.outputs[0]] = true;
        break;
      case OpKind::kExpertLinear:
        if (is_activation[node.inputs[0]]) parts[node.outputs[0]] = kMlpWo;
        break;
      case OpKind::kLinear:
        if (parts[node.inputs[0]] == kContext) parts[node.outputs[0]] = kOut;
        if (is_activation[node.inputs[0]]) parts[node.outputs[0]] = kMlpWo;
        break;
      case OpKind::kSumRanks:  // the backward pass does not read a rank's part
        parts[node.outputs[0]] = std::exchange(parts[node.inputs[0]], 0u);
        break;
      default:
        break;
    }
  }
  return parts;
}

class Remaker {
 public:
  Remaker(Program* program, const std::vector<bool>& dropped)
      : p_(program), dropped_(dropped), made_(program->nodes.size(), false) {}

  void Run() {
    for (size_t i = 0; i < p_->backward.size();) {
      const size_t end = ChunkRunEnd(*p_, i);
      for (size_t s = i; s < end; ++s) {
        for (const int32_t v : ReadBy(p_->backward[s])) Prepare(v, NodeOf(p_->backward[s]).chunk);
      }
      for (; i < end; ++i) {
        WantAll(ReadBy(p_->backward[i]));
        Push(p_->backward[i]);
      }
    }
    p_->backward = std::move(steps_);
  }

 private:
  const Node& NodeOf(const BackwardStep& step) const { return p_->nodes[step.node]; }

  std::vector<int32_t> ReadBy(const BackwardStep& step) const {
    const Node& node = NodeOf(step);
    std::vector<int32_t> values;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (ReadsInputBackward(*p_, node, i)) values.push_back(node.inputs[i]);
    }
    if (Describe(node.op).reads_outputs_backward) {
      values.insert(values.end(), node.outputs.begin(), node.outputs.end());
    }
    return values;
  }

  // Chunked steps must stay together. Recomputes everything they need from outside before the first
  // of them.
  void Prepare(int32_t value, int32_t chunk) {
    if (chunk < 0 || !dropped_[value]) return;
    const Node& node = p_->nodes[p_->values[value].producer];
    if (node.chunk != chunk) return Make(p_->values[value].producer);
    if (node.save == ActivationSave::kReluSparse) return;
    for (const int32_t v : node.inputs) Prepare(v, chunk);
  }

  void WantAll(const std::vector<int32_t>& values) {
    for (const int32_t v : values) {
      if (dropped_[v]) Make(p_->values[v].producer);
    }
  }

  void Make(int32_t index) {
    if (made_[index]) return;
    made_[index] = true;
    Node& node = p_->nodes[index];
    // A packed result needs only its packed values.
    if (node.save != ActivationSave::kReluSparse) {
      for (const int32_t v : node.inputs) Prepare(v, node.chunk);
      WantAll(node.inputs);
    }
    for (const int32_t v : node.outputs) {
      Value& value = p_->values[v];
      if (value.remade < 0) value.remade = Twin(value.buffer);
    }
    if (node.forward_scratch >= 0 && node.remake_scratch < 0) {
      node.remake_scratch = Twin(node.forward_scratch);
    }
    if (node.lora.forward_scratch >= 0 && node.lora.remake_scratch < 0) {
      node.lora.remake_scratch = Twin(node.lora.forward_scratch);
    }
    BackwardStep step;
    step.node = index;
    step.remake = true;
    Push(std::move(step));
  }

  // After a run of chunked steps the values of its last chunk are gone.
  void Push(BackwardStep step) {
    const int32_t chunk = p_->nodes[step.node].chunk;
    if (chunk != chunk_ && chunk_ >= 0) {
      for (size_t i = 0; i < p_->nodes.size(); ++i) {
        const Node& node = p_->nodes[i];
        if (node.chunk == chunk_ && p_->values[node.outputs[0]].chunked) made_[i] = false;
      }
    }
    chunk_ = chunk;
    steps_.push_back(std::move(step));
  }

  int32_t Twin(int32_t buffer) {
    Buffer twin = p_->buffers[buffer];
    twin.role += " again";
    p_->buffers.push_back(std::move(twin));
    return static_cast<int32_t>(p_->buffers.size()) - 1;
  }

  Program* p_;
  const std::vector<bool>& dropped_;
  std::vector<bool> made_;  // per node
  int32_t chunk_ = -1;      // of the last step
  std::vector<BackwardStep> steps_;
};

}  // namespace

const std::vector<std::string_view>& RematPolicyNames() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> list;
    for (const PolicyDescription& policy : kPolicies) list.push_back(policy.name);
    return list;
  }();
  return names;
}

std::string_view RematPolicyName(RematPolicy policy) {
  return kPolicies[static_cast<size_t>(policy)].name;
}

std::optional<RematPolicy> FindRematPolicy(std::string_view name) {
  for (size_t i = 0; i < kPolicies.size(); ++i) {
    if (kPolicies[i].name == name) return static_cast<RematPolicy>(i);
  }
  return std::nullopt;
}

std::vector<bool> ChooseDropped(const Program& program, const RematOptions& options) {
  const std::vector<Block> blocks = FindBlocks(program);
  if (blocks.empty()) {
    throw Error(ErrorCode::kUnsupported,
                "train.remat: family " + program.family +
                    " has no layers with a single input: set train.remat to none");
  }
  const std::vector<unsigned> parts = NameParts(program);
  const unsigned kept = kPolicies[static_cast<size_t>(options.policy)].kept;
  const auto every =
      options.policy == RematPolicy::kEveryK ? static_cast<size_t>(options.every) : size_t{1};
  TANDEM_CHECK(every > 0);

  const std::vector<bool> shared = FindShared(program);
  std::vector<bool> dropped(program.values.size(), false);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (int32_t i = blocks[b].first; i < blocks[b].last; ++i) {
      for (const int32_t v : program.nodes[i].outputs) {
        dropped[v] = !shared[v] && (parts[v] & kept) == 0;
      }
    }
    const bool keeps_exit = (b + 1) % every == 0 || b + 1 == blocks.size();
    dropped[blocks[b].exit] = !keeps_exit;
  }
  return dropped;
}

void RemakeDropped(Program* program, const std::vector<bool>& dropped) {
  Remaker(program, dropped).Run();
}

}  // namespace tandem::training
