#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "training/program/passes.h"
#include "training/program/program.h"
#include "training/program/recorder.h"
#include "training/program/tensor_region.h"

namespace tandem::training {
namespace {

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
