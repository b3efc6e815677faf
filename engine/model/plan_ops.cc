#include "engine/model/plan_ops.h"

#include <algorithm>
#include <initializer_list>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/model_limits.h"
#include "engine/ops/row_mix.h"

namespace tandem::engine {
namespace {

// Rows begin at cache lines, for any number of rows.
constexpr int64_t kSlotAlignment = 64;

class PlanOps final : public LayerOps {
 public:
  PlanOps(const ModelConfig& config, const std::vector<RopeSpec>& ropes, DType dtype)
      : config_(config), ropes_(ropes) {
    plan_.dtype = dtype;
  }

  Act Embed(const Weight& table) override {
    Begin("Embed", {}, &table);
    return Output(table.spec->k, DType::kF32);
  }
  Act EmbedPositions(const Weight& table) override {
    Begin("EmbedPositions", {}, &table);
    return Output(table.spec->k, DType::kF32);
  }
  Act RmsNorm(Act x, const Weight& gamma, float) override {
    Begin("RmsNorm", {x}, &gamma);
    TANDEM_CHECK(gamma.spec->n == ReadF32(x));
    return Output(gamma.spec->n, plan_.dtype);
  }
  Act RmsNormF32(Act x, const Weight& gamma, float) override {
    Begin("RmsNormF32", {x}, &gamma);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(cols % gamma.spec->n == 0);
    return Output(cols, DType::kF32);
  }
  Act PlainRmsNorm(Act x, int64_t length, float) override {
    Begin("PlainRmsNorm", {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(length > 0 && cols % length == 0);
    return Output(cols, DType::kF32);
  }
  Act SliceHeads(Act x, int64_t n_heads, int64_t first, int64_t count) override {
    Begin("SliceHeads", {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(n_heads > 0 && cols % n_heads == 0);
    TANDEM_CHECK(first >= 0 && count > 0 && first + count <= cols / n_heads);
    return Output(n_heads * count, DType::kF32);
  }
  Act JoinHeads(Act a, Act b, int64_t n_heads, int64_t b_dim) override {
    Begin("JoinHeads", {a, b}, nullptr);
    const int64_t a_cols = ReadF32(a), b_cols = ReadF32(b);
    TANDEM_CHECK(n_heads > 0 && a_cols % n_heads == 0);
    TANDEM_CHECK(b_dim > 0 && (b_cols == b_dim || b_cols == n_heads * b_dim));
    return Output(a_cols + n_heads * b_dim, DType::kF32);
  }
  Act ScaleBy(Act x, const Weight& factor) override {
    Begin("ScaleBy", {x}, &factor);
    TANDEM_CHECK(factor.spec->n == 1);
    return Output(ReadF32(x), DType::kF32);
  }
  Act LayerNorm(Act x, const Weight* gamma, const Weight* beta, float) override {
    Begin("LayerNorm", {x}, gamma);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(gamma == nullptr || gamma->spec->n == cols);
    TANDEM_CHECK(beta == nullptr || (gamma != nullptr && beta->spec->n == cols));
    return Output(cols, DType::kF32);
  }
  Act Linear(Act x, const Weight& w, const Weight* bias) override {
    Begin("Linear", {x}, &w);
    TANDEM_CHECK(w.spec->k == ReadRounded(x));
    TANDEM_CHECK(bias == nullptr || bias->spec->n == w.spec->n);
    plan_.linear_flops_per_row += 2 * w.spec->n * w.spec->k;
    return Output(w.spec->n, DType::kF32);
  }
  Act Rope(Act x, size_t table) override { return Rotate("Rope", x, table, plan_.dtype); }
  Act RopeF32(Act x, size_t table) override { return Rotate("RopeF32", x, table, DType::kF32); }
  Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer,
                const Weight* sinks) override {
    const bool writes_keys = AddKvLayer(spec, layer);
    if (writes_keys) {
      Begin("Attention", {q, k, v}, sinks);
      TANDEM_CHECK(ReadRounded(k) == spec.n_kv_heads * spec.head_dim);
      TANDEM_CHECK(ReadRounded(v) == spec.n_kv_heads * spec.value_dim());
    } else {
      Begin("Attention", {q}, sinks);  // k and v need not live until here
    }
    TANDEM_CHECK(sinks == nullptr || sinks->spec->n == spec.n_heads);
    plan_.ops.back().layer = layer;
    plan_.ops.back().writes_keys = writes_keys;
    plan_.last_attention_op = op();
    TANDEM_CHECK(ReadRounded(q) == spec.n_heads * spec.head_dim);
    plan_.attention_flops_per_row_and_key += 2 * spec.n_heads * (spec.head_dim + spec.value_dim());
    return Output(spec.n_heads * spec.value_dim(), plan_.dtype);
  }
  Act GatedActivation(Act gate, Act up, Activation) override {
    Begin("GatedActivation", {gate, up}, nullptr);
    const int64_t cols = ReadF32(gate);
    TANDEM_CHECK(cols == ReadF32(up));
    return Output(cols, plan_.dtype);
  }
  Act Activate(Act x, Activation) override {
    Begin("Activate", {x}, nullptr);
    return Output(ReadF32(x), plan_.dtype);
  }
  Act Columns(Act x, int64_t first, int64_t count) override {
    return Slice("Columns", x, first, count, plan_.dtype);
  }
  Act ColumnsF32(Act x, int64_t first, int64_t count) override {
    return Slice("ColumnsF32", x, first, count, DType::kF32);
  }
  Act Route(Act logits, const Weight* selection_bias, const RouterSpec& spec) override {
    Begin("Route", {logits}, selection_bias);
    CheckRouter(spec);
    TANDEM_CHECK(ReadF32(logits) == spec.n_experts);
    TANDEM_CHECK(selection_bias == nullptr || selection_bias->spec->n == spec.n_experts);
    return Output(2 * spec.top_k, DType::kF32);
  }
  Act ExpertLinear(Act x, Act routing, std::span<const Weight> experts,
                   std::span<const Weight> biases) override {
    TANDEM_CHECK(!experts.empty() && (biases.empty() || biases.size() == experts.size()));
    Begin("ExpertLinear", {x, routing}, &experts.front());
    const int64_t n = experts.front().spec->n, k = experts.front().spec->k;
    for (const Weight& w : experts) TANDEM_CHECK(w.spec->n == n && w.spec->k == k);
    for (const Weight& bias : biases) TANDEM_CHECK(bias.spec->n == n);
    const int64_t top_k = ReadF32(routing) / 2;
    const int64_t cols = ReadRounded(x);
    TANDEM_CHECK(cols == k || cols == top_k * k);
    plan_.ops.back().n_experts = static_cast<int64_t>(experts.size());
    plan_.ops.back().top_k = top_k;
    plan_.ops.back().k = k;
    plan_.linear_flops_per_row += 2 * top_k * n * k;
    return Output(top_k * n, DType::kF32);
  }
  Act Combine(Act y, Act routing) override {
    Begin("Combine", {y, routing}, nullptr);
    const int64_t top_k = ReadF32(routing) / 2, cols = ReadF32(y);
    TANDEM_CHECK(cols % top_k == 0);
    return Output(cols / top_k, DType::kF32);
  }
  Act ScaleExperts(Act routing, const Weight& scales) override {
    Begin("ScaleExperts", {routing}, &scales);
    return Output(ReadF32(routing), DType::kF32);
  }
  Act Mix(std::span<const Act> xs, Act weights, int64_t first, float) override {
    Begin("Mix", xs, nullptr);
    TANDEM_CHECK(!xs.empty() && xs.size() <= kMaxMixed);
    plan_.ops.back().inputs.push_back(weights.index);
    const int64_t count = static_cast<int64_t>(xs.size());
    TANDEM_CHECK(first >= 0 && first + count <= ReadF32(weights));
    const int64_t cols = ReadF32(xs[0]);
    for (const Act x : xs) TANDEM_CHECK(ReadF32(x) == cols);
    return Output(cols, DType::kF32);
  }
  Act MatchMagnitude(Act x, Act like, float) override {
    return Pairwise("MatchMagnitude", x, like);
  }
  Act AboveCut(Act x, float) override {
    Begin("AboveCut", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act ScaleColumns(Act x, const Weight& w) override {
    Begin("ScaleColumns", {x}, &w);
    TANDEM_CHECK(w.spec->n == ReadF32(x));
    return Output(w.spec->n, DType::kF32);
  }
  Act SoftCap(Act x, float) override {
    Begin("SoftCap", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act Add(Act a, Act b) override { return Pairwise("Add", a, b); }
  Act Mul(Act a, Act b) override { return Pairwise("Mul", a, b); }
  Act Sigmoid(Act x) override {
    Begin("Sigmoid", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act Clamp(Act x, float) override {
    Begin("Clamp", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act Scale(Act x, float) override {
    Begin("Scale", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act Dropout(Act x, float) override { return x; }
  Act CausalConv(Act x, const Weight& w, const Weight* bias, const ConvSpec& spec) override {
    Begin("CausalConv", {x}, &w);
    TANDEM_CHECK(spec.kernel >= 1 && spec.kernel <= kMaxConvKernel);
    TANDEM_CHECK(ReadF32(x) == spec.inputs() && w.spec->n == spec.channels * spec.kernel);
    TANDEM_CHECK(bias == nullptr || bias->spec->n == spec.channels);
    KeepState(spec.state_floats());
    return Output(spec.channels, DType::kF32);
  }
  Act GatedDelta(Act qkv, Act a, Act b, const Weight& a_log, const Weight& dt_bias,
                 const DeltaSpec& spec) override {
    Begin("GatedDelta", {qkv, a, b}, &a_log);
    TANDEM_CHECK(spec.n_v_heads % spec.n_k_heads == 0 && spec.k_dim <= kMaxStateKey);
    TANDEM_CHECK(ReadF32(qkv) == spec.inputs());
    TANDEM_CHECK(ReadF32(a) == spec.n_v_heads && ReadF32(b) == spec.n_v_heads);
    TANDEM_CHECK(a_log.spec->n == spec.n_v_heads && dt_bias.spec->n == spec.n_v_heads);
    KeepState(spec.state_floats());
    return Output(spec.outputs(), DType::kF32);
  }
  Act SelectiveScan(Act xbc, Act dt, const Weight& a_log, const Weight& dt_bias, const Weight& d,
                    const ScanSpec& spec) override {
    Begin("SelectiveScan", {xbc, dt}, &a_log);
    TANDEM_CHECK(spec.n_heads % spec.n_groups == 0);
    TANDEM_CHECK(ReadF32(xbc) == spec.inputs() && ReadF32(dt) == spec.n_heads);
    TANDEM_CHECK(a_log.spec->n == spec.n_heads && dt_bias.spec->n == spec.n_heads &&
                 d.spec->n == spec.n_heads);
    KeepState(spec.state_floats());
    return Output(spec.outputs(), DType::kF32);
  }
  Act Gate(Act x, Act gate, GateForm) override {
    Begin("Gate", {x, gate}, nullptr);
    const int64_t cols = Read(x);
    TANDEM_CHECK(cols == ReadF32(gate));
    return Output(cols, DType::kF32);
  }
  void Logits(Act x, const Weight& head, const Weight* bias, float) override {
    Begin("Logits", {x}, &head);
    TANDEM_CHECK(head.spec->k == ReadRounded(x));
    TANDEM_CHECK(bias == nullptr || bias->spec->n == head.spec->n);
    plan_.head_flops_per_row = 2 * head.spec->n * head.spec->k;
    plan_.vocab_size = head.spec->n;
    finished_ = true;
  }

  ForwardPlan Finish() {
    TANDEM_CHECK(finished_ && plan_.last_attention_op >= 0);
    PlaceActivations();
    return std::move(plan_);
  }

 private:
  int32_t op() const { return static_cast<int32_t>(plan_.ops.size()) - 1; }

  // Returns false if an earlier op of this pass wrote the layer's keys.
  bool AddKvLayer(const AttentionSpec& spec, int64_t layer) {
    TANDEM_CHECK(layer >= 0 && layer < kMaxModelLayers && spec.n_kv_heads > 0);
    const auto n_layers = std::max(plan_.kv_layers.size(), static_cast<size_t>(layer) + 1);
    plan_.kv_layers.resize(n_layers);
    AttentionSpec& kept = plan_.kv_layers[static_cast<size_t>(layer)];
    if (kept.n_kv_heads == 0) {
      kept = spec;
      return true;
    }
    TANDEM_CHECK(kept.n_kv_heads == spec.n_kv_heads && kept.head_dim == spec.head_dim &&
                 kept.value_dim() == spec.value_dim());
    // The cache keeps what the op with the farthest sight reads.
    kept.window = kept.window == 0 || spec.window == 0 ? 0 : std::max(kept.window, spec.window);
    return false;
  }

  void Begin(const char* name, std::initializer_list<Act> inputs, const Weight* weight) {
    Begin(name, std::span(inputs.begin(), inputs.size()), weight);
  }
  void Begin(const char* name, std::span<const Act> inputs, const Weight* weight) {
    TANDEM_CHECK(!finished_);
    ForwardPlan::Op& planned = plan_.ops.emplace_back();
    planned.name = name;
    for (const Act input : inputs) {
      TANDEM_CHECK(input.index >= 0 && static_cast<size_t>(input.index) < plan_.activations.size());
      planned.inputs.push_back(input.index);
    }
    if (weight != nullptr) planned.weight = weight->index;
  }

  // The op keeps `n` floats per sequence from one step to the next. Later rows depend on it.
  void KeepState(int64_t n) {
    plan_.ops.back().state_offset = plan_.state_floats;
    // A convolution of one tap keeps nothing, but the rows of its step come with the states.
    const int64_t kept = RoundUp<int64_t>(std::max<int64_t>(n, 1), 16);
    plan_.state_floats = CheckedAdd(plan_.state_floats, kept, "layer states");
    plan_.last_attention_op = op();
  }

  // A value in its own dtype.
  int64_t Read(Act x) {
    ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(x.index)];
    a.last_op = op();
    return a.cols;
  }

  Act Rotate(const char* name, Act x, size_t table, DType dtype) {
    Begin(name, {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(table < ropes_.size() && cols % ropes_[table].head_dim == 0);
    return Output(cols, dtype);
  }

  Act Slice(const char* name, Act x, int64_t first, int64_t count, DType dtype) {
    Begin(name, {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(first >= 0 && count > 0 && first + count <= cols);
    return Output(count, dtype);
  }

  Act Pairwise(const char* name, Act a, Act b) {
    Begin(name, {a, b}, nullptr);
    const int64_t cols = ReadF32(a);
    TANDEM_CHECK(cols == ReadF32(b));
    return Output(cols, DType::kF32);
  }

  int64_t ReadF32(Act x) {
    ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(x.index)];
    TANDEM_CHECK(a.dtype == DType::kF32);
    a.last_op = op();
    return a.cols;
  }

  int64_t ReadRounded(Act x) {
    ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(x.index)];
    if (a.dtype == plan_.dtype) {
      a.last_op = op();
      return a.cols;
    }
    if (a.rounded_first_op < 0) {
      a.last_op = op();
      a.rounded_first_op = op();
      a.rounded_stride = RowStride(plan_.dtype, a.cols);
      a.rounded.bytes = SlotBytes(a.rounded_stride, plan_.dtype);
    }
    a.rounded_last_op = op();
    return a.cols;
  }

  Act Output(int64_t cols, DType dtype) {
    const Act act{static_cast<int32_t>(plan_.activations.size())};
    ForwardPlan::Activation& a = plan_.activations.emplace_back();
    a.cols = cols;
    a.dtype = dtype;
    a.stride = RowStride(dtype, cols);
    a.slot.bytes = SlotBytes(a.stride, dtype);
    a.first_op = op();
    a.last_op = op();
    plan_.ops.back().output = act.index;
    return act;
  }

  static int64_t SlotBytes(int64_t stride, DType dtype) {
    return RoundUp(stride * static_cast<int64_t>(DTypeBytes(dtype)), kSlotAlignment);
  }

  // First fit in order of first use. Few activations live at a time, so a scan is fine.
  void PlaceActivations() {
    struct Living {
      ForwardPlan::Slot slot;
      int32_t last_op;
    };
    std::vector<Living> living;  // by offset
    const auto place = [&](ForwardPlan::Slot& slot, int32_t last_op) {
      int64_t offset = 0;
      auto before = living.begin();
      while (before != living.end() && before->slot.offset < offset + slot.bytes) {
        offset = before->slot.offset + before->slot.bytes;
        ++before;
      }
      slot.offset = offset;
      living.insert(before, {slot, last_op});
      plan_.arena_bytes_per_row = std::max(plan_.arena_bytes_per_row, offset + slot.bytes);
    };
    for (int32_t i = 0; i <= op(); ++i) {
      const ForwardPlan::Op& planned = plan_.ops[static_cast<size_t>(i)];
      for (const int32_t input : planned.inputs) {
        ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(input)];
        if (a.rounded_first_op == i && a.rounded.offset < 0) place(a.rounded, a.rounded_last_op);
      }
      if (planned.output >= 0) {
        ForwardPlan::Activation& a = plan_.activations[static_cast<size_t>(planned.output)];
        place(a.slot, a.last_op);
      }
      std::erase_if(living, [i](const Living& one) { return one.last_op <= i; });
    }
  }

  const ModelConfig& config_;
  const std::vector<RopeSpec> ropes_;
  ForwardPlan plan_;
  bool finished_ = false;
};

// Weights with shapes but without bytes.
Weights BarrenWeights(const std::vector<WeightSpec>& specs, DType dtype) {
  Weights weights(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    weights[i].index = static_cast<int32_t>(i);
    weights[i].spec = &specs[i];
    weights[i].panels = {.panels = nullptr, .dtype = dtype, .n = specs[i].n, .k = specs[i].k};
  }
  return weights;
}

}  // namespace

ForwardPlan PlanForward(const FamilySpec& family, const ModelConfig& config,
                        const std::vector<WeightSpec>& specs, DType dtype) {
  PlanOps ops(config, FamilyRopes(family, config), dtype);
  family.forward(config, BarrenWeights(specs, dtype), ops);
  return ops.Finish();
}

ScratchBytes ForwardPlan::ExpertScratch(int64_t rows) const {
  ScratchBytes most;
  for (const Op& op : ops) {
    if (op.n_experts == 0) continue;
    const ScratchBytes here = engine::ExpertScratch(dtype, rows, op.top_k, op.n_experts, op.k);
    most.shared = std::max(most.shared, here.shared);
    most.worker = std::max(most.worker, here.worker);
  }
  return most;
}

std::vector<double> ForwardPlan::ActiveShares(size_t n_weights) const {
  // Several ops may read the same experts, one for each slot.
  std::vector<double> of_experts(n_weights, 0.0);
  for (const Op& op : ops) {
    if (op.n_experts == 0) continue;
    const double share = static_cast<double>(op.top_k) / static_cast<double>(op.n_experts);
    const auto first = of_experts.begin() + op.weight;
    for (auto expert = first; expert != first + op.n_experts; ++expert) *expert += share;
  }
  std::vector<double> shares;
  for (const double share : of_experts) shares.push_back(share > 0 ? std::min(1.0, share) : 1.0);
  return shares;
}

std::vector<int32_t> ForwardPlan::Routers() const {
  std::vector<int32_t> weights;
  for (const Op& route : ops) {
    const std::string_view name = route.name;
    if (name != "Route" && name != "Mix" && name != "SoftCap") continue;
    const int32_t read = name == "Mix" ? route.inputs.back() : route.inputs.front();
    for (const Op& linear : ops) {
      if (linear.output == read && std::string_view(linear.name) == "Linear") {
        weights.push_back(linear.weight);
      }
    }
  }
  return weights;
}

std::string ForwardPlan::ToString(const std::vector<WeightSpec>& specs) const {
  std::ostringstream text;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    text << i << " ";
    if (op.output >= 0) {
      const Activation& a = activations[static_cast<size_t>(op.output)];
      text << "%" << op.output << " [rows, " << a.cols << "] " << DTypeName(a.dtype) << " @"
           << a.slot.offset << " until " << a.last_op << " = ";
    }
    text << op.name << "(";
    const char* separator = "";
    for (const int32_t input : op.inputs) {
      text << separator << "%" << input;
      separator = ", ";
    }
    if (op.weight >= 0) text << separator << specs[static_cast<size_t>(op.weight)].name;
    text << ")";
    if (op.layer >= 0) text << " layer " << op.layer;
    if (op.state_offset >= 0) text << " state +" << op.state_offset;
    if (op.n_experts > 0) text << " " << op.top_k << " of " << op.n_experts << " experts";
    text << "\n";
  }
  text << "arena: " << arena_bytes_per_row
       << " bytes per row; linear layers: " << linear_flops_per_row
       << " FLOPs per row; head: " << head_flops_per_row
       << " FLOPs per logit row; attention: " << attention_flops_per_row_and_key
       << " FLOPs per row and key";
  if (state_floats > 0) text << "; state: " << state_floats << " floats per sequence";
  text << "\n";
  return text.str();
}

}  // namespace tandem::engine
