#include <algorithm>
#include <map>

#include "engine/adapter/lora_adapter.h"
#include "engine/base/check.h"
#include "engine/model/adapter.h"
#include "engine/model/families/layer_ops.h"
#include "training/ops/attention.h"
#include "training/program/passes.h"
#include "training/program/program.h"

namespace tandem::training {
namespace {

using engine::Act;
using engine::DType;
using engine::Weight;

// Records a family's operations as nodes. When an op needs the compute dtype and its operand is
// f32, inserts a kRound node, once per value, exactly where ServingOps rounds.
class Recorder : public engine::LayerOps {
 public:
  Recorder(Program* program, const std::vector<LoraTarget>& targets, float lora_dropout)
      : p_(program) {
    auto next = static_cast<int32_t>(p_->weight_specs.size() - 2 * targets.size());
    for (const LoraTarget& target : targets) {
      LoraNode& lora = lora_[target.weight];
      lora.a = next++;
      lora.b = next++;
      lora.scale = target.scale;
      lora.rate = lora_dropout;
    }
  }

  Act Embed(const Weight& table) override {
    Node node(OpKind::kEmbed);
    node.weights = {table.index};
    return Emit(std::move(node), DType::kF32, table.spec->k);
  }

  Act EmbedPositions(const Weight& table) override {
    Node node(OpKind::kEmbedPositions);
    node.weights = {table.index};
    return Emit(std::move(node), DType::kF32, table.spec->k);
  }

  Act RmsNorm(Act x, const Weight& gamma, float eps) override {
    Node node(OpKind::kRmsNorm);
    node.inputs = {F32(x)};
    node.weights = {gamma.index};
    node.eps = eps;
    node.saved = NewBuffer("rstd", p_->rows * sizeof(float));
    return Emit(std::move(node), p_->dtype, Cols(x));
  }

  // The same node as RmsNorm; its output's dtype distinguishes the two.
  Act RmsNormF32(Act x, const Weight& gamma, float eps) override {
    TANDEM_CHECK(Cols(x) % gamma.spec->n == 0);
    Node node(OpKind::kRmsNorm);
    node.inputs = {F32(x)};
    node.weights = {gamma.index};
    node.eps = eps;
    node.saved = NewBuffer(
        "rstd", p_->rows * (Cols(x) / gamma.spec->n) * static_cast<int64_t>(sizeof(float)));
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act LayerNorm(Act x, const Weight& gamma, const Weight& beta, float eps) override {
    Node node(OpKind::kLayerNorm);
    node.inputs = {F32(x)};
    node.weights = {gamma.index, beta.index};
    node.eps = eps;
    node.saved = NewBuffer("mean_rstd", p_->rows * 2 * sizeof(float));
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act Linear(Act x, const Weight& w, const Weight* bias) override {
    Node node(OpKind::kLinear);
    node.inputs = {Rounded(x)};
    node.weights = {w.index};
    if (bias != nullptr) node.weights.push_back(bias->index);
    node.backward_scratch = RoundedGradientScratch(w.spec->n);
    if (const auto found = lora_.find(w.index); found != lora_.end()) {
      AddAdapter(found->second, &node);
    }
    return Emit(std::move(node), DType::kF32, w.spec->n);
  }

  Act Rope(Act x, size_t table) override {
    Node node(OpKind::kRope);
    node.inputs = {F32(x)};
    node.rope = table;
    return Emit(std::move(node), p_->dtype, Cols(x));
  }

  Act Attention(Act q, Act k, Act v, const engine::AttentionSpec& spec, int64_t) override {
    Node node(OpKind::kAttention);
    node.inputs = {Rounded(q), Rounded(k), Rounded(v)};
    node.attention = spec;
    node.saved = NewBuffer("lse", p_->rows * spec.n_heads * sizeof(float));
    node.forward_scratch =
        NewBuffer("kv blocks", AttentionScratchBytes(spec, p_->dtype, p_->rows, p_->max_segments));
    return Emit(std::move(node), p_->dtype, spec.n_heads * spec.head_dim);
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
    TANDEM_CHECK(first >= 0 && first + count <= Cols(x));
    Node node(OpKind::kColumns);
    node.inputs = {F32(x)};
    node.first = first;
    return Emit(std::move(node), p_->dtype, count);
  }

  Act Add(Act a, Act b) override {
    TANDEM_CHECK(Cols(a) == Cols(b));
    Node node(OpKind::kAdd);
    node.inputs = {F32(a), F32(b)};
    return Emit(std::move(node), DType::kF32, Cols(a));
  }

  Act Scale(Act x, float factor) override {
    Node node(OpKind::kScale);
    node.inputs = {F32(x)};
    node.factor = factor;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  Act Dropout(Act x, float rate) override {
    if (rate == 0) return x;
    Node node(OpKind::kDropout);
    node.inputs = {F32(x)};
    node.rate = rate;
    return Emit(std::move(node), DType::kF32, Cols(x));
  }

  void Logits(Act x, const Weight& head, const Weight* bias, float soft_cap) override {
    Node node(OpKind::kCrossEntropy);
    node.soft_cap = soft_cap;
    node.inputs = {Rounded(x)};
    node.weights = {head.index};
    if (bias != nullptr) node.weights.push_back(bias->index);
    p_->nodes.push_back(std::move(node));
  }

 private:
  void AddAdapter(const LoraNode& lora, Node* node) {
    const auto rounded = [&](int64_t cols) {
      return engine::RowStride(p_->dtype, cols) *
             static_cast<int64_t>(engine::DTypeBytes(p_->dtype));
    };
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    node->lora = lora;
    const int64_t rank = p_->weight_specs[lora.a].n;
    const int64_t inputs = p_->weight_specs[lora.a].k;
    node->saved = NewBuffer("lora h", p_->rows * rounded(rank));
    node->lora.backward_scratch = NewBuffer("lora dh", p_->rows * (rank * kFloat + rounded(rank)));
    if (lora.rate == 0) return;
    node->lora.forward_scratch = NewBuffer("lora dropped x", p_->rows * rounded(inputs));
    node->lora.dropout_scratch =
        NewBuffer("lora dropped x, dx", p_->rows * std::max(inputs * kFloat, rounded(inputs)));
  }

  int64_t Cols(Act x) const { return p_->values[x.index].cols; }

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
  int32_t RoundedGradientScratch(int64_t cols) {
    if (p_->dtype == DType::kF32) return -1;
    return NewBuffer("rounded dy", p_->rows * engine::RowStride(p_->dtype, cols) *
                                       static_cast<int64_t>(engine::DTypeBytes(p_->dtype)));
  }

  Act Emit(Node node, DType dtype, int64_t cols) {
    Value value;
    value.dtype = dtype;
    value.cols = cols;
    value.stride = engine::RowStride(dtype, cols);
    TANDEM_CHECK(dtype != DType::kF32 || value.stride == cols);
    const auto index = static_cast<int32_t>(p_->values.size());
    value.buffer =
        NewBuffer("value " + std::to_string(index),
                  p_->rows * value.stride * static_cast<int64_t>(engine::DTypeBytes(dtype)));
    value.producer = static_cast<int32_t>(p_->nodes.size());
    node.outputs = {index};
    p_->values.push_back(value);
    p_->nodes.push_back(std::move(node));
    return Act{index};
  }

  Program* p_;
  std::map<int32_t, int32_t> rounded_;  // f32 value -> its rounded copy
  std::map<int32_t, LoraNode> lora_;    // by weight
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

engine::WeightSpec LoraSpec(std::string name, int64_t n, int64_t k) {
  engine::WeightSpec spec;
  spec.name = std::move(name);
  spec.source_shape = {n, k};
  spec.n = n;
  spec.k = k;
  return spec;
}

}  // namespace

std::vector<engine::WeightSpec> LoraSpecs(const std::vector<engine::WeightSpec>& base,
                                          const std::vector<LoraTarget>& targets) {
  std::vector<engine::WeightSpec> specs;
  for (const LoraTarget& target : targets) {
    const engine::WeightSpec& layer = base[target.weight];
    const auto [a, b] = engine::LoraTensorNames(engine::ModulePath(layer));
    specs.push_back(LoraSpec(a, target.rank, layer.k));
    specs.push_back(LoraSpec(b, layer.n, target.rank));
  }
  return specs;
}

Program Record(const engine::FamilySpec& family, const engine::ModelConfig& config,
               const RecordOptions& options) {
  TANDEM_CHECK(options.rows > 0 && options.row_length > 0 &&
               options.rows % options.row_length == 0);

  Program program;
  program.family = std::string(family.name);
  program.dtype = options.dtype;
  program.rows = options.rows;
  program.row_length = options.row_length;
  program.max_segments = options.max_segments;
  program.head_twice = options.head_twice;
  program.weight_specs = family.list_weights(config);
  program.trained = options.trained;
  if (program.trained.empty()) {
    program.trained.assign(program.weight_specs.size(), options.lora.empty());
  } else {
    TANDEM_CHECK(options.lora.empty());
  }
  TANDEM_CHECK(program.trained.size() == program.weight_specs.size());
  const std::vector<engine::WeightSpec> base = program.weight_specs;
  for (engine::WeightSpec& spec : LoraSpecs(base, options.lora)) {
    program.weight_specs.push_back(std::move(spec));
    program.trained.push_back(true);
  }

  const engine::Weights weights = NamesOnly(base);
  Recorder recorder(&program, options.lora, options.lora_dropout);
  family.forward(config, weights, recorder);
  TANDEM_CHECK(!program.nodes.empty() && program.nodes.back().op == OpKind::kCrossEntropy);

  if (options.remat.seq_chunk > 0) ChunkFeedForward(&program, options.remat.seq_chunk);
  AppendBackward(&program);
  const std::vector<bool> dropped = SaveActivations(&program, options.remat.save);
  Rematerialize(&program, options.remat, dropped);
  AssignArena(&program);
  return program;
}

int64_t Program::forward_flops() const {
  int64_t flops = 0;
  for (const Node& node : nodes) flops += Describe(node.op).forward_flops(*this, node);
  return flops;
}

int64_t Program::training_flops() const {
  int64_t flops = forward_flops() + Describe(nodes.back().op).backward_flops(*this, nodes.back());
  for (const BackwardStep& step : backward) {
    const Node& node = nodes[step.node];
    if (!step.remake) flops += Describe(node.op).backward_flops(*this, node);
  }
  return flops;
}

int64_t Program::recompute_flops() const {
  int64_t flops = 0;
  for (const BackwardStep& step : backward) {
    const Node& node = nodes[step.node];
    if (step.remake) flops += Describe(node.op).forward_flops(*this, node);
  }
  if (head_twice) flops += Describe(nodes.back().op).forward_flops(*this, nodes.back());
  return flops;
}

}  // namespace tandem::training
