#include <algorithm>

#include "engine/base/error.h"
#include "training/ops/relu_save.h"
#include "training/program/passes.h"

namespace tandem::training {
namespace {

bool IsActivation(const Node& node) {
  return node.op == OpKind::kActivate || node.op == OpKind::kGatedActivation;
}

bool IsRelu(const Node& node) {
  return node.op == OpKind::kActivate && node.activation == engine::Activation::kRelu;
}

std::string NameOf(const Node& node) {
  std::string name = node.op == OpKind::kGatedActivation ? "gated " : "";
  switch (node.activation) {
    case engine::Activation::kSilu:
      return name + "SiLU";
    case engine::Activation::kGeluTanh:
      return name + "GELU";
    case engine::Activation::kRelu:
      return name + "ReLU";
    case engine::Activation::kGelu:
      return name + "exact GELU";
    case engine::Activation::kRelu2:
      return name + "squared ReLU";
    case engine::Activation::kClampedSwiglu:
      return "clamped SwiGLU";
  }
  return name;
}

class Saver {
 public:
  Saver(Program* program, ActivationSave save)
      : p_(program),
        save_(save),
        dropped_(program->values.size(), false),
        turned_(program->nodes.size(), false) {
    for (const BackwardStep& step : p_->backward) turned_[step.node] = true;
  }

  std::vector<bool> Run() {
    for (size_t v = 0; v < dropped_.size(); ++v) dropped_[v] = p_->values[v].chunked;
    p_->save = save_;
    if (save_ == ActivationSave::kRecompute) Drop();
    if (save_ == ActivationSave::kReluMask1 || save_ == ActivationSave::kReluSparse) {
      RefuseWithoutRelu();
      for (size_t i = 0; i < p_->nodes.size(); ++i) {
        if (IsRelu(p_->nodes[i])) Compress(static_cast<int32_t>(i));
      }
    }
    return std::move(dropped_);
  }

 private:
  void Drop() {
    for (const Node& node : p_->nodes) {
      if (!IsActivation(node)) continue;
      for (const int32_t v : node.inputs) {
        dropped_[v] = true;
        // Columns of a fused product: without this the product would be kept instead.
        const Node& producer = p_->nodes[p_->values[v].producer];
        if (producer.op == OpKind::kColumns) dropped_[producer.inputs[0]] = true;
      }
      for (const int32_t v : node.outputs) dropped_[v] = true;
    }
  }

  void RefuseWithoutRelu() const {
    std::string has;
    for (const Node& node : p_->nodes) {
      if (IsRelu(node)) return;
      if (IsActivation(node)) has = NameOf(node);
    }
    throw Error(ErrorCode::kInvalidArgument,
                "train.activation_save: " + std::string(ActivationSaveName(save_)) +
                    " needs ReLU, but this model (family " + p_->family + ") has " +
                    (has.empty() ? "no activation function" : has) +
                    ": use train.activation_save=recompute " + "or train.remat");
  }

  // The node whose gradient reads the output of `node`; null: none.
  const Node* ReaderOf(const Node& node) const {
    for (const BackwardStep& step : p_->backward) {
      const Node& reader = p_->nodes[step.node];
      for (size_t i = 0; i < reader.inputs.size(); ++i) {
        const bool takes = reader.inputs[i] == node.outputs[0];
        if (takes && ReadsInputBackward(*p_, reader, i)) return &reader;
      }
    }
    return nullptr;
  }

  void Compress(int32_t index) {
    Node& node = p_->nodes[index];
    const Node* reader = ReaderOf(node);
    if (reader != nullptr && save_ == ActivationSave::kReluMask1) Refuse(*reader);
    if (!turned_[index] && reader == nullptr) return;  // the backward pass needs nothing of it
    const Value& value = p_->values[node.outputs[0]];
    const int64_t elements = RowsOf(*p_, node) * value.cols;
    // Without a gradient that reads the result, its signs suffice.
    node.save = reader == nullptr ? ActivationSave::kReluMask1 : ActivationSave::kReluSparse;
    node.saved = static_cast<int32_t>(p_->buffers.size());
    Buffer mask;
    mask.role = "relu mask";
    mask.bytes = ReluMaskBytes(elements);
    p_->buffers.push_back(std::move(mask));
    if (node.save == ActivationSave::kReluMask1) return;
    p_->packed_bytes += elements * static_cast<int64_t>(engine::DTypeBytes(value.dtype));
    dropped_[node.outputs[0]] = true;
  }

  [[noreturn]] void Refuse(const Node& reader) const {
    const std::string& weight = p_->weight_specs[reader.weights[0]].name;
    const bool adapted = reader.lora.a >= 0;
    throw Error(ErrorCode::kInvalidArgument,
                "train.activation_save: relu_mask1 keeps only the sign of the input of " + weight +
                    ", but " +
                    (adapted ? "its adapter (" + p_->weight_specs[reader.lora.a].name +
                                   ") needs the values: exclude that layer from lora.module_path"
                             : "its gradient needs the values: exclude it from model.trainable") +
                    ", or set train.activation_save to relu_sparse or recompute");
  }

  Program* p_;
  ActivationSave save_;
  std::vector<bool> dropped_;
  std::vector<bool> turned_;  // per node: it has a backward step
};

}  // namespace

std::string_view ActivationSaveName(ActivationSave save) {
  switch (save) {
    case ActivationSave::kPlain:
      return "plain";
    case ActivationSave::kReluMask1:
      return "relu_mask1";
    case ActivationSave::kReluSparse:
      return "relu_sparse";
    case ActivationSave::kRecompute:
      return "recompute";
  }
  return "";
}

std::vector<bool> SaveActivations(Program* program, ActivationSave save) {
  return Saver(program, save).Run();
}

}  // namespace tandem::training
