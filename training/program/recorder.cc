#include "training/program/recorder.h"

#include <span>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "training/ops/attention.h"
#include "training/ops/experts.h"

namespace tandem::training {
namespace {

using engine::Act;
using engine::DType;
using engine::Weight;

}  // namespace

Recorder::Recorder(Program* program, const engine::ModelConfig& config,
                   const std::vector<LoraTarget>& targets, const RecordOptions& options)
    : p_(program), neftune_alpha_(options.neftune_alpha), region_(program, config) {
  PlanAdapters(targets, options);
}

Act Recorder::Embed(const Weight& table) {
  Node node(OpKind::kEmbed);
  node.weights = {Index(table)};
  node.factor = std::exchange(neftune_alpha_, 0.0f);  // noise on the tokens' first embedding only
  if (const auto found = lora_.find(table.index); found != lora_.end()) {
    AddTableAdapter(found->second, table.spec->k, &node);
  }
  return Emit(std::move(node), DType::kF32, table.spec->k);
}

Act Recorder::EmbedPositions(const Weight& table) {
  Node node(OpKind::kEmbedPositions);
  node.weights = {Index(table)};
  return Emit(std::move(node), DType::kF32, table.spec->k);
}

Act Recorder::RmsNorm(Act x, const Weight& gamma, float eps) {
  Node node(OpKind::kRmsNorm);
  node.inputs = {F32(x)};
  node.weights = {Index(gamma)};
  node.eps = eps;
  node.saved = NewBuffer("rstd", Rows(x.index) * sizeof(float));
  return Emit(std::move(node), p_->dtype, Cols(x));
}

Act Recorder::RmsNormF32(Act x, const Weight& gamma, float eps) {
  TANDEM_CHECK(Cols(x) % gamma.spec->n == 0);
  Node node(OpKind::kRmsNorm);
  node.inputs = {F32(x)};
  node.weights = {Index(gamma)};
  node.eps = eps;
  node.saved = NewBuffer(
      "rstd", Rows(x.index) * (Cols(x) / gamma.spec->n) * static_cast<int64_t>(sizeof(float)));
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::PlainRmsNorm(Act x, int64_t length, float eps) {
  TANDEM_CHECK(Cols(x) % length == 0);
  Node node(OpKind::kRmsNorm);
  node.inputs = {F32(x)};
  node.eps = eps;
  node.length = length;
  node.saved =
      NewBuffer("rstd", Rows(x.index) * (Cols(x) / length) * static_cast<int64_t>(sizeof(float)));
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::LayerNorm(Act x, const Weight* gamma, const Weight* beta, float eps) {
  TANDEM_CHECK(gamma != nullptr || beta == nullptr);
  Node node(OpKind::kLayerNorm);
  node.inputs = {F32(x)};
  if (gamma != nullptr) node.weights.push_back(Index(*gamma));
  if (beta != nullptr) node.weights.push_back(Index(*beta));
  node.eps = eps;
  node.saved = NewBuffer("mean_rstd", Rows(x.index) * 2 * sizeof(float));
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::Linear(Act x, const Weight& w, const Weight* bias) {
  const WeightSplit::Axis axis = region_.AxisOf(w.index);
  const bool sums = axis == WeightSplit::Axis::kInputs;
  Node node(OpKind::kLinear);
  node.inputs = {axis == WeightSplit::Axis::kOutputs ? Spread(Rounded(x)) : Rounded(x)};
  node.weights = {Index(w)};
  if (bias != nullptr && !sums) node.weights.push_back(Index(*bias));
  node.backward_scratch = RoundedGradientScratch(Rows(node.inputs[0]), w.spec->n);
  if (const auto found = lora_.find(w.index); found != lora_.end()) {
    AddAdapter(found->second, &node);
  }
  const Act y = Emit(std::move(node), DType::kF32, w.spec->n);
  return sums ? SumOverRanks(y, bias) : y;
}

Act Recorder::Attention(Act q, Act k, Act v, const engine::AttentionSpec& spec, int64_t,
                        const Weight* sinks) {
  Node node(OpKind::kAttention);
  node.inputs = {Rounded(q), Rounded(k), Rounded(v)};
  if (sinks != nullptr) node.weights = {sinks->index};
  node.attention = spec;
  node.saved = NewBuffer("lse", p_->rows * spec.n_heads * sizeof(float));
  node.forward_scratch =
      NewBuffer("kv blocks", AttentionScratchBytes(spec, p_->dtype, p_->rows, p_->max_segments));
  return Emit(std::move(node), p_->dtype, spec.n_heads * spec.value_dim());
}

Act Recorder::GatedActivation(Act gate, Act up, engine::Activation activation) {
  Node node(OpKind::kGatedActivation);
  node.inputs = {F32(gate), F32(up)};
  node.activation = activation;
  return Emit(std::move(node), p_->dtype, Cols(gate));
}

Act Recorder::Activate(Act x, engine::Activation activation) {
  Node node(OpKind::kActivate);
  node.inputs = {F32(x)};
  node.activation = activation;
  return Emit(std::move(node), p_->dtype, Cols(x));
}

Act Recorder::Columns(Act x, int64_t first, int64_t count) {
  return Slice(x, first, count, p_->dtype);
}

Act Recorder::ColumnsF32(Act x, int64_t first, int64_t count) {
  return Slice(x, first, count, DType::kF32);
}

Act Recorder::Route(Act logits, const Weight* selection_bias, const engine::RouterSpec& spec) {
  TANDEM_CHECK(Cols(logits) == spec.n_experts);
  Node node(OpKind::kRoute);
  // Losses on routers need the load of all rows. The gate of a shared expert has none.
  node.inputs = {spec.n_experts > 1 ? AllRows(F32(logits)) : F32(logits)};
  if (selection_bias != nullptr) {
    node.weights = {selection_bias->index};
    p_->trained[selection_bias->index] = false;  // no gradient passes through a choice
  }
  node.router = spec;
  return Emit(std::move(node), DType::kF32, 2 * spec.top_k);
}

Act Recorder::ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                           std::span<const Weight> biases) {
  const engine::WeightSpec& first = *experts.front().spec;
  const int64_t top_k = Cols(routing) / 2;
  TANDEM_CHECK(Cols(x) == first.k || Cols(x) == top_k * first.k);
  const WeightSplit::Axis axis = region_.AxisOf(experts.front().index);
  Node node(OpKind::kExpertLinear);
  node.inputs = {axis == WeightSplit::Axis::kOutputs ? Spread(Rounded(x)) : Rounded(x),
                 AllRows(F32(routing))};
  // Before all products, so that they and their combination can run in chunks together.
  if (axis != WeightSplit::Axis::kWhole) SpreadOnce(F32(routing));
  for (const Weight& w : experts) node.weights.push_back(w.index);
  const bool adds_biases = axis != WeightSplit::Axis::kInputs || p_->tensor.place.rank == 0;
  for (const Weight& b : biases) {
    if (adds_biases) {
      node.weights.push_back(b.index);
    } else {
      region_.Use(b.index, true);
      if (p_->trained[b.index]) node.experts.trains_elsewhere = true;
    }
  }
  node.experts.n_experts = static_cast<int64_t>(experts.size());
  node.experts.top_k = top_k;
  AddExpertAdapters(experts, Cols(x), &node);
  node.backward_scratch = NewBuffer("expert rows", ExpertBackwardBytes(*p_, node, p_->rows));
  return Emit(std::move(node), DType::kF32, top_k * first.n);
}

Act Recorder::Combine(Act y, Act routing) {
  const int64_t top_k = Cols(routing) / 2;
  TANDEM_CHECK(Cols(y) % top_k == 0);
  Node node(OpKind::kCombine);
  const bool sums = region_.IsPart(y.index);
  node.inputs = {F32(y), sums ? SpreadOnce(F32(routing)) : F32(routing)};
  const Act combined = Emit(std::move(node), DType::kF32, Cols(y) / top_k);
  return sums ? SumOverRanks(combined, nullptr) : combined;
}

Act Recorder::ScaleExperts(Act routing, const Weight& scales) {
  return Weighted(OpKind::kScaleExperts, routing, scales);
}

Act Recorder::Mix(std::span<const Act> xs, Act weights, int64_t first, float offset) {
  Node node(OpKind::kMix);
  for (const Act x : xs) node.inputs.push_back(F32(x));
  node.inputs.push_back(F32(weights));
  node.first = first;
  node.factor = offset;
  return Emit(std::move(node), DType::kF32, Cols(xs[0]));
}

Act Recorder::MatchMagnitude(Act x, Act like, float least_square) {
  Node node(OpKind::kMatchMagnitude);
  node.inputs = {F32(x), F32(like)};
  node.factor = least_square;
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::ScaleColumns(Act x, const Weight& w) { return Weighted(OpKind::kScaleColumns, x, w); }

Act Recorder::Sigmoid(Act x) {
  Node node(OpKind::kSigmoid);
  node.inputs = {F32(x)};
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::ScaleBy(Act x, const Weight& factor) {
  p_->trained[factor.index] = false;  // a buffer in transformers, no parameter
  return Weighted(OpKind::kScale, x, factor);
}

Act Recorder::SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t count) {
  Node node(OpKind::kSliceHeads);
  node.inputs = {F32(x)};
  node.heads = n_heads;
  node.first = first;
  return Emit(std::move(node), DType::kF32, n_heads * count);
}

Act Recorder::JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) {
  Node node(OpKind::kJoinHeads);
  const bool spreads = region_.IsPart(a.index) && !region_.IsPart(b.index);
  node.inputs = {F32(a), spreads ? Spread(F32(b)) : F32(b)};
  node.heads = n_heads;
  return Emit(std::move(node), DType::kF32, Cols(a) + n_heads * b_dim);
}

Act Recorder::Dropout(Act x, float rate) {
  if (rate == 0) return x;
  Node node(OpKind::kDropout);
  node.inputs = {F32(x)};
  node.rate = rate;
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::CausalConv(Act x, const Weight& w, const Weight* bias, const engine::ConvSpec& spec) {
  Node node(OpKind::kCausalConv);
  node.inputs = {F32(x)};
  node.weights = {w.index};
  if (bias != nullptr) node.weights.push_back(bias->index);
  node.conv = spec;
  return Emit(std::move(node), DType::kF32, spec.channels);
}

Act Recorder::GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                         const engine::DeltaSpec& spec) {
  Node node(OpKind::kGatedDelta);
  node.inputs = {F32(qkv), F32(a), F32(b)};
  node.weights = {a_log.index, dt_bias.index};
  node.delta = spec;
  return Emit(std::move(node), DType::kF32, spec.outputs());
}

Act Recorder::SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias,
                            const Weight& d, const engine::ScanSpec& spec) {
  Node node(OpKind::kSelectiveScan);
  node.inputs = {F32(xbc), F32(dt)};
  node.weights = {a_log.index, dt_bias.index, d.index};
  node.scan = spec;
  return Emit(std::move(node), DType::kF32, spec.outputs());
}

Act Recorder::Gate(Act x, Act gate, engine::GateForm form) {
  Node node(OpKind::kGate);
  node.inputs = {x.index, F32(gate)};
  node.gate = form;
  return Emit(std::move(node), DType::kF32, Cols(x));
}

void Recorder::Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) {
  Node node(OpKind::kCrossEntropy);
  node.soft_cap = soft_cap;
  node.inputs = {Rounded(x)};
  node.weights = {own_head_ >= 0 ? own_head_ : head.index};
  if (bias != nullptr) node.weights.push_back(Index(*bias));
  node.lora = head_lora_;
  node.divided = Divides(node);
  if (region_.is_split()) {
    for (const int32_t weight : node.weights) region_.Use(weight, false);
  }
  p_->nodes.push_back(std::move(node));
}

Act Recorder::Rotate(Act x, size_t table, DType dtype) {
  Node node(OpKind::kRope);
  node.inputs = {F32(x)};
  node.rope = table;
  return Emit(std::move(node), dtype, Cols(x));
}

Act Recorder::Slice(Act x, int64_t first, int64_t count, DType dtype) {
  TANDEM_CHECK(first >= 0 && first + count <= Cols(x));
  Node node(OpKind::kColumns);
  node.inputs = {F32(x)};
  node.first = first;
  return Emit(std::move(node), dtype, count);
}

Act Recorder::Plain(OpKind op, Act x, float factor) {
  Node node(op);
  node.inputs = {F32(x)};
  node.factor = factor;
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::Weighted(OpKind op, Act x, const Weight& w) {
  Node node(op);
  node.inputs = {F32(x)};
  node.weights = {w.index};
  return Emit(std::move(node), DType::kF32, Cols(x));
}

Act Recorder::Pairwise(OpKind op, Act a, Act b) {
  TANDEM_CHECK(Cols(a) == Cols(b));
  Node node(op);
  node.inputs = {F32(a), F32(b)};
  return Emit(std::move(node), DType::kF32, Cols(a));
}

}  // namespace tandem::training
