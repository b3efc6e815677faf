#include <algorithm>
#include <map>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/model/families/layer_ops.h"
#include "training/ops/attention.h"
#include "training/ops/experts.h"
#include "training/program/passes.h"
#include "training/program/program.h"
#include "training/program/tensor_region.h"

namespace tandem::training {
namespace {

using engine::Act;
using engine::DType;
using engine::Weight;

// Records a family's operations as nodes. When an op needs the compute dtype and its operand is
// f32, inserts a kRound node, once per value, exactly where ServingOps rounds.
class Recorder : public engine::LayerOps {
 public:
  // `config` is that of the rank's part.
  Recorder(Program* program, const engine::ModelConfig& config,
           const std::vector<LoraTarget>& targets, const RecordOptions& options)
      : p_(program), neftune_alpha_(options.neftune_alpha), region_(program, config) {
    PlanAdapters(targets, options);
  }

  Act Embed(const Weight& table) override {
    Node node(OpKind::kEmbed);
    node.weights = {Index(table)};
    node.factor = std::exchange(neftune_alpha_, 0.0f);  // noise on the tokens' first embedding only
    if (const auto found = lora_.find(table.index); found != lora_.end()) {
      AddTableAdapter(found->second, table.spec->k, &node);
    }
    return Emit(std::move(node), DType::kF32, table.spec->k);
  }

  Act EmbedPositions(const Weight& table) override {
    Node node(OpKind::kEmbedPositions);
    node.weights = {Index(table)};
    return Emit(std::move(node), DType::kF32, table.spec->k);
  }

  Act RmsNorm(Act x, const Weight& gamma, float eps) override {
    Node node(OpKind::kRmsNorm);
    node.inputs = {F32(x)};
    node.weights = {Index(gamma)};
    node.eps = eps;
    node.saved = NewBuffer("rstd", Rows(x.index) * sizeof(float));
    return Emit(std::move(node), p_->dtype, Cols(x));
  }

  // The same node as RmsNorm; its output's dtype distinguishes the two.
  Act RmsNormF32(Act x, const Weight& gamma, float eps) override {
    TANDEM_CHECK(Cols(x) % gamma.spec->n == 0);
    Node node(OpKind::kRmsNorm);
    node.inputs = {F32(x)};
    node.weights = {Index(gamma)};
    node.eps = eps;
    node.saved = NewBuffer(
        "rstd", Rows(x.index) * (Cols(x) / gamma.spec->n) * static_cast<int64_t>(sizeof(float)));
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act PlainRmsNorm(Act x, int64_t length, float eps) override {
    TANDEM_CHECK(Cols(x) % length == 0);
    Node node(OpKind::kRmsNorm);
    node.inputs = {F32(x)};
    node.eps = eps;
    node.length = length;
    node.saved =
        NewBuffer("rstd", Rows(x.index) * (Cols(x) / length) * static_cast<int64_t>(sizeof(float)));
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act LayerNorm(Act x, const Weight* gamma, const Weight* beta, float eps) override {
    TANDEM_CHECK(gamma != nullptr || beta == nullptr);
    Node node(OpKind::kLayerNorm);
    node.inputs = {F32(x)};
    if (gamma != nullptr) node.weights.push_back(Index(*gamma));
    if (beta != nullptr) node.weights.push_back(Index(*beta));
    node.eps = eps;
    node.saved = NewBuffer("mean_rstd", Rows(x.index) * 2 * sizeof(float));
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act Linear(Act x, const Weight& w, const Weight* bias) override {
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

  Act Rope(Act x, size_t table) override { return Rotate(x, table, p_->dtype); }
  Act RopeF32(Act x, size_t table) override { return Rotate(x, table, DType::kF32); }

  Act Attention(Act q, Act k, Act v, const engine::AttentionSpec& spec, int64_t,
                const Weight* sinks) override {
    Node node(OpKind::kAttention);
    node.inputs = {Rounded(q), Rounded(k), Rounded(v)};
    if (sinks != nullptr) node.weights = {sinks->index};
    node.attention = spec;
    node.saved = NewBuffer("lse", p_->rows * spec.n_heads * sizeof(float));
    node.forward_scratch =
        NewBuffer("kv blocks", AttentionScratchBytes(spec, p_->dtype, p_->rows, p_->max_segments));
    return Emit(std::move(node), p_->dtype, spec.n_heads * spec.value_dim());
  }

  Act GatedActivation(Act gate, Act up, engine::Activation activation) override {
    Node node(OpKind::kGatedActivation);
    node.inputs = {F32(gate), F32(up)};
    node.activation = activation;
    return Emit(std::move(node), p_->dtype, Cols(gate));
  }

  Act Activate(Act x, engine::Activation activation) override {
    Node node(OpKind::kActivate);
    node.inputs = {F32(x)};
    node.activation = activation;
    return Emit(std::move(node), p_->dtype, Cols(x));
  }

  Act Columns(Act x, int64_t first, int64_t count) override {
    return Slice(x, first, count, p_->dtype);
  }
  Act ColumnsF32(Act x, int64_t first, int64_t count) override {
    return Slice(x, first, count, DType::kF32);
  }

  Act Route(Act logits, const Weight* selection_bias, const engine::RouterSpec& spec) override {
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

  Act ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                   std::span<const Weight> biases) override {
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

  Act Combine(Act y, Act routing) override {
    const int64_t top_k = Cols(routing) / 2;
    TANDEM_CHECK(Cols(y) % top_k == 0);
    Node node(OpKind::kCombine);
    const bool sums = region_.IsPart(y.index);
    node.inputs = {F32(y), sums ? SpreadOnce(F32(routing)) : F32(routing)};
    const Act combined = Emit(std::move(node), DType::kF32, Cols(y) / top_k);
    return sums ? SumOverRanks(combined, nullptr) : combined;
  }

  Act ScaleExperts(Act routing, const Weight& scales) override {
    return Weighted(OpKind::kScaleExperts, routing, scales);
  }
  Act Mix(std::span<const Act> xs, Act weights, int64_t first, float offset) override {
    Node node(OpKind::kMix);
    for (const Act x : xs) node.inputs.push_back(F32(x));
    node.inputs.push_back(F32(weights));
    node.first = first;
    node.factor = offset;
    return Emit(std::move(node), DType::kF32, Cols(xs[0]));
  }
  Act MatchMagnitude(Act x, Act like, float least_square) override {
    Node node(OpKind::kMatchMagnitude);
    node.inputs = {F32(x), F32(like)};
    node.factor = least_square;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }
  Act AboveCut(Act x, float deviations) override { return Plain(OpKind::kAboveCut, x, deviations); }
  Act ScaleColumns(Act x, const Weight& w) override {
    return Weighted(OpKind::kScaleColumns, x, w);
  }
  Act SoftCap(Act x, float cap) override { return Plain(OpKind::kSoftCap, x, cap); }

  Act Add(Act a, Act b) override { return Pairwise(OpKind::kAdd, a, b); }
  Act Mul(Act a, Act b) override { return Pairwise(OpKind::kMul, a, b); }

  Act Sigmoid(Act x) override {
    Node node(OpKind::kSigmoid);
    node.inputs = {F32(x)};
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act Clamp(Act x, float limit) override { return Plain(OpKind::kClamp, x, limit); }
  Act Scale(Act x, float factor) override { return Plain(OpKind::kScale, x, factor); }

  Act ScaleBy(Act x, const Weight& factor) override {
    p_->trained[factor.index] = false;  // a buffer in transformers, no parameter
    return Weighted(OpKind::kScale, x, factor);
  }

  Act SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t count) override {
    Node node(OpKind::kSliceHeads);
    node.inputs = {F32(x)};
    node.heads = n_heads;
    node.first = first;
    return Emit(std::move(node), DType::kF32, n_heads * count);
  }

  Act JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) override {
    Node node(OpKind::kJoinHeads);
    const bool spreads = region_.IsPart(a.index) && !region_.IsPart(b.index);
    node.inputs = {F32(a), spreads ? Spread(F32(b)) : F32(b)};
    node.heads = n_heads;
    return Emit(std::move(node), DType::kF32, Cols(a) + n_heads * b_dim);
  }

  Act Dropout(Act x, float rate) override {
    if (rate == 0) return x;
    Node node(OpKind::kDropout);
    node.inputs = {F32(x)};
    node.rate = rate;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act CausalConv(Act x, const Weight& w, const Weight* bias,
                 const engine::ConvSpec& spec) override {
    Node node(OpKind::kCausalConv);
    node.inputs = {F32(x)};
    node.weights = {w.index};
    if (bias != nullptr) node.weights.push_back(bias->index);
    node.conv = spec;
    return Emit(std::move(node), DType::kF32, spec.channels);
  }

  Act GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                 const engine::DeltaSpec& spec) override {
    Node node(OpKind::kGatedDelta);
    node.inputs = {F32(qkv), F32(a), F32(b)};
    node.weights = {a_log.index, dt_bias.index};
    node.delta = spec;
    return Emit(std::move(node), DType::kF32, spec.outputs());
  }

  Act SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias, const Weight& d,
                    const engine::ScanSpec& spec) override {
    Node node(OpKind::kSelectiveScan);
    node.inputs = {F32(xbc), F32(dt)};
    node.weights = {a_log.index, dt_bias.index, d.index};
    node.scan = spec;
    return Emit(std::move(node), DType::kF32, spec.outputs());
  }

  Act Gate(Act x, Act gate, engine::GateForm form) override {
    Node node(OpKind::kGate);
    node.inputs = {x.index, F32(gate)};
    node.gate = form;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) override {
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

 private:
  // Gives the weights of LoraSpecs and FactorSpecs their indices.
  void PlanAdapters(const std::vector<LoraTarget>& targets, const RecordOptions& options) {
    int64_t n_trained = 0;
    int64_t n_factors = 0;
    for (const LoraTarget& target : targets) {
      n_trained += LoraSpecCount(target);
      n_factors += target.form == LoraForm::kDora ? 1 : 0;
    }
    auto next = static_cast<int32_t>(static_cast<int64_t>(p_->weight_specs.size()) - n_trained);
    auto factors = static_cast<int32_t>(next - n_factors);
    for (const LoraTarget& target : targets) {
      if (target.form == LoraForm::kWhole) {
        own_[target.weight] = next++;
        continue;
      }
      if (target.form == LoraForm::kWholeHead) {
        own_head_ = next++;
        continue;
      }
      LoraNode& lora = target.form == LoraForm::kHead ? head_lora_ : lora_[target.weight];
      lora.a = next++;
      lora.b = next++;
      lora.scale = target.scale;
      const bool drops = target.form == LoraForm::kLinear || target.form == LoraForm::kDora;
      if (drops) lora.rate = options.lora_dropout;
      if (target.form != LoraForm::kDora) continue;
      lora.magnitude = next++;
      lora.factors = factors++;
    }
  }

  // The weight that a node reads: the model's, or the adapter's copy.
  int32_t Index(const Weight& w) const {
    const auto own = own_.find(w.index);
    return own == own_.end() ? w.index : own->second;
  }

  Act Rotate(Act x, size_t table, DType dtype) {
    Node node(OpKind::kRope);
    node.inputs = {F32(x)};
    node.rope = table;
    return Emit(std::move(node), dtype, Cols(x));
  }

  // The rows before layers whose outputs ranks share, once per value.
  int32_t Spread(int32_t x) {
    if (const auto it = spread_.find(x); it != spread_.end()) return it->second;
    Node node(OpKind::kSpread);
    node.inputs = {x};
    const Act y = Emit(std::move(node), p_->values[x].dtype, Cols(Act{x}));
    spread_[x] = y.index;
    return y.index;
  }

  int32_t SpreadOnce(int32_t x) { return region_.IsPart(x) ? x : Spread(x); }
  // All rows of a value of which ranks may have parts.
  int32_t AllRows(int32_t x) { return p_->values[x].divided ? Spread(x) : x; }

  // Whether ranks divide the rows of a node's outputs.
  bool Divides(const Node& node) const {
    if (!p_->tensor.place.divides_rows || node.op == OpKind::kSpread) return false;
    return node.op == OpKind::kSumRanks ||
           std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](int32_t v) { return static_cast<bool>(p_->values[v].divided); });
  }

  Act SumOverRanks(Act y, const Weight* bias) {
    Node node(OpKind::kSumRanks);
    node.inputs = {F32(y)};
    if (bias != nullptr) node.weights = {bias->index};
    return Emit(std::move(node), DType::kF32, Cols(y));
  }

  Act Slice(Act x, int64_t first, int64_t count, DType dtype) {
    TANDEM_CHECK(first >= 0 && first + count <= Cols(x));
    Node node(OpKind::kColumns);
    node.inputs = {F32(x)};
    node.first = first;
    return Emit(std::move(node), dtype, count);
  }

  // An op of one value and one number.
  Act Plain(OpKind op, Act x, float factor) {
    Node node(op);
    node.inputs = {F32(x)};
    node.factor = factor;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  // An op of one value and one weight.
  Act Weighted(OpKind op, Act x, const Weight& w) {
    Node node(op);
    node.inputs = {F32(x)};
    node.weights = {w.index};
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act Pairwise(OpKind op, Act a, Act b) {
    TANDEM_CHECK(Cols(a) == Cols(b));
    Node node(op);
    node.inputs = {F32(a), F32(b)};
    return Emit(std::move(node), DType::kF32, Cols(a));
  }

  void AddAdapter(const LoraNode& lora, Node* node) {
    const auto rounded = [&](int64_t cols) {
      return engine::RowStride(p_->dtype, cols) *
             static_cast<int64_t>(engine::DTypeBytes(p_->dtype));
    };
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    node->lora = lora;
    const int64_t rank = p_->weight_specs[lora.a].n;
    const int64_t inputs = p_->weight_specs[lora.a].k;
    const int64_t rows = Rows(node->inputs[0]);
    node->saved = NewBuffer("lora h", rows * rounded(rank));
    node->lora.backward_scratch = NewBuffer("lora dh", rows * (rank * kFloat + rounded(rank)));
    if (lora.factors >= 0) {
      node->lora.dora_scratch =
          NewBuffer("dora product", rows * p_->weight_specs[lora.b].n * kFloat);
    }
    if (lora.rate == 0) return;
    node->lora.forward_scratch = NewBuffer("lora dropped x", rows * rounded(inputs));
    node->lora.dropout_scratch =
        NewBuffer("lora dropped x, dx", rows * std::max(inputs * kFloat, rounded(inputs)));
  }

  void AddTableAdapter(const LoraNode& lora, int64_t cols, Node* node) {
    node->lora = lora;
    const int64_t rank = p_->weight_specs[lora.a].k;
    const int64_t stride = engine::RowStride(p_->dtype, rank);
    node->saved = NewBuffer(
        "lora h", p_->rows * stride * static_cast<int64_t>(engine::DTypeBytes(p_->dtype)));
    node->backward_scratch = RoundedGradientScratch(p_->rows, cols);
    node->lora.backward_scratch =
        NewBuffer("lora dh", p_->rows * rank * static_cast<int64_t>(sizeof(float)));
  }

  void AddExpertAdapters(std::span<const Weight> experts, int64_t input_cols, Node* node) {
    ExpertsNode& into = node->experts;
    for (size_t e = 0; e < experts.size(); ++e) {
      const auto found = lora_.find(experts[e].index);
      if (found == lora_.end()) continue;
      into.lora.resize(experts.size());
      into.lora[e] = found->second;
      into.lora_rank = std::max(into.lora_rank, p_->weight_specs[found->second.a].n);
      node->lora.rate = found->second.rate;
    }
    if (into.lora.empty()) return;
    const auto width = static_cast<int64_t>(engine::DTypeBytes(p_->dtype));
    node->saved = NewBuffer(
        "lora h", p_->rows * into.top_k * engine::RowStride(p_->dtype, into.lora_rank) * width);
    if (node->lora.rate == 0) return;
    const int64_t dropped = engine::RowStride(p_->dtype, input_cols) * width;
    node->lora.forward_scratch = NewBuffer("lora dropped x", p_->rows * dropped);
    node->lora.dropout_scratch =
        NewBuffer("lora dropped x, dx", p_->rows * ExpertDropoutBytes(p_->dtype, input_cols));
  }

  int64_t Cols(Act x) const { return p_->values[x.index].cols; }
  int64_t Rows(int32_t value) const { return RowsOf(*p_, p_->values[value]); }

  // With f32 compute a value "in the compute dtype" is f32 too; its rows are dense (see Emit).
  int32_t F32(Act x) const {
    TANDEM_CHECK(p_->values[x.index].dtype == DType::kF32);
    return x.index;
  }

  int32_t Rounded(Act x) {
    if (p_->values[x.index].dtype == p_->dtype) return x.index;
    if (const auto it = rounded_.find(x.index); it != rounded_.end()) return it->second;
    Node node(OpKind::kRound);
    node.inputs = {x.index};
    const Act y = Emit(std::move(node), p_->dtype, Cols(x));
    rounded_[x.index] = y.index;
    return y.index;
  }

  int32_t NewBuffer(std::string role, int64_t bytes) {
    Buffer buffer;
    buffer.role = std::move(role);
    buffer.bytes = bytes;
    p_->buffers.push_back(std::move(buffer));
    return static_cast<int32_t>(p_->buffers.size()) - 1;
  }

  // dY enters two matrix products and is therefore rounded like their other inputs.
  int32_t RoundedGradientScratch(int64_t rows, int64_t cols) {
    if (p_->dtype == DType::kF32) return -1;
    return NewBuffer("rounded dy", rows * engine::RowStride(p_->dtype, cols) *
                                       static_cast<int64_t>(engine::DTypeBytes(p_->dtype)));
  }

  Act Emit(Node node, DType dtype, int64_t cols) {
    Value value;
    value.dtype = dtype;
    value.cols = cols;
    value.stride = engine::RowStride(dtype, cols);
    value.divided = Divides(node);
    node.divided = value.divided && node.op != OpKind::kSumRanks;
    TANDEM_CHECK(dtype != DType::kF32 || value.stride == cols);
    const auto index = static_cast<int32_t>(p_->values.size());
    value.buffer = NewBuffer(
        "value " + std::to_string(index),
        RowsOf(*p_, value) * value.stride * static_cast<int64_t>(engine::DTypeBytes(dtype)));
    value.producer = static_cast<int32_t>(p_->nodes.size());
    node.outputs = {index};
    node.passing = passing_;
    if (node.op == OpKind::kSpread || node.op == OpKind::kSumRanks) ++passing_;
    p_->values.push_back(value);
    if (region_.is_split()) region_.Take(&node);
    p_->nodes.push_back(std::move(node));
    return Act{index};
  }

  Program* p_;
  float neftune_alpha_;
  std::map<int32_t, int32_t> rounded_;  // f32 value -> its rounded copy
  std::map<int32_t, int32_t> spread_;   // whole value -> its spread one
  std::map<int32_t, LoraNode> lora_;    // by weight; not the head's
  LoraNode head_lora_;
  std::map<int32_t, int32_t> own_;  // weight -> the adapter's copy; not of the head's matrix
  int32_t own_head_ = -1;
  TensorRegion region_;
  int32_t passing_ = 0;
};

// Weights with specs only, which suffice for recording a forward pass.
engine::Weights NamesOnly(const std::vector<engine::WeightSpec>& specs) {
  engine::Weights weights(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    weights[i].index = static_cast<int32_t>(i);
    weights[i].spec = &specs[i];
  }
  return weights;
}

void RefuseLossWithoutRouters(const Program& program) {
  const RouterLossOptions& loss = program.router_loss;
  if (loss.balance == 0 && loss.z == 0) return;
  const bool routes = std::any_of(program.nodes.begin(), program.nodes.end(),
                                  [](const Node& node) { return node.op == OpKind::kRoute; });
  if (routes) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(loss.balance != 0 ? "train.router_aux_loss" : "train.router_z_loss") +
                  ": family " + program.family + " has no experts: leave the key out");
}

// Describes how the program's weights are parts of those of the whole model.
void SplitWeights(const engine::FamilySpec& family, const engine::ModelConfig& whole,
                  const RecordOptions& options, Program* program) {
  for (const LoraTarget& target : options.lora) {
    if (target.form == LoraForm::kLinear) continue;
    RefuseTensorSplit(options.tensor, program->family,
                      "lora.use_dora, lora.embeddings or lora.modules_to_save gives its adapter "
                      "more than A and B of layers");
  }
  std::vector<engine::WeightSpec> specs = family.list_weights(whole);
  const std::vector<engine::WeightSpec> adapters = LoraSpecs(specs, options.lora);
  specs.insert(specs.end(), adapters.begin(), adapters.end());
  program->tensor =
      CompareSpecs(program->family, std::move(specs), program->weight_specs, options.tensor);
}

void CheckRows(const RecordOptions& options) {
  TANDEM_CHECK(options.rows > 0 && options.row_length > 0 &&
               options.rows % options.row_length == 0);
  if (!options.tensor.divides_rows || options.rows % options.tensor.size == 0) return;
  const std::string size = std::to_string(options.tensor.size);
  throw Error(ErrorCode::kInvalidArgument,
              std::string(TensorKey(true)) + ": " + size + " ranks cannot divide the " +
                  std::to_string(options.rows) +
                  " tokens of a micro-batch equally: choose data.max_target_length or "
                  "train.per_device_batch_size so that their product is a multiple of " +
                  size);
}

// Rows of all ranks are gathered again for the backward pass instead of kept.
void DropGathered(const Program& program, std::vector<bool>* dropped) {
  for (const Node& node : program.nodes) {
    if (node.op != OpKind::kSpread || !program.values[node.inputs[0]].divided) continue;
    (*dropped)[static_cast<size_t>(node.outputs[0])] = true;
  }
}

}  // namespace

Program Record(const engine::FamilySpec& family, const engine::ModelConfig& whole,
               const RecordOptions& options) {
  const bool is_split = options.tensor.size > 1;
  const engine::ModelConfig config = is_split ? PartOfConfig(family, whole, options.tensor) : whole;
  CheckRows(options);

  Program program;
  program.family = std::string(family.name);
  program.dtype = options.dtype;
  program.rows = options.rows;
  program.row_length = options.row_length;
  program.max_segments = options.max_segments;
  program.head_twice = options.head_twice;
  program.router_loss = options.router_loss;
  program.z_loss = options.z_loss;
  program.weight_specs = family.list_weights(config);
  program.trained = options.trained;
  if (program.trained.empty()) {
    program.trained.assign(program.weight_specs.size(), options.lora.empty());
  } else {
    TANDEM_CHECK(options.lora.empty());
  }
  TANDEM_CHECK(program.trained.size() == program.weight_specs.size());
  const std::vector<engine::WeightSpec> base = program.weight_specs;
  for (engine::WeightSpec& spec : FactorSpecs(base, options.lora)) {
    program.weight_specs.push_back(std::move(spec));
    program.trained.push_back(false);
  }
  for (engine::WeightSpec& spec : LoraSpecs(base, options.lora)) {
    program.weight_specs.push_back(std::move(spec));
    program.trained.push_back(true);
  }

  if (is_split) SplitWeights(family, whole, options, &program);
  const engine::Weights weights = NamesOnly(base);
  Recorder recorder(&program, config, options.lora, options);
  family.forward(config, weights, recorder);
  TANDEM_CHECK(!program.nodes.empty() && program.nodes.back().op == OpKind::kCrossEntropy);
  if (is_split) FindRuns(&program);

  RefuseLossWithoutRouters(program);
  if (options.remat.seq_chunk > 0) ChunkFeedForward(&program, options.remat.seq_chunk);
  AppendBackward(&program);
  std::vector<bool> dropped = SaveActivations(&program, options.remat.save);
  DropGathered(program, &dropped);
  Rematerialize(&program, options.remat, dropped);
  AssignArena(&program);
  return program;
}

}  // namespace tandem::training
