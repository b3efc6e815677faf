#include <algorithm>
#include <cstdio>

#include "training/program/program.h"

namespace tandem::training {
namespace {

class Printer {
 public:
  explicit Printer(const Program& program) : p_(program) {}

  std::string Run() {
    Line("program %s rows=%lld row_length=%lld compute=%s", p_.family.c_str(), Int(p_.rows),
         Int(p_.row_length), std::string(engine::DTypeName(p_.dtype)).c_str());
    Line("forward");
    for (size_t i = 0; i < p_.nodes.size(); ++i) {
      const Node& node = p_.nodes[i];
      Line("  %3zu %-16s %-34s%s  %lld B  %lld FLOP", i, Describe(node.op).name,
           Operands(node).c_str(), Weights(node).c_str(), Int(ForwardBytes(node)),
           Int(Describe(node.op).forward_flops(p_, node)));
    }
    Line("backward");
    for (const BackwardStep& step : p_.backward) {
      const Node& node = p_.nodes[step.node];
      if (step.remake) {
        Line("  %3d %-16s %-34s%s  %lld B  %lld FLOP again", step.node, Describe(node.op).name,
             Operands(node, true).c_str(), Weights(node).c_str(),
             Int(p_.buffers[p_.values[node.outputs[0]].remade].bytes),
             Int(Describe(node.op).forward_flops(p_, node)));
        continue;
      }
      Line("  %3d %-16s %-34s%s  %lld FLOP", step.node, Describe(node.op).name,
           Gradients(step).c_str(), Weights(node, true).c_str(),
           Int(Describe(node.op).backward_flops(p_, node)));
    }
    int64_t bytes = 0;
    for (const Buffer& buffer : p_.buffers) {
      if (buffer.first_step >= 0) bytes += buffer.bytes;
    }
    Line("arena %lld B for %lld B of buffers; %lld FLOP per micro-batch", Int(p_.arena_bytes),
         Int(bytes), Int(p_.training_flops()));
    if (p_.save != ActivationSave::kPlain) {
      Line("activation_save %s: at most %lld B packed",
           std::string(ActivationSaveName(p_.save)).c_str(), Int(p_.packed_bytes));
    }
    if (p_.chunk_rows > 0) Line("feed-forward layers in chunks of %lld rows", Int(p_.chunk_rows));
    const bool remakes = std::any_of(p_.backward.begin(), p_.backward.end(),
                                     [](const BackwardStep& step) { return step.remake; });
    if (remakes || p_.remat != RematPolicy::kNone) Rematerialization();
    return std::move(text_);
  }

 private:
  void Rematerialization() {
    const KeptBytes kept = CountKept(p_);
    Line("remat %s: %lld B kept for the backward pass, %lld B recomputed with %lld FLOP more",
         std::string(RematPolicyName(p_.remat)).c_str(), Int(kept.kept), Int(kept.remade),
         Int(p_.recompute_flops()));
  }

  static long long Int(int64_t value) { return static_cast<long long>(value); }

  template <class... Args>
  void Line(const char* format, Args... args) {
    char line[512];
    if constexpr (sizeof...(Args) == 0) {
      std::snprintf(line, sizeof line, "%s", format);
    } else {
      std::snprintf(line, sizeof line, format, args...);
    }
    std::string trimmed(line);
    trimmed.erase(trimmed.find_last_not_of(' ') + 1);
    text_ += trimmed + "\n";
  }

  // A prime marks a recomputed value.
  std::string Operands(const Node& node, bool again = false) const {
    std::string text;
    for (const int32_t v : node.outputs) {
      const Value& value = p_.values[v];
      text.append(Named('%', v)).append(again ? "':" : ":");
      text += engine::DTypeName(value.dtype);
      text.append("[").append(std::to_string(value.cols)).append("]");
    }
    if (node.outputs.empty()) text += "loss";
    text += " <-";
    for (const int32_t v : node.inputs) {
      text.append(" ").append(Named('%', v));
      if (again && p_.values[v].remade >= 0) text += "'";
    }
    return text;
  }

  // Gradients by buffer ("g5") to show sharing; "=" overwrites, "0+=" zeroes first.
  std::string Gradients(const BackwardStep& step) const {
    const Node& node = p_.nodes[step.node];
    std::string text;
    for (size_t side = 0; side < node.inputs.size(); ++side) {
      const int32_t gradient = p_.values[node.inputs[side]].gradient;
      if (gradient < 0 || (node.op == OpKind::kAdd && !step.copy[side])) continue;
      const bool zeroes =
          std::find(step.zero.begin(), step.zero.end(), gradient) != step.zero.end();
      text += Named('g', gradient);
      text += step.overwrite[side] ? " = " : (zeroes ? " 0+= " : " += ");
    }
    return text.append("d(").append(Named('g', p_.values[node.outputs[0]].gradient)).append(")");
  }

  static std::string Named(char letter, int32_t number) {
    std::string name(1, letter);
    return name.append(std::to_string(number));
  }

  std::string Weights(const Node& node, bool trained_only = false) const {
    if (node.op == OpKind::kExpertLinear) return Experts(node, trained_only);
    std::string text;
    for (const int32_t w : node.weights) {
      if (!trained_only || p_.trained[w]) text.append(" ").append(p_.weight_specs[w].name);
    }
    for (const int32_t w : {node.lora.a, node.lora.b, node.lora.magnitude}) {
      if (w >= 0) text.append(" ").append(p_.weight_specs[w].name);
    }
    return text;
  }

  // The first expert's weight and the number of experts.
  std::string Experts(const Node& node, bool trained_only) const {
    const auto end = node.weights.begin() + node.experts.n_experts;
    const auto trained = std::count_if(node.weights.begin(), end,
                                       [&](int32_t w) { return static_cast<bool>(p_.trained[w]); });
    const int64_t count = trained_only ? trained : node.experts.n_experts;
    std::string text;
    if (count > 0) {
      text =
          " " + p_.weight_specs[node.weights[0]].name + " (" + std::to_string(count) + " experts)";
    }
    const auto adapted = std::count_if(node.experts.lora.begin(), node.experts.lora.end(),
                                       [](const LoraNode& lora) { return lora.a >= 0; });
    if (adapted > 0) text += " (" + std::to_string(adapted) + " adapters)";
    return text;
  }

  int64_t ForwardBytes(const Node& node) const {
    int64_t bytes = 0;
    for (const int32_t v : node.outputs) bytes += p_.buffers[p_.values[v].buffer].bytes;
    if (node.saved >= 0) bytes += p_.buffers[node.saved].bytes;
    return bytes;
  }

  const Program& p_;
  std::string text_;
};

}  // namespace

std::string Print(const Program& program) { return Printer(program).Run(); }

KeptBytes CountKept(const Program& program) {
  const auto head = static_cast<int32_t>(program.nodes.size()) - 1;
  const auto bytes = [&](int32_t buffer, bool only_over_head) {
    if (buffer < 0) return int64_t{0};
    const Buffer& b = program.buffers[buffer];
    return only_over_head && b.last_step <= head ? 0 : b.bytes;
  };
  KeptBytes count;
  for (const Value& value : program.values) {
    count.kept += bytes(value.buffer, true);
    count.remade += bytes(value.remade, false);
  }
  for (const Node& node : program.nodes) count.kept += bytes(node.saved, true);
  return count;
}

}  // namespace tandem::training
