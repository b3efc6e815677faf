#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "engine/ops/ops_context.h"
#include "training/dist/collectives.h"
#include "training/program/executor.h"
#include "training/program/program.h"
#include "training/program/step_observer.h"
#include "training/step/parameters.h"
#include "training/step/unit_schedule.h"

namespace tandem::training {

// Weights of which every rank holds a part (FSDP), while a program runs. Before a unit's first use
// the communication thread gathers its weights, meanwhile those of the next unit; after the last
// use for now the other ranks' parts go. Once no later backward step adds to a unit's gradient, the
// ranks' gradients are summed into their owners' parts, on top of those of earlier micro-batches.
// The order of all this depends on the program alone. Owned and called by the training thread;
// borrows its arguments.
class ShardedWeights : public StepObserver {
 public:
  // `overlap`: gathers ahead and sums during the backward pass. Changes no bit.
  ShardedWeights(const Program& program, ParameterStore& parameters, Collectives& ranks,
                 bool overlap);
  // Waits for operations that use the parameters' memory; after a fault they may be in flight.
  ~ShardedWeights() override { ranks_.Abandon(); }
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  // Also sums over replicas of the parameters in the next run: it is the step's last micro-batch.
  void set_sums_replicas(bool sums) { sums_replicas_ = sums; }
  void set_trace(Trace* trace) { trace_ = trace; }

  void Begin(bool training) override;
  void Before(size_t first, size_t end) override;
  void After(size_t first, size_t end) override;
  void End() override;

  // Adds this rank's parts of the gradient over all replicas of the parameters.
  void SumReplicas();
  // Builds all weights anew from the masters, unit by unit. Calls `built` while a unit's are whole.
  void Repack(engine::OpsContext& ops,
              const std::function<void(const ParameterStore::Unit&)>& built);

 private:
  struct Live {
    bool is_live = false;
    Collectives::Ticket ticket = 0;
  };
  void Gather(size_t unit);
  void Drop(size_t unit);
  void SumGradients(size_t backward_steps);
  const std::vector<size_t>& NextAt(size_t position) const {
    return (training_ ? schedule_.next_training : schedule_.next_forward)[position];
  }

  ParameterStore& parameters_;
  Collectives& ranks_;
  const bool overlap_;
  const size_t n_nodes_;
  const UnitSchedule schedule_;
  size_t next_sum_ = 0;
  std::deque<Collectives::Ticket> summing_;
  std::vector<Live> live_;  // by unit
  bool training_ = false;
  bool sums_replicas_ = false;
  Trace* trace_ = nullptr;
};

}  // namespace tandem::training
