#include "training/lora_base.h"

#include <string>

#include "engine/base/error.h"
#include "engine/io/stored_tensor.h"

namespace tandem::training {
namespace {

// The first weight that the files keep in blocks; null: none.
const engine::WeightSpec* FirstInBlocks(const engine::ModelDir& dir,
                                        const std::vector<engine::WeightSpec>& weights) {
  for (const engine::WeightSpec& spec : weights) {
    const engine::StoredTensor* tensor = engine::FindWeight(dir, spec);
    if (tensor != nullptr && tensor->encoding != engine::Encoding::kPlain) return &spec;
  }
  return nullptr;
}

}  // namespace

engine::LoadOptions BaseLoadOptions(const TrainSpec& spec, const engine::ModelDir& dir,
                                    const std::vector<engine::WeightSpec>& weights) {
  engine::LoadOptions load;
  load.dtype = spec.compute;
  switch (spec.lora.base) {
    case LoraBase::kF32:
    case LoraBase::kBF16:
      return load;
    case LoraBase::kInt8:
      load.block = engine::BlockFormat::kInt8;
      return load;
    case LoraBase::kInt4:
      load.block = engine::BlockFormat::kInt4;
      return load;
    case LoraBase::kAuto:
      break;
  }
  const engine::WeightSpec* in_blocks = FirstInBlocks(dir, weights);
  if (in_blocks == nullptr) return load;
  if (spec.compute == engine::DType::kF32) {
    throw Error(
        ErrorCode::kInvalidArgument,
        dir.name() + ": tensor " + in_blocks->name + " is in blocks of integers (" +
            std::string(engine::EncodingName(engine::FindWeight(dir, *in_blocks)->encoding)) +
            "), which are computed with in bf16: set precision.compute to bf16, or "
            "lora.base_dtype to f32 to decode them");
  }
  load.dtype.reset();  // each weight stays in what the file has
  return load;
}

}  // namespace tandem::training
