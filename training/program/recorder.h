#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/model/families/layer_ops.h"
#include "training/program/program.h"
#include "training/program/tensor_region.h"

namespace tandem::training {

// Records a family's operations as nodes. When an op needs the compute dtype and its operand is
// f32, inserts a kRound node, once per value, exactly where ServingOps rounds. Internal to Record;
// borrows the program.
class Recorder : public engine::LayerOps {
 public:
  // `config` is that of the rank's part.
  Recorder(Program* program, const engine::ModelConfig& config,
           const std::vector<LoraTarget>& targets, const RecordOptions& options);

  engine::Act Embed(const engine::Weight& table) override;
  engine::Act EmbedPositions(const engine::Weight& table) override;

  engine::Act RmsNorm(engine::Act x, const engine::Weight& gamma, float eps) override;
  // The same node as RmsNorm; its output's dtype distinguishes the two.
  engine::Act RmsNormF32(engine::Act x, const engine::Weight& gamma, float eps) override;
  engine::Act PlainRmsNorm(engine::Act x, int64_t length, float eps) override;
  engine::Act LayerNorm(engine::Act x, const engine::Weight* gamma, const engine::Weight* beta,
                        float eps) override;

  engine::Act Linear(engine::Act x, const engine::Weight& w, const engine::Weight* bias) override;
  engine::Act Rope(engine::Act x, size_t table) override { return Rotate(x, table, p_->dtype); }
  engine::Act RopeF32(engine::Act x, size_t table) override {
    return Rotate(x, table, engine::DType::kF32);
  }
  engine::Act Attention(engine::Act q, engine::Act k, engine::Act v,
                        const engine::AttentionSpec& spec, int64_t,
                        const engine::Weight* sinks) override;

  engine::Act GatedActivation(engine::Act gate, engine::Act up,
                              engine::Activation activation) override;
  engine::Act Activate(engine::Act x, engine::Activation activation) override;
  engine::Act Columns(engine::Act x, int64_t first, int64_t count) override;
  engine::Act ColumnsF32(engine::Act x, int64_t first, int64_t count) override;

  engine::Act Route(engine::Act logits, const engine::Weight* selection_bias,
                    const engine::RouterSpec& spec) override;
  engine::Act ExpertLinear(engine::Act x, engine::Act routing,
                           std::span<const engine::Weight> experts,
                           std::span<const engine::Weight> biases) override;
  engine::Act Combine(engine::Act y, engine::Act routing) override;
  engine::Act ScaleExperts(engine::Act routing, const engine::Weight& scales) override;

  engine::Act Mix(std::span<const engine::Act> xs, engine::Act weights, int64_t first,
                  float offset) override;
  engine::Act MatchMagnitude(engine::Act x, engine::Act like, float least_square) override;
  engine::Act AboveCut(engine::Act x, float deviations) override {
    return Plain(OpKind::kAboveCut, x, deviations);
  }
  engine::Act ScaleColumns(engine::Act x, const engine::Weight& w) override;
  engine::Act SoftCap(engine::Act x, float cap) override { return Plain(OpKind::kSoftCap, x, cap); }

  engine::Act Add(engine::Act a, engine::Act b) override { return Pairwise(OpKind::kAdd, a, b); }
  engine::Act Mul(engine::Act a, engine::Act b) override { return Pairwise(OpKind::kMul, a, b); }
  engine::Act Sigmoid(engine::Act x) override;
  engine::Act Clamp(engine::Act x, float limit) override { return Plain(OpKind::kClamp, x, limit); }
  engine::Act Scale(engine::Act x, float factor) override {
    return Plain(OpKind::kScale, x, factor);
  }
  engine::Act ScaleBy(engine::Act x, const engine::Weight& factor) override;

  engine::Act SliceHeads(engine::Act x, int64_t n_heads, int64_t first, int64_t count) override;
  engine::Act JoinHeads(engine::Act a, engine::Act b, int64_t n_heads, int64_t b_dim) override;
  engine::Act Dropout(engine::Act x, float rate) override;

  engine::Act CausalConv(engine::Act x, const engine::Weight& w, const engine::Weight* bias,
                         const engine::ConvSpec& spec) override;
  engine::Act GatedDelta(engine::Act qkv, engine::Act a, engine::Act b, const engine::Weight& a_log,
                         const engine::Weight& dt_bias, const engine::DeltaSpec& spec) override;
  engine::Act SelectiveScan(engine::Act xbc, engine::Act dt, const engine::Weight& a_log,
                            const engine::Weight& dt_bias, const engine::Weight& d,
                            const engine::ScanSpec& spec) override;
  engine::Act Gate(engine::Act x, engine::Act gate, engine::GateForm form) override;

  void Logits(engine::Act x, const engine::Weight& head, const engine::Weight* bias,
              float soft_cap) override;

 private:
  // Ops by their shape: of one value and one number, of one value and one weight, of two values.
  engine::Act Plain(OpKind op, engine::Act x, float factor);
  engine::Act Weighted(OpKind op, engine::Act x, const engine::Weight& w);
  engine::Act Pairwise(OpKind op, engine::Act a, engine::Act b);
  engine::Act Rotate(engine::Act x, size_t table, engine::DType dtype);
  engine::Act Slice(engine::Act x, int64_t first, int64_t count, engine::DType dtype);

  // Adapters, in recorder_lora.cc.
  // Gives the weights of LoraSpecs and FactorSpecs their indices.
  void PlanAdapters(const std::vector<LoraTarget>& targets, const RecordOptions& options);
  // The weight that a node reads: the model's, or the adapter's copy.
  int32_t Index(const engine::Weight& w) const;
  void AddAdapter(const LoraNode& lora, Node* node);
  void AddTableAdapter(const LoraNode& lora, int64_t cols, Node* node);
  void AddExpertAdapters(std::span<const engine::Weight> experts, int64_t input_cols, Node* node);

  // Nodes, values and buffers, in recorder_values.cc.
  engine::Act Emit(Node node, engine::DType dtype, int64_t cols);
  int32_t NewBuffer(std::string role, int64_t bytes);
  // dY enters two matrix products and is therefore rounded like their other inputs.
  int32_t RoundedGradientScratch(int64_t rows, int64_t cols);
  int64_t Cols(engine::Act x) const { return p_->values[x.index].cols; }
  int64_t Rows(int32_t value) const { return RowsOf(*p_, p_->values[value]); }
  // With f32 compute a value "in the compute dtype" is f32 too; its rows are dense (see Emit).
  int32_t F32(engine::Act x) const;
  int32_t Rounded(engine::Act x);
  // The rows before layers whose outputs ranks share, once per value.
  int32_t Spread(int32_t x);
  int32_t SpreadOnce(int32_t x) { return region_.IsPart(x) ? x : Spread(x); }
  // All rows of a value of which ranks may have parts.
  int32_t AllRows(int32_t x) { return p_->values[x].divided ? Spread(x) : x; }
  // Whether ranks divide the rows of a node's outputs.
  bool Divides(const Node& node) const;
  engine::Act SumOverRanks(engine::Act y, const engine::Weight* bias);

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

}  // namespace tandem::training
