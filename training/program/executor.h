#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/ops/ops_context.h"
#include "training/observe/trace.h"
#include "training/ops/cross_entropy.h"
#include "training/program/node_run.h"
#include "training/program/program.h"
#include "training/program/program_batch.h"
#include "training/program/step_observer.h"

namespace tandem::training {

// Computes the weights of a batch's rows from the log-probabilities of their targets. Rows that are
// not trained have weight 0 and keep it.
using Reweigh =
    std::function<void(std::span<const float> token_logprobs, std::span<float> weights)>;

// Runs a program. Allocates the arena at construction; the loss workspace, packed ReLU results and
// Reweigh's buffers grow on first use. Owned by one thread; borrows all its arguments.
class Executor {
 public:
  // `gradients[i]` is [n, k] f32 for trained weights, which Train adds to; ignored for frozen ones.
  // `ropes` are the family's tables.
  Executor(const Program& program, engine::OpsContext& ops,
           std::span<const engine::RopeTable> ropes, const engine::Weights& weights,
           std::span<float* const> gradients);

  // Forward and backward: adds d(scale * sum of weighted losses) to the gradients. With `reweigh`
  // the head first runs forward, and `reweigh` then sets the weights of the rows. The result then
  // has the weight and the correct weight of the batch's own weights. The losses of
  // routers (Program::router_loss) are added times `router_share`.
  CrossEntropyResult Train(const ProgramBatch& batch, float scale, const Reweigh& reweigh = {},
                           double router_share = 1);
  // Forward only, without dropout. `token_logprobs` [rows] may be null.
  CrossEntropyResult Evaluate(const ProgramBatch& batch, float* token_logprobs);
  // Logits of all rows [rows, vocab_size], without dropout. Equal to serving's. REQUIRES: ranks do
  // not divide the rows.
  void ForwardLogits(const ProgramBatch& batch, float* logits);

  const Program& program() const { return program_; }
  // Figures of the last Train; absent without experts.
  std::optional<RouterFigures> router_figures() const;
  // Bytes of the packed ReLU results since the last Train.
  int64_t packed_bytes() const { return run_.packed_bytes(); }
  // Called during the backward pass of Train: backward steps before `end` are done. Empty: off.
  void set_on_backward(std::function<void(size_t end)> on_backward) {
    on_backward_ = std::move(on_backward);
  }
  // Connects the ranks of the tensor axis. REQUIRES: set before the first run when the program is
  // split (tensor_split.h); the ranks run it together. Their results have the figures of all rows.
  void set_exchange(TensorExchange exchange) {
    gather_ = exchange.gather;
    run_.set_exchange(std::move(exchange));
  }
  // Told about every later run; null: nobody. Borrowed.
  void set_observer(StepObserver* observer) { observer_ = observer; }
  bool is_observed() const { return observer_ != nullptr; }
  // Records the time of every later node in `trace`; null: stops recording.
  void set_trace(Trace* trace) { trace_ = trace; }

 private:
  void Check(const ProgramBatch& batch) const;
  // Computes positions [first, end) between the observer's Before and After.
  template <class Action>
  auto Observed(size_t first, size_t end, const Action& action);
  void Forward(const ProgramBatch& batch, bool training);
  void Backward();
  CrossEntropyResult Head(const ProgramBatch& batch, std::span<const float> weights, float scale,
                          bool train, float* token_logprobs);
  // Adds the figures of the other ranks, which have other rows, and gathers theirs.
  void TakeOthers(CrossEntropyResult* result, float* token_logprobs) const;
  engine::LoraMatrices HeadMatrices(const Node& head) const;
  CrossEntropyResult ReweighedHead(const ProgramBatch& batch, float scale, const Reweigh& reweigh);

  const Program& program_;
  NodeRun run_;
  std::function<void(std::span<const std::byte>, std::span<std::byte>)> gather_;
  CrossEntropyWorkspace head_workspace_;
  std::vector<float> token_logprobs_;  // [rows], for Reweigh
  std::vector<float> token_weights_;   // [rows]
  Trace* trace_ = nullptr;
  std::function<void(size_t)> on_backward_;
  StepObserver* observer_ = nullptr;
};

}  // namespace tandem::training
