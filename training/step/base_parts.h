#pragma once

#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "training/program/program.h"

namespace tandem::training {

// The specs of the adapters of `targets` in a program: its last weights.
std::vector<engine::WeightSpec> AdapterSpecs(const Program& program,
                                             const std::vector<LoraTarget>& targets);

// The weights of the base model with which a program with adapters computes: the base's own or,
// with a tensor split, copies of this rank's parts of them in `buffers`. Integer blocks are copied
// as they are. Throws kUnsupported naming a weight whose blocks a part would cut.
engine::Weights PartsOfBase(const engine::Model& base, const Program& program,
                            engine::OpsContext& ops, std::vector<AlignedBuffer>* buffers);

// Bytes of these copies of parts of the base's weights, in its packed types.
int64_t BasePartBytes(const std::vector<engine::WeightSpec>& whole,
                      const std::vector<engine::WeightSpec>& parts,
                      const engine::PackedTypes& types);

}  // namespace tandem::training
