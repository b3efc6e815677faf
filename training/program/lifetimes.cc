#include <algorithm>

#include "engine/base/check.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

constexpr int64_t kAlignment = 64;

// Numbers the steps: forward nodes in order, then backward steps. The last node, the head, also
// begins the backward pass.
class Lifetimes {
 public:
  explicit Lifetimes(Program* program) : p_(program) {}

  void Run() {
    const auto n_forward = static_cast<int32_t>(p_->nodes.size());
    for (int32_t i = 0; i < n_forward; ++i) {
      run_first_ = i;
      while (i + 1 < n_forward && p_->nodes[i].chunk >= 0 &&
             p_->nodes[i + 1].chunk == p_->nodes[run_first_].chunk) {
        ++i;
      }
      run_last_ = i;
      for (int32_t step = run_first_; step <= run_last_; ++step) Forward(step);
    }
    for (size_t i = 0; i < p_->backward.size();) {
      const size_t end = ChunkRunEnd(*p_, i);
      run_first_ = n_forward + static_cast<int32_t>(i);
      run_last_ = n_forward + static_cast<int32_t>(end) - 1;
      for (; i < end; ++i) {
        const BackwardStep& step = p_->backward[i];
        const int32_t time = n_forward + static_cast<int32_t>(i);
        if (step.remake) {
          Remake(p_->nodes[step.node], time);
        } else {
          Backward(step, time);
        }
      }
    }
  }

 private:
  void Touch(int32_t buffer, int32_t step) {
    if (buffer < 0) return;
    Buffer& b = p_->buffers[buffer];
    b.first_step = b.first_step < 0 ? step : std::min(b.first_step, step);
    b.last_step = std::max(b.last_step, step);
  }

  // The steps of a run alternate chunk by chunk. A buffer with all rows therefore lives from the
  // run's first to its last step.
  void TouchWhole(int32_t buffer) {
    Touch(buffer, run_first_);
    Touch(buffer, run_last_);
  }

  void TouchRows(const Value& value, int32_t buffer, int32_t step) {
    value.chunked ? Touch(buffer, step) : TouchWhole(buffer);
  }

  void Forward(int32_t step) {
    const Node& node = p_->nodes[step];
    for (const int32_t v : node.inputs) TouchRows(p_->values[v], p_->values[v].buffer, step);
    for (const int32_t v : node.outputs) TouchRows(p_->values[v], p_->values[v].buffer, step);
    TouchWhole(node.saved);
    Touch(node.forward_scratch, step);
    Touch(node.lora.forward_scratch, step);
    if (node.op == OpKind::kCrossEntropy) Touch(p_->values[node.inputs[0]].gradient, step);
  }

  void TouchRead(int32_t value, int32_t step) {
    TouchRows(p_->values[value], BackwardBuffer(p_->values[value]), step);
  }

  // The node's saved data is written again, with the same bits, to the same buffer. A packed result
  // is read from there.
  void Remake(const Node& node, int32_t step) {
    if (node.save != ActivationSave::kReluSparse) {
      for (const int32_t v : node.inputs) TouchRead(v, step);
    }
    for (const int32_t v : node.outputs) TouchRead(v, step);
    TouchWhole(node.saved);
    Touch(node.remake_scratch, step);
    Touch(node.lora.remake_scratch, step);
  }

  void Backward(const BackwardStep& backward, int32_t step) {
    const Node& node = p_->nodes[backward.node];
    const OpDescription& op = Describe(node.op);
    for (size_t side = 0; side < node.inputs.size(); ++side) {
      const Value& value = p_->values[node.inputs[side]];
      if (ReadsInputBackward(*p_, node, side)) TouchRead(node.inputs[side], step);
      const bool writes = node.op == OpKind::kAdd ? static_cast<bool>(backward.copy[side])
                                                  : PassesGradient(node, side);
      if (writes) TouchRows(value, value.gradient, step);
    }
    for (const int32_t v : node.outputs) {
      if (op.reads_outputs_backward) TouchRead(v, step);
      TouchRows(p_->values[v], p_->values[v].gradient, step);
    }
    TouchWhole(node.saved);
    Touch(node.backward_scratch, step);
    Touch(node.lora.backward_scratch, step);
    Touch(node.lora.dropout_scratch, step);
    Touch(node.lora.dora_scratch, step);
  }

  Program* p_;
  int32_t run_first_ = 0;  // the present run of chunked steps
  int32_t run_last_ = 0;
};

}  // namespace

void AssignArena(Program* program) {
  Lifetimes(program).Run();

  std::vector<Buffer>& buffers = program->buffers;
  std::vector<int32_t> order;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].first_step >= 0) order.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return buffers[a].bytes > buffers[b].bytes; });

  const auto by_offset = [&](int32_t a, int32_t b) {
    return buffers[a].offset < buffers[b].offset;
  };
  std::vector<int32_t> placed;  // by offset
  program->arena_bytes = 0;
  for (const int32_t i : order) {
    Buffer& buffer = buffers[i];
    const int64_t bytes = RoundUp(buffer.bytes, kAlignment);
    int64_t offset = 0;
    for (const int32_t j : placed) {
      const Buffer& other = buffers[j];
      if (other.last_step < buffer.first_step || other.first_step > buffer.last_step) continue;
      if (other.offset >= offset + bytes) break;
      offset = std::max(offset, other.offset + RoundUp(other.bytes, kAlignment));
    }
    buffer.offset = offset;
    program->arena_bytes = std::max(program->arena_bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i, by_offset), i);
  }
}

}  // namespace tandem::training
