#include <algorithm>
#include <array>

#include "engine/base/check.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

class BackwardPass {
 public:
  explicit BackwardPass(Program* program) : p_(program) {}

  void Run() {
    FindConsumers();
    MarkNeeds();
    ShareSlots();
    GiveBuffers();
    WriteSteps();
  }

 private:
  const Node& node(int32_t i) const { return p_->nodes[i]; }
  bool Needs(int32_t value) const { return p_->values[value].needs_gradient; }

  // Finds the nodes that use a value, also through its rounded copy, in ascending order.
  void FindConsumers() {
    consumers_.resize(p_->values.size());
    for (size_t i = p_->nodes.size(); i-- > 0;) {
      const Node& n = p_->nodes[i];
      for (const int32_t v : n.inputs) {
        auto& list = consumers_[v];
        if (n.op == OpKind::kRound) {
          const auto& through = consumers_[n.outputs[0]];
          list.insert(list.end(), through.begin(), through.end());
        } else {
          list.push_back(static_cast<int32_t>(i));
        }
      }
    }
    for (auto& list : consumers_) std::sort(list.begin(), list.end());
  }

  bool TrainsAny(const Node& n) const {
    return n.lora.a >= 0 || !n.experts.lora.empty() || n.experts.trains_elsewhere ||
           std::any_of(n.weights.begin(), n.weights.end(),
                       [&](int32_t w) { return static_cast<bool>(p_->trained[w]); });
  }

  static bool CanOmitGradients(OpKind op) {
    return op == OpKind::kLinear || op == OpKind::kExpertLinear || op == OpKind::kCombine ||
           op == OpKind::kRound || op == OpKind::kAdd || op == OpKind::kSpread ||
           op == OpKind::kSumRanks;
  }

  // A value needs a gradient when a trained weight lies before it. Most ops write the gradients of
  // all inputs at once and therefore need a buffer even for unread ones. Only linear layers,
  // experts, rounding and Add can omit one.
  void MarkNeeds() {
    for (const Node& n : p_->nodes) {
      bool needs = TrainsAny(n);
      for (const int32_t v : n.inputs) needs = needs || Needs(v);
      for (const int32_t v : n.outputs) p_->values[v].needs_gradient = needs;
      if (!needs || CanOmitGradients(n.op)) continue;
      for (const int32_t v : n.inputs) p_->values[v].needs_gradient = true;
    }
  }

  int32_t Slot(int32_t value) const {
    while (slot_[value] != value) value = slot_[value];
    return value;
  }

  // Decides which gradients share a buffer. A rounded copy shares its source's, because rounding
  // passes gradients through. In y = a + b both gradients equal dy plus whatever their other uses
  // add. In backward order, the sum's buffer can become:
  // - that of one operand (the owner) when the Add is its last use: all other uses add to it later;
  // - also that of the other operand, when the Add is its only use and its producer reads it before
  //   any other use of the owner adds to it.
  void ShareSlots() {
    slot_.resize(p_->values.size());
    for (size_t v = 0; v < slot_.size(); ++v) slot_[v] = static_cast<int32_t>(v);
    copied_.assign(p_->nodes.size(), {false, false});

    for (size_t i = 0; i < p_->nodes.size(); ++i) {
      const Node& n = p_->nodes[i];
      if (n.op == OpKind::kRound) slot_[n.outputs[0]] = Slot(n.inputs[0]);
      if (n.op == OpKind::kAdd) ShareAdd(static_cast<int32_t>(i));
    }
  }

  void ShareAdd(int32_t add) {
    const std::vector<int32_t>& operands = node(add).inputs;
    const int32_t y = node(add).outputs[0];
    int owner = -1;
    for (int side = 0; side < 2; ++side) {
      const int32_t v = operands[side];
      if (!Needs(v)) continue;
      if (owner < 0 && operands[0] != operands[1] && consumers_[v].back() == add) {
        owner = side;
        slot_[y] = Slot(v);
      } else if (owner >= 0 && OnlyReads(v, operands[owner], add)) {
        slot_[v] = slot_[y];
      } else {
        copied_[add][side] = true;
      }
    }
  }

  bool OnlyReads(int32_t v, int32_t owner, int32_t add) const {
    const int32_t producer = p_->values[v].producer;
    const OpKind op = node(producer).op;
    if (op == OpKind::kAdd || op == OpKind::kRound) return false;  // their slots are shared already
    if (consumers_[v].size() != 1 || producer < p_->values[owner].producer) return false;
    return std::all_of(consumers_[owner].begin(), consumers_[owner].end(),
                       [&](int32_t use) { return use == add || use < producer; });
  }

  void GiveBuffers() {
    std::vector<int32_t> buffer_of(p_->values.size(), -1);
    for (size_t v = 0; v < p_->values.size(); ++v) {
      Value& value = p_->values[v];
      if (!value.needs_gradient) continue;
      int32_t& buffer = buffer_of[Slot(static_cast<int32_t>(v))];
      if (buffer < 0) {
        buffer = static_cast<int32_t>(p_->buffers.size());
        Buffer fresh;
        fresh.role = "gradient of value " + std::to_string(v);
        fresh.bytes = RowsOf(*p_, value) * value.cols * static_cast<int64_t>(sizeof(float));
        p_->buffers.push_back(std::move(fresh));
      }
      value.gradient = buffer;
    }
  }

  void WriteSteps() {
    std::vector<bool> written(p_->buffers.size(), false);
    const Value& last = p_->values[p_->nodes.back().inputs[0]];
    if (last.needs_gradient) written[last.gradient] = true;

    for (size_t i = p_->nodes.size() - 1; i-- > 0;) {
      const Node& n = p_->nodes[i];
      const Value& out = p_->values[n.outputs[0]];
      const bool adds_in_place = n.op == OpKind::kAdd && !copied_[i][0] && !copied_[i][1];
      if (!out.needs_gradient || n.op == OpKind::kRound || adds_in_place) continue;
      if (!written[out.gradient]) continue;  // nothing uses the value
      const bool passes_on =
          std::any_of(n.inputs.begin(), n.inputs.end(), [&](int32_t v) { return Needs(v); });
      if (!passes_on && !TrainsAny(n)) continue;

      BackwardStep step;
      step.node = static_cast<int32_t>(i);
      for (size_t side = 0; side < n.inputs.size(); ++side) {
        const bool copy = n.op == OpKind::kAdd && copied_[i][side];
        step.copy.push_back(copy);
        const bool writes =
            Needs(n.inputs[side]) && (n.op == OpKind::kAdd ? copy : PassesGradient(n, side));
        step.overwrite.push_back(writes && FirstWrite(n, n.inputs[side], &written, &step));
      }
      p_->backward.push_back(std::move(step));
    }
  }

  // True when the op can overwrite the gradient; otherwise the step zeroes the buffer first.
  bool FirstWrite(const Node& n, int32_t value, std::vector<bool>* written, BackwardStep* step) {
    const int32_t gradient = p_->values[value].gradient;
    if ((*written)[gradient]) return false;
    (*written)[gradient] = true;
    if (Describe(n.op).can_overwrite) return true;
    step->zero.push_back(gradient);
    return false;
  }

  Program* p_;
  std::vector<std::vector<int32_t>> consumers_;  // per value
  std::vector<int32_t> slot_;                    // per value: parent; roots point to themselves
  std::vector<std::array<bool, 2>> copied_;      // per node
};

}  // namespace

void AppendBackward(Program* program) { BackwardPass(program).Run(); }

}  // namespace tandem::training
