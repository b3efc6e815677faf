#include "training/scratch_needs.h"

#include <algorithm>
#include <vector>

#include "engine/ops/matmul_scratch.h"
#include "training/ops/attention.h"

namespace tandem::training {
namespace {

using engine::ScratchBytes;

class Scratch {
 public:
  Scratch(const Program& program, bool block_base) : p_(program), block_base_(block_base) {}

  ScratchBytes Find() {
    for (const Node& node : p_.nodes) {
      if (node.op == OpKind::kLinear) Forward(node);
    }
    for (const BackwardStep& step : p_.backward) {
      const Node& node = p_.nodes[step.node];
      if (step.remake) continue;
      if (node.op == OpKind::kLinear) Backward(node);
      if (node.op == OpKind::kEmbed || node.op == OpKind::kEmbedPositions) {
        Take({.shared = p_.rows * static_cast<int64_t>(sizeof(uint64_t)), .worker = 0});
      }
      if (node.op == OpKind::kAttention) {
        const int64_t bytes =
            AttentionBackwardScratchBytes(node.attention, p_.dtype, p_.row_length);
        Take({.shared = 0, .worker = bytes});
      }
    }
    return most_;
  }

 private:
  void Take(const ScratchBytes& bytes) {
    most_.shared = std::max(most_.shared, bytes.shared);
    most_.worker = std::max(most_.worker, bytes.worker);
  }

  int64_t RowsAt(const Node& node) const { return node.chunk >= 0 ? p_.chunk_rows : p_.rows; }

  void Forward(const Node& node) {
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    if (block_base_) Take(engine::BlockMatMulScratch(RowsAt(node), w.k));
  }

  void Backward(const Node& node) {
    Take(engine::InputGradScratch(p_.dtype));
    const engine::WeightSpec& w = p_.weight_specs[node.weights[0]];
    // Of the weight, or of A.
    if (p_.trained[node.weights[0]] || node.lora.a >= 0) {
      Take(engine::WeightGradScratch(p_.dtype, RowsAt(node), w.k));
    }
  }

  const Program& p_;
  bool block_base_;
  ScratchBytes most_;
};

// [positions, head_dim] of every table.
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
  const ScratchBytes scratch = Scratch(program, block_base).Find();
  return scratch.shared + threads * scratch.worker + RopeBytes(program);
}

}  // namespace tandem::training
