#include "engine/model/plan_ops.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <utility>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

// Rows begin at cache lines, for any number of rows.
constexpr int64_t kSlotAlignment = 64;

class PlanOps final : public LayerOps {
 public:
  PlanOps(const ModelConfig& config, DType dtype) : config_(config) { plan_.dtype = dtype; }

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
  Act LayerNorm(Act x, const Weight& gamma, const Weight& beta, float) override {
    Begin("LayerNorm", {x}, &gamma);
    TANDEM_CHECK(gamma.spec->n == ReadF32(x) && beta.spec->n == gamma.spec->n);
    return Output(gamma.spec->n, DType::kF32);
  }
  Act Linear(Act x, const Weight& w, const Weight* bias) override {
    Begin("Linear", {x}, &w);
    TANDEM_CHECK(w.spec->k == ReadRounded(x));
    TANDEM_CHECK(bias == nullptr || bias->spec->n == w.spec->n);
    plan_.linear_flops_per_row += 2 * w.spec->n * w.spec->k;
    return Output(w.spec->n, DType::kF32);
  }
  Act Rope(Act x, size_t) override {
    Begin("Rope", {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(cols % config_.attention.head_dim == 0);
    return Output(cols, plan_.dtype);
  }
  Act Attention(Act q, Act k, Act v, const AttentionSpec& spec, int64_t layer) override {
    Begin("Attention", {q, k, v}, nullptr);
    plan_.ops.back().layer = layer;
    plan_.last_attention_op = op();
    TANDEM_CHECK(ReadRounded(q) == spec.n_heads * spec.head_dim);
    TANDEM_CHECK(ReadRounded(k) == spec.n_kv_heads * spec.head_dim);
    TANDEM_CHECK(ReadRounded(v) == spec.n_kv_heads * spec.head_dim);
    plan_.attention_flops_per_row_and_key += 4 * spec.n_heads * spec.head_dim;
    return Output(spec.n_heads * spec.head_dim, plan_.dtype);
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
    Begin("Columns", {x}, nullptr);
    const int64_t cols = ReadF32(x);
    TANDEM_CHECK(first >= 0 && count > 0 && first + count <= cols);
    return Output(count, plan_.dtype);
  }
  Act Add(Act a, Act b) override {
    Begin("Add", {a, b}, nullptr);
    const int64_t cols = ReadF32(a);
    TANDEM_CHECK(cols == ReadF32(b));
    return Output(cols, DType::kF32);
  }
  Act Scale(Act x, float) override {
    Begin("Scale", {x}, nullptr);
    return Output(ReadF32(x), DType::kF32);
  }
  Act Dropout(Act x, float) override { return x; }
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

  void Begin(const char* name, std::initializer_list<Act> inputs, const Weight* weight) {
    TANDEM_CHECK(!finished_);
    ForwardPlan::Op& planned = plan_.ops.emplace_back();
    planned.name = name;
    for (const Act input : inputs) {
      TANDEM_CHECK(input.index >= 0 && static_cast<size_t>(input.index) < plan_.activations.size());
      planned.inputs.push_back(input.index);
    }
    if (weight != nullptr) planned.weight = weight->index;
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
  PlanOps ops(config, dtype);
  family.forward(config, BarrenWeights(specs, dtype), ops);
  return ops.Finish();
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
    text << "\n";
  }
  text << "arena: " << arena_bytes_per_row
       << " bytes per row; linear layers: " << linear_flops_per_row
       << " FLOPs per row; head: " << head_flops_per_row
       << " FLOPs per logit row; attention: " << attention_flops_per_row_and_key
       << " FLOPs per row and key\n";
  return text.str();
}

}  // namespace tandem::engine
