#include "training/program/executor.h"

#include <type_traits>

#include "engine/base/check.h"
#include "engine/ops/rows.h"
#include "training/program/nodes.h"

namespace tandem::training {

Executor::Executor(const Program& program, engine::OpsContext& ops,
                   std::span<const engine::RopeTable> ropes, const engine::Weights& weights,
                   std::span<float* const> gradients)
    : program_(program), run_(program, ops, ropes, weights, gradients) {}

template <class Action>
auto Executor::Observed(size_t first, size_t end, const Action& action) {
  if (observer_ == nullptr) return action();
  observer_->Before(first, end);
  if constexpr (std::is_void_v<decltype(action())>) {
    action();
    observer_->After(first, end);
  } else {
    auto result = action();
    observer_->After(first, end);
    return result;
  }
}

CrossEntropyResult Executor::Train(const ProgramBatch& batch, float scale, const Reweigh& reweigh,
                                   double router_share) {
  Check(batch);
  run_.set_router_share(router_share);
  if (observer_ != nullptr) observer_->Begin(true);
  Forward(batch, true);
  const CrossEntropyResult result = reweigh ? ReweighedHead(batch, scale, reweigh)
                                            : Head(batch, batch.weights, scale, true, nullptr);
  Backward();
  if (observer_ != nullptr) observer_->End();
  return result;
}

std::optional<RouterFigures> Executor::router_figures() const {
  if (run_.routers().empty()) return std::nullopt;
  return run_.routers().Figures();
}

void Executor::Backward() {
  run_.BeginBackward();
  const std::vector<BackwardStep>& steps = program_.backward;
  if (on_backward_) on_backward_(0);
  for (size_t i = 0; i < steps.size();) {
    const size_t end = ChunkRunEnd(program_, i);
    const auto run = [&] {
      for (size_t s = i; s < end; ++s) {
        const Node& node = program_.nodes[steps[s].node];
        const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(node.op).name,
                             steps[s].remake ? "again" : "backward");
        const NodeFunctions& functions = FunctionsOf(node.op);
        run_.Enter(node);
        if (steps[s].remake) {
          functions.forward(run_, node);
          continue;
        }
        for (const int32_t buffer : steps[s].zero) run_.Zero(buffer);
        functions.backward(run_, node, steps[s]);
      }
    };
    const size_t n = program_.nodes.size();
    Observed(n + i, n + end,
             [&] { program_.nodes[steps[i].node].chunk >= 0 ? run_.OverChunks(run) : run(); });
    i = end;
    if (on_backward_) on_backward_(end);
  }
}

CrossEntropyResult Executor::Evaluate(const ProgramBatch& batch, float* token_logprobs) {
  Check(batch);
  if (observer_ != nullptr) observer_->Begin(false);
  Forward(batch, false);
  const CrossEntropyResult result = Head(batch, batch.weights, 1, false, token_logprobs);
  if (observer_ != nullptr) observer_->End();
  return result;
}

void Executor::ForwardLogits(const ProgramBatch& batch, float* logits) {
  Check(batch);
  TANDEM_CHECK(observer_ == nullptr && !program_.tensor.place.divides_rows);
  Forward(batch, false);
  const Node& head = program_.nodes.back();
  const engine::PanelMatrix& panels = run_.PanelsOf(head);
  engine::MatMul(run_.ops(), run_.MatrixOf(head.inputs[0]), panels, run_.VectorOf(head, 1), logits,
                 panels.n);
  if (head.lora.a >= 0) {
    const engine::LoraMatrices lora = HeadMatrices(head);
    const engine::LoraRows all{&lora, 0, program_.rows};
    engine::AddLora(run_.ops(), run_.MatrixOf(head.inputs[0]), {&all, 1}, logits, panels.n,
                    nullptr);
  }
  if (head.soft_cap > 0) {
    engine::SoftCap(run_.ops(), head.soft_cap, program_.rows * panels.n, logits);
  }
}

engine::LoraMatrices Executor::HeadMatrices(const Node& head) const {
  return {run_.PanelsOf(head.lora.a), run_.PanelsOf(head.lora.b), head.lora.scale};
}

// Only tests and the packer call this, never a client. An unchecked wrong segment would silently
// read another segment's keys.
void Executor::Check(const ProgramBatch& batch) const {
  const auto rows = static_cast<size_t>(program_.rows);
  TANDEM_CHECK(batch.tokens.size() == rows && batch.positions.size() == rows);
  TANDEM_CHECK(batch.segments.size() <= static_cast<size_t>(program_.max_segments));
  int64_t next = 0;
  for (const Segment& segment : batch.segments) {
    TANDEM_CHECK(segment.first_row == next && segment.n_rows > 0);
    next += segment.n_rows;
  }
  TANDEM_CHECK(next == program_.rows);
}

void Executor::Forward(const ProgramBatch& batch, bool training) {
  run_.BeginForward(batch, training);
  const std::vector<Node>& nodes = program_.nodes;
  for (size_t i = 0; i + 1 < nodes.size();) {
    size_t end = i + 1;
    while (nodes[i].chunk >= 0 && nodes[end].chunk == nodes[i].chunk) ++end;
    const auto run = [&] {
      for (size_t n = i; n < end; ++n) {
        const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(nodes[n].op).name, "forward");
        run_.Enter(nodes[n]);
        FunctionsOf(nodes[n].op).forward(run_, nodes[n]);
      }
    };
    Observed(i, end, [&] { nodes[i].chunk >= 0 ? run_.OverChunks(run) : run(); });
    i = end;
  }
}

// Logits do not outlive their tile, so the head's product runs twice; everything below runs once.
CrossEntropyResult Executor::ReweighedHead(const ProgramBatch& batch, float scale,
                                           const Reweigh& reweigh) {
  token_logprobs_.assign(batch.weights.size(), 0.0f);
  token_weights_.assign(batch.weights.begin(), batch.weights.end());
  const CrossEntropyResult first = Head(batch, batch.weights, 1, false, token_logprobs_.data());
  reweigh(token_logprobs_, token_weights_);
  CrossEntropyResult result = Head(batch, token_weights_, scale, true, nullptr);
  result.weight = first.weight;
  result.correct_weight = first.correct_weight;
  return result;
}

CrossEntropyResult Executor::Head(const ProgramBatch& batch, std::span<const float> weights,
                                  float scale, bool train, float* token_logprobs) {
  const Node& node = program_.nodes.back();
  run_.Enter(node);
  const auto first = static_cast<size_t>(run_.batch_row());
  const auto rows = static_cast<size_t>(run_.n_rows());
  CrossEntropyArgs args;
  args.hidden = run_.MatrixOf(node.inputs[0]);
  args.head = run_.PanelsOf(node);
  args.bias = run_.VectorOf(node, 1);
  args.soft_cap = node.soft_cap;
  args.targets = batch.targets.subspan(first, rows);
  args.weights = weights.subspan(first, rows);
  args.scale = scale;
  args.z_loss = train ? program_.z_loss : 0;
  args.distillation = batch.distillation;
  const bool backward = train && program_.values[node.inputs[0]].needs_gradient;
  float* dhidden = backward ? run_.GradientOf(node.inputs[0]) : nullptr;
  float* dhead = backward ? run_.WeightGradient(node.weights[0]) : nullptr;
  HeadLora lora;
  if (node.lora.a >= 0) {
    lora.matrices = HeadMatrices(node);
    if (backward) {
      lora.da = run_.WeightGradient(node.lora.a);
      lora.db = run_.WeightGradient(node.lora.b);
    }
    args.lora = &lora;
  }
  float* dbias =
      backward && node.weights.size() > 1 ? run_.WeightGradient(node.weights[1]) : nullptr;
  float* own_logprobs = token_logprobs == nullptr ? nullptr : token_logprobs + first;
  CrossEntropyResult result = Observed(program_.nodes.size() - 1, program_.nodes.size(), [&] {
    const TraceSpan span(trace_, Trace::Lane::kCompute, Describe(node.op).name);
    return CrossEntropy(run_.ops(), head_workspace_, args, dhidden, dhead, dbias, own_logprobs);
  });
  if (node.divided) TakeOthers(&result, token_logprobs);
  return result;
}

void Executor::TakeOthers(CrossEntropyResult* result, float* token_logprobs) const {
  const TraceSpan span(trace_, Trace::Lane::kCompute, "gather losses");
  const TensorPlace& place = program_.tensor.place;
  TANDEM_CHECK(gather_ != nullptr);
  std::vector<CrossEntropyResult> all(static_cast<size_t>(place.size));
  gather_(std::as_bytes(std::span(result, 1)), std::as_writable_bytes(std::span(all)));
  *result = {};
  for (const CrossEntropyResult& one : all) {
    result->weighted_loss += one.weighted_loss;
    result->weight += one.weight;
    result->correct_weight += one.correct_weight;
    result->weighted_z_loss += one.weighted_z_loss;
  }
  if (token_logprobs == nullptr) return;
  const std::span<float> rows(token_logprobs, static_cast<size_t>(program_.rows));
  gather_(std::as_bytes(rows.subspan(static_cast<size_t>(program_.first_part_row()),
                                     static_cast<size_t>(program_.part_rows()))),
          std::as_writable_bytes(rows));
}

}  // namespace tandem::training
