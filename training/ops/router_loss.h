#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/ops/experts.h"
#include "training/ops/pointwise.h"

namespace tandem::training {

// Losses on the routers of experts, added to the loss that is trained. 0: off.
struct RouterLossOptions {
  // Load balancing (Switch Transformers, Fedus et al. 2021), as transformers computes it: n_experts
  // times the sum over experts of (slots per row at it) * (its mean probability). Both means are
  // over the rows of all layers. It is top_k when the load is even. Sigmoid scores count as
  // probabilities after division by their sum (DeepSeek-V3).
  double balance = 0;
  // Mean square of log(sum of exp(logits)) (ST-MoE, Zoph et al. 2022).
  double z = 0;
};

struct RouterFigures {
  double balance = 0;
  double z = 0;
  double most_loaded = 0;  // largest share of a layer's slots at one expert
};

// The sums over all routers of one forward pass that the losses need. Rows of padding
// (`sources[row].sample` -1) do not count; without sources all rows do. Routers that differ in
// n_experts are separate groups, weighted by their rows. Thread counts change no bit.
class RouterTally {
 public:
  void Clear() { groups_.clear(); }
  void Add(engine::OpsContext& ops, const float* logits, const engine::RouterSpec& spec,
           const engine::ConstMatrix& routing, std::span<const DropoutRow> sources);
  bool empty() const { return groups_.empty(); }
  RouterFigures Figures() const;

  // dlogits += d(share * (balance loss + z loss)) for the rows of one router, after all Adds.
  void Backward(engine::OpsContext& ops, const RouterLossOptions& options, double share,
                const float* logits, const engine::RouterSpec& spec, int64_t rows,
                std::span<const DropoutRow> sources, float* dlogits) const;

 private:
  struct Group {
    int64_t n_experts = 0;
    int64_t rows = 0;                   // of all its routers
    std::vector<double> slots;          // per expert
    std::vector<double> probabilities;  // per expert, summed over rows
    double z = 0;
    double most_loaded = 0;

    double Balance() const;
  };
  int64_t AllRows() const;
  Group& GroupOf(int64_t n_experts);

  std::vector<Group> groups_;
};

// Whether a row belongs to a sample.
inline bool IsOfSample(const DropoutRow& source) { return source.sample != UINT64_MAX; }

}  // namespace tandem::training
