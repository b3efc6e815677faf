#include <bit>
#include <numeric>

#include "engine/base/error.h"
#include "training/program/tensor_split.h"
#include "training/spec/spec.h"

namespace tandem::training {
namespace {

[[noreturn]] void RefuseStep(const std::string& key, int64_t rows, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument,
              key + ": a step has " + std::to_string(rows) +
                  " rows (per_device_batch_size x gradient_accumulation_steps), " + why);
}

// Adafactor and Muon compute with whole matrices.
void RefuseWholeMatrices(const TrainSpec& spec, const std::string& key) {
  const OptimizerKind kind = spec.train.optimizer.kind;
  if (kind != OptimizerKind::kAdafactor && kind != OptimizerKind::kMuon) return;
  throw Error(
      ErrorCode::kUnsupported,
      key + ": adafactor and muon need whole matrices: use adamw, lion or sgd, or set it to " +
          (key.ends_with("_parallelism") ? "1" : "false"));
}

// Refuses what a rank with a part of each matrix cannot compute.
void CheckTensor(const TrainSpec& spec, bool divides_rows) {
  const std::string key = TensorKey(divides_rows);
  RefuseWholeMatrices(spec, key);
  if (spec.is_distill()) {
    throw Error(ErrorCode::kUnsupported,
                key +
                    ": must be 1 for train.distill: share the rows of a step with "
                    "ici_data_parallelism or ici_fsdp_parallelism");
  }
  if (spec.train.optimizer.state == MomentState::k8Bit) {
    throw Error(ErrorCode::kUnsupported,
                key +
                    ": 8-bit moments are coded in blocks of a whole matrix: set "
                    "train.optimizer.state to f32, or " +
                    key + " to 1");
  }
}

void CheckSharding(const TrainSpec& spec, int64_t ranks, int64_t fsdp) {
  if (ranks > 1 && spec.parallel.shard_optimizer) {
    RefuseWholeMatrices(spec, "parallel.shard_optimizer_over_data");
  }
  if (fsdp == 1) return;
  RefuseWholeMatrices(spec, "ici_fsdp_parallelism");
  if (!spec.parallel.shard_optimizer) return;
  throw Error(ErrorCode::kInvalidArgument,
              "parallel.shard_optimizer_over_data: ranks of the fsdp axis share the moments "
              "already: set it to false, or ici_fsdp_parallelism to 1");
}

}  // namespace

StepShape SplitStep(const TrainSpec& spec, const Mesh& mesh) {
  const int64_t ranks = mesh.data * mesh.fsdp;
  const int64_t fsdp = mesh.fsdp;
  const int64_t tensor = mesh.tensor;
  CheckSharding(spec, ranks, fsdp);
  if (tensor > 1) CheckTensor(spec, mesh.divides_rows);
  const int64_t batch = spec.train.per_device_batch_size;
  const int64_t rows = batch * spec.train.gradient_accumulation_steps;
  const std::string ranks_text = std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  if (const int64_t parts = spec.parallel.world_invariant; parts > 0) {
    const std::string text = std::to_string(parts);
    if (!std::has_single_bit(static_cast<uint64_t>(parts))) {
      RefuseStep("world_invariant", rows, "and " + text + " is no power of two");
    }
    if (rows % parts != 0) {
      RefuseStep("world_invariant", rows, "which " + text + " does not divide");
    }
    if (parts % ranks != 0) {
      RefuseStep("world_invariant", rows,
                 "whose " + text + " parts cannot be shared equally by " + ranks_text +
                     ": run a power of two of at most " + text);
    }
    return {rows / parts, parts, ranks, fsdp, tensor, mesh.divides_rows};
  }
  if (ranks == 1) {
    return {batch, spec.train.gradient_accumulation_steps, 1, 1, tensor, mesh.divides_rows};
  }
  if (rows % ranks != 0) {
    RefuseStep("per_device_batch_size", rows,
               "which cannot be shared equally by " + ranks_text +
                   ": the product must be a multiple of " + std::to_string(ranks));
  }
  const int64_t size = std::gcd(rows / ranks, batch);
  return {size, rows / size, ranks, fsdp, tensor, mesh.divides_rows};
}

}  // namespace tandem::training
