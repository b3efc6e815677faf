#include "training/setup/scratch_needs.h"

#include <algorithm>
#include <vector>

#include "engine/ops/experts.h"
#include "engine/ops/matmul_scratch.h"
#include "training/ops/attention.h"
#include "training/ops/experts.h"
#include "training/ops/recurrence.h"

namespace tandem::training {
namespace {

using engine::ScratchBytes;

class Scratch {
 public:
  Scratch(const Program& program, int threads, bool block_base)
      : p_(program), threads_(threads), block_base_(block_base) {}

  // Bytes of all workers together, plus their shared scratch.
  int64_t Find() {
    for (const Node& node : p_.nodes) {
      if (node.op == OpKind::kLinear) Forward(node);
      if (node.op == OpKind::kExpertLinear) ForwardExperts(node);
    }
    for (const BackwardStep& step : p_.backward) {
      const Node& node = p_.nodes[step.node];
      if (step.remake) continue;
      if (node.op == OpKind::kLinear) Backward(node);
      if (node.op == OpKind::kExpertLinear) BackwardExperts(node);
      if (node.op == OpKind::kEmbed || node.op == OpKind::kEmbedPositions) {
        Take({.shared = RowsOf(p_, node) * static_cast<int64_t>(sizeof(uint64_t)), .worker = 0});
      }
      if (node.op == OpKind::kAttention) {
        TakeAttention(node.attention);
      }
      TakeState(node);
    }
    return most_.shared + threads_ * most_.worker +
           attending_ * std::max<int64_t>(0, attention_ - most_.worker);
  }

 private:
  // Any worker may take a part, and keeps the scratch. One part alone always goes to the first.
  void TakeAttention(const engine::AttentionSpec& spec) {
    const int64_t tasks = std::max<int64_t>(1, p_.rows / p_.row_length) * spec.n_kv_heads;
    attending_ = std::max(attending_, tasks == 1 ? 1 : threads_);
    attention_ = std::max(attention_, AttentionBackwardScratchBytes(spec, p_.dtype, p_.row_length));
  }

  void TakeState(const Node& node) {
    int64_t worker = 0;
    if (node.op == OpKind::kCausalConv) worker = ConvBackwardScratchBytes(p_.row_length);
    if (node.op == OpKind::kGatedDelta) {
      worker = RecurrenceBackwardScratchBytes(node.delta.k_dim, node.delta.v_dim, p_.row_length);
    }
    if (node.op == OpKind::kSelectiveScan) {
      worker =
          RecurrenceBackwardScratchBytes(node.scan.state_dim, node.scan.head_dim, p_.row_length);
    }
    Take({.shared = 0, .worker = worker});
  }

  void Take(const ScratchBytes& bytes) {
    most_.shared = std::max(most_.shared, bytes.shared);
    most_.worker = std::max(most_.worker, bytes.worker);
  }

  int64_t RowsAt(const Node& node) const {
    return node.chunk >= 0 ? p_.chunk_rows : RowsOf(p_, node);
  }

  void Forward(const Node& node) {
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    if (block_base_) Take(engine::BlockMatMulScratch(RowsAt(node), w.k));
  }

  void ForwardExperts(const Node& node) {
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    Take(engine::ExpertScratch(p_.dtype, RowsAt(node), node.experts.top_k, node.experts.n_experts,
                               w.k));
  }

  // One block of an expert's rows at a time.
  void BackwardExperts(const Node& node) {
    Take(engine::InputGradScratch(p_.dtype));
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    Take(engine::WeightGradScratch(p_.dtype, std::min(kExpertBlockRows, RowsAt(node)), w.k));
  }

  void Backward(const Node& node) {
    Take(engine::InputGradScratch(p_.dtype));
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    // Gradient of the weight, or of A.
    if (p_.trained[node.weights[0]] || node.lora.a >= 0) {
      Take(engine::WeightGradScratch(p_.dtype, RowsAt(node), w.k));
    }
  }

  const Program& p_;
  int64_t threads_;
  bool block_base_;
  ScratchBytes most_;
  int64_t attending_ = 0;  // workers that compute a part of an attention
  int64_t attention_ = 0;  // bytes per such worker
};

// Tables of rotations, [positions, head_dim] each.
int64_t RopeBytes(const Program& program) {
  std::vector<int64_t> tables;
  for (const Node& node : program.nodes) {
    if (node.op != OpKind::kRope) continue;
    tables.resize(std::max(tables.size(), node.rope + 1));
    tables[node.rope] = 1;
  }
  int64_t head_dim = 0;
  for (const Node& node : program.nodes) {
    if (node.op == OpKind::kAttention) head_dim = std::max(head_dim, node.attention.head_dim);
  }
  return std::count(tables.begin(), tables.end(), 1) * program.row_length * head_dim *
         static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t ScratchNeeds(const Program& program, int threads, bool block_base) {
  return Scratch(program, threads, block_base).Find() + RopeBytes(program);
}

}  // namespace tandem::training
