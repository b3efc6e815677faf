#include <algorithm>

#include "engine/base/check.h"
#include "engine/ops/expert_lora.h"
#include "engine/ops/rows.h"
#include "training/ops/expert_lora.h"
#include "training/ops/experts.h"
#include "training/program/nodes.h"

namespace tandem::training {

using engine::Matrix;

namespace {

// The gate of a shared expert routes among one: it has no load to balance.
bool IsChoice(const Node& node) { return node.router.n_experts > 1; }

// A node's adapters, by expert.
class ExpertAdapters {
 public:
  ExpertAdapters(NodeRun& run, const Node& node) : by_expert_(node.experts.lora.size()) {
    for (size_t e = 0; e < by_expert_.size(); ++e) {
      const LoraNode& lora = node.experts.lora[e];
      if (lora.a < 0) continue;
      by_expert_[e] = {run.PanelsOf(lora.a), run.PanelsOf(lora.b), lora.scale};
    }
  }

  const engine::LoraMatrices* Find(int64_t expert) const {
    const engine::LoraMatrices& lora = by_expert_[static_cast<size_t>(expert)];
    return lora.a.panels == nullptr ? nullptr : &lora;
  }

 private:
  std::vector<engine::LoraMatrices> by_expert_;
};

// h of every slot of the present rows.
Matrix ExpertHidden(NodeRun& run, const Node& node) {
  const engine::DType dtype = run.program().dtype;
  const int64_t top_k = node.experts.top_k;
  const int64_t stride = engine::RowStride(dtype, node.experts.lora_rank);
  const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
  return {run.At(node.saved) + run.first_row() * top_k * stride * width, dtype,
          run.n_rows() * top_k, node.experts.lora_rank, stride};
}

// drop(x), written to `scratch`.
Matrix DroppedInput(NodeRun& run, const Node& node, int32_t scratch) {
  const Matrix x = run.MatrixOf(node.inputs[0]);
  const Matrix dropped{run.At(scratch), x.dtype, x.rows, x.cols, x.stride};
  DropoutRounded(run.ops(), x, run.Sources(), node.lora.rate, run.KeyOf(node), dropped);
  return dropped;
}

void ForwardExpertLora(NodeRun& run, const Node& node) {
  const ExpertAdapters adapters(run, node);
  const bool drops = run.training() && node.lora.rate > 0;
  const int32_t scratch = run.in_backward() ? node.lora.remake_scratch : node.lora.forward_scratch;
  const Matrix x = drops ? DroppedInput(run, node, scratch) : run.MatrixOf(node.inputs[0]);
  const Matrix y = run.MatrixOf(node.outputs[0]);
  const Matrix hidden = ExpertHidden(run, node);
  engine::AddExpertLora(
      run.ops(), x, run.MatrixOf(node.inputs[1]), node.experts.n_experts,
      [&](int64_t expert) { return adapters.Find(expert); }, 0, run.n_rows(),
      static_cast<float*>(y.data), y.stride, &hidden);
}

void BackwardExpertLora(NodeRun& run, const Node& node, const ExpertLinearGradient& base) {
  const ExpertAdapters adapters(run, node);
  ExpertLoraGradient gradient;
  gradient.x = base.x;
  gradient.routing = base.routing;
  gradient.hidden = ExpertHidden(run, node);
  gradient.n_experts = base.n_experts;
  gradient.n = base.n;
  gradient.k = base.k;
  gradient.dy = base.dy;
  gradient.lora = [&](int64_t expert) { return adapters.Find(expert); };
  gradient.da = [&](int64_t e) {
    return run.WeightGradient(node.experts.lora[static_cast<size_t>(e)].a);
  };
  gradient.db = [&](int64_t e) {
    return run.WeightGradient(node.experts.lora[static_cast<size_t>(e)].b);
  };
  gradient.dx = base.dx;
  const int64_t rank = node.experts.lora_rank;
  std::byte* scratch = run.At(node.backward_scratch);
  if (node.lora.rate == 0) return ExpertLoraBackward(run.ops(), gradient, rank, scratch);

  gradient.x = DroppedInput(run, node, node.lora.dropout_scratch);
  const int64_t cols = base.x.cols;
  const auto f32_bytes = cols * static_cast<int64_t>(sizeof(float));
  const int64_t x_bytes = ExpertDropoutBytes(base.x.dtype, cols) - f32_bytes;
  auto* through_a =
      reinterpret_cast<float*>(run.At(node.lora.dropout_scratch) + run.n_rows() * x_bytes);
  if (base.dx != nullptr) {
    std::fill_n(through_a, run.n_rows() * cols, 0.0f);
    gradient.dx = through_a;
  }
  ExpertLoraBackward(run.ops(), gradient, rank, scratch);
  if (base.dx == nullptr) return;
  Dropout(run.ops(), through_a, run.Sources(), cols, node.lora.rate, run.KeyOf(node), base.dx,
          true);
}

}  // namespace

void ForwardRoute(NodeRun& run, const Node& node) {
  const float* logits = run.F32Of(node.inputs[0]);
  const Matrix routing = run.MatrixOf(node.outputs[0]);
  engine::Route(run.ops(), logits, node.router.n_experts, run.VectorOf(node, 0), node.router,
                routing);
  if (run.training() && !run.in_backward() && IsChoice(node)) {
    run.routers().Add(run.ops(), logits, node.router, routing, run.Sources());
  }
}

void BackwardRoute(NodeRun& run, const Node& node, const BackwardStep&) {
  const float* logits = run.F32Of(node.inputs[0]);
  float* dlogits = run.GradientOf(node.inputs[0]);
  RouteBackward(run.ops(), logits, node.router, run.MatrixOf(node.outputs[0]),
                run.GradientOf(node.outputs[0]), dlogits);
  const RouterLossOptions& losses = run.program().router_loss;
  if ((losses.balance == 0 && losses.z == 0) || !IsChoice(node)) return;
  // When ranks divide the rows, each routes all of them, and the gradients of all are added.
  const double share =
      node.is_part ? run.router_share() / run.program().tensor.place.size : run.router_share();
  run.routers().Backward(run.ops(), losses, share, logits, node.router, run.n_rows(), run.Sources(),
                         dlogits);
}

void ForwardExpertLinear(NodeRun& run, const Node& node) {
  const auto first_bias = static_cast<size_t>(node.experts.n_experts);
  engine::ExpertMatrices experts;
  experts.n_experts = node.experts.n_experts;
  experts.weight = [&](int64_t e) -> const engine::PanelMatrix& {
    return run.PanelsOf(node.weights[static_cast<size_t>(e)]);
  };
  if (node.weights.size() > first_bias) {
    experts.bias = [&](int64_t e) {
      return run.VectorOf(node, first_bias + static_cast<size_t>(e));
    };
  }
  const Matrix y = run.MatrixOf(node.outputs[0]);
  engine::ExpertMatMul(run.ops(), run.MatrixOf(node.inputs[0]), run.MatrixOf(node.inputs[1]),
                       experts, static_cast<float*>(y.data), y.stride);
  if (!node.experts.lora.empty()) ForwardExpertLora(run, node);
}

void BackwardExpertLinear(NodeRun& run, const Node& node, const BackwardStep& step) {
  const engine::WeightSpec& w = run.program().weight_specs[node.weights[0]];
  const auto first_bias = static_cast<size_t>(node.experts.n_experts);
  ExpertLinearGradient gradient;
  gradient.x = run.MatrixOf(node.inputs[0]);
  gradient.routing = run.MatrixOf(node.inputs[1]);
  gradient.n_experts = node.experts.n_experts;
  gradient.n = w.n;
  gradient.k = w.k;
  gradient.dy = run.GradientOf(node.outputs[0]);
  gradient.weight = [&](int64_t e) -> const engine::PanelMatrix& {
    return run.PanelsOf(node.weights[static_cast<size_t>(e)]);
  };
  gradient.dw = [&](int64_t e) { return run.WeightGradient(node.weights[static_cast<size_t>(e)]); };
  if (node.weights.size() > first_bias) {
    gradient.db = [&](int64_t e) {
      return run.WeightGradient(node.weights[first_bias + static_cast<size_t>(e)]);
    };
  }
  gradient.dx = run.GradientOf(node.inputs[0]);
  gradient.accumulate = !step.overwrite[0];
  ExpertLinearBackward(run.ops(), gradient, run.At(node.backward_scratch));
  if (!node.experts.lora.empty()) BackwardExpertLora(run, node, gradient);
}

void ForwardCombine(NodeRun& run, const Node& node) {
  engine::CombineExperts(run.ops(), run.F32Of(node.inputs[0]), run.ValueOf(node.inputs[0]).stride,
                         run.MatrixOf(node.inputs[1]), run.MatrixOf(node.outputs[0]));
}

void BackwardCombine(NodeRun& run, const Node& node, const BackwardStep& step) {
  const Matrix routing = run.MatrixOf(node.inputs[1]);
  float* drouting = run.GradientOf(node.inputs[1]);
  if (step.overwrite[1]) std::fill_n(drouting, routing.rows * routing.cols, 0.0f);
  const float* y = drouting == nullptr ? nullptr : run.F32Of(node.inputs[0]);
  CombineBackward(run.ops(), y, routing, run.GradientOf(node.outputs[0]),
                  run.ValueOf(node.outputs[0]).cols, run.GradientOf(node.inputs[0]),
                  !step.overwrite[0], drouting);
}

}  // namespace tandem::training
