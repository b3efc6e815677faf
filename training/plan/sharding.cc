#include "training/plan/sharding.h"

#include <array>
#include <cstdio>

#include "training/setup/memory_needs.h"
#include "training/setup/model_files.h"

namespace tandem::training {
namespace {

// The classes that grow with the model alone. The others belong to a rank's own work.
constexpr std::array<std::string_view, 4> kStateNames = {"masters", "weights", "gradients",
                                                         "moments"};

std::string Mebibytes(double bytes) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f MiB", bytes / 0x1p20);
  return text;
}

int64_t BytesOf(const MemoryNeeds& needs, const std::string& name) {
  for (const MemoryClass& one : needs.classes) {
    if (one.name == name) return one.bytes;
  }
  return 0;
}

// Of data that each of n ranks holds a part of, the share that a rank gives to others.
double OthersShare(int64_t n) { return static_cast<double>(n - 1) / static_cast<double>(n); }

// Bytes that a rank sends per step, and receives: the parts that other ranks need.
double SentPerStep(const TrainSpec& spec, int64_t elements) {
  const StepShape& shape = *spec.step_shape;
  const auto count = static_cast<double>(elements);
  // Gradients to their owners; then sums, or updated f32 masters, back.
  const double floats = count * sizeof(float);
  if (shape.fsdp == 1) return 2 * floats * OthersShare(shape.ranks);
  // Weights for both passes and gradients of every micro-batch; masters; sums over replicas.
  const double weights = count * static_cast<double>(engine::DTypeBytes(spec.compute));
  const auto batches = static_cast<double>(shape.batches / shape.ranks);
  return (batches * (2 * weights + floats) + weights) * OthersShare(shape.fsdp) +
         2 * floats / static_cast<double>(shape.fsdp) * OthersShare(shape.ranks / shape.fsdp);
}

// Bytes of all rows that a node exchanges over the tensor axis. A sum moves each element to the
// rank that adds it, and back unless ranks divide the rows.
double ExchangedBy(const Program& program, const Node& node, bool backward) {
  const bool is_spread = node.op == OpKind::kSpread;
  if (!is_spread && node.op != OpKind::kSumRanks) return 0;
  const Value& value = program.values[node.outputs[0]];
  const auto elements = static_cast<double>(program.rows * value.cols);
  const bool is_sum = is_spread == backward;
  if (!program.tensor.place.divides_rows) return is_sum ? 2 * elements * sizeof(float) : 0;
  const auto width = static_cast<double>(engine::DTypeBytes(value.dtype));
  return elements * (is_spread && !backward ? width : sizeof(float));
}

// Bytes that a rank of the tensor axis sends to the others per step, and receives: activations, and
// gradients of whole weights that ranks use for their parts.
double SentOverTensor(const TrainSpec& spec, const Program& program) {
  const StepShape& shape = *spec.step_shape;
  double bytes = 0;
  for (const Node& node : program.nodes) bytes += ExchangedBy(program, node, false);
  for (const BackwardStep& step : program.backward) {
    bytes += ExchangedBy(program, program.nodes[step.node], !step.remake);
  }
  bytes *= static_cast<double>(shape.batches / shape.ranks);
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    if (!program.trained[i] || !program.tensor.weights[i].sums_gradient) continue;
    const engine::WeightSpec& weight = program.weight_specs[i];
    bytes += 2 * static_cast<double>(weight.n * weight.k) * sizeof(float) /
             static_cast<double>(shape.fsdp);
  }
  return bytes * OthersShare(shape.tensor);
}

}  // namespace

std::string DescribeSharding(const TrainSpec& given, int64_t ranks) {
  const Mesh mesh = ResolveMesh(given.parallel.mesh, ranks);
  TrainSpec spec = given;
  spec.step_shape = SplitStep(given, mesh);
  const StepShape& shape = *spec.step_shape;
  const ModelFiles files = LoadModelFiles(spec);
  const MemoryNeeds shared = FindMemoryNeeds(spec, files);
  TrainSpec alone = spec;
  alone.step_shape->ranks = 1;
  alone.step_shape->fsdp = 1;
  alone.step_shape->tensor = 1;
  alone.step_shape->divides_rows = false;
  const MemoryNeeds whole = FindMemoryNeeds(alone, files);

  char line[200];
  std::snprintf(
      line, sizeof line,
      "ranks: %lld (data %lld x fsdp %lld x tensor %lld%s); a step has %lld micro-batches of "
      "%lld rows, %lld for each rank\n",
      static_cast<long long>(ranks), static_cast<long long>(mesh.data),
      static_cast<long long>(mesh.fsdp), static_cast<long long>(mesh.tensor),
      mesh.divides_rows ? ", which divides rows" : "", static_cast<long long>(shape.batches),
      static_cast<long long>(shape.rows_per_batch),
      static_cast<long long>(shape.batches / shape.ranks));
  std::string text = line;
  text += "  class               whole     on a rank\n";
  double state = 0;
  double replicated = 0;
  for (const MemoryClass& part : shared.classes) {
    const auto all = static_cast<double>(BytesOf(whole, part.name));
    const bool is_shared = static_cast<double>(part.bytes) < all;
    std::snprintf(line, sizeof line, "  %-12s %12s  %12s%s\n", part.name.c_str(),
                  Mebibytes(all).c_str(), Mebibytes(static_cast<double>(part.bytes)).c_str(),
                  is_shared ? "  shared" : "");
    text += line;
    for (const std::string_view name : kStateNames) {
      if (part.name != name) continue;
      state += all;
      if (!is_shared) replicated += all;
    }
  }
  int64_t trained = 0;
  for (size_t i = 0; i < shared.program.weight_specs.size(); ++i) {
    const engine::WeightSpec& weight = shared.program.weight_specs[i];
    if (shared.program.trained[i]) trained += weight.n * weight.k;
  }
  std::snprintf(
      line, sizeof line,
      "  in all on a rank %s; %.0f %% of masters, weights, gradients and moments is whole "
      "on every rank\n",
      Mebibytes(static_cast<double>(shared.total_bytes())).c_str(),
      state > 0 ? 100 * replicated / state : 0.0);
  text += line;
  text += "  a rank sends " + Mebibytes(SentPerStep(spec, trained)) + " per step";
  if (shape.tensor > 1) {
    text += ", and " + Mebibytes(SentOverTensor(spec, shared.program)) + " over the tensor axis";
  }
  text += "\n";
  return text;
}

}  // namespace tandem::training
