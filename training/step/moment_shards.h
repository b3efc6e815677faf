#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/formats/safetensors/safetensors.h"
#include "training/dist/collectives.h"
#include "training/step/parameters.h"
#include "training/step/tensor_files.h"

namespace tandem::training {

// Whole moments on the first rank, empty on the others.
struct GatheredMoments {
  std::vector<engine::NamedTensor> tensors;  // borrow `buffers`
  std::vector<AlignedBuffer> buffers;
};

// Rank `root` gets all parts, in rank order, at `to`. Part k is that of rank first + k * stride, of
// part_bytes[k] bytes; `own` is this rank's, if it has one. All ranks call it.
void GatherParts(Collectives& ranks, int root, std::span<const std::byte> own,
                 std::span<const int64_t> part_bytes, std::byte* to, int first = 0, int stride = 1);

// The same for data of weight i with a tensor split, whose elements have `width` bytes: `to` gets
// the whole [n, k]. part_bytes divide a rank's part of the weight.
void GatherWhole(Collectives& ranks, int root, const ParameterStore& parameters, size_t i,
                 size_t width, std::span<const std::byte> own, std::span<const int64_t> part_bytes,
                 std::byte* to);

// Collects the ranks' parts, so that a checkpoint holds whole tensors and any number of ranks can
// resume it. All ranks call it.
GatheredMoments GatherMoments(Collectives& ranks, ParameterStore& parameters);

// Gives each rank its part of the first rank's file; null on the other ranks. Throws kDataLoss on
// the first rank naming a missing or misshapen tensor. All ranks call it.
void ScatterMoments(Collectives& ranks, ParameterStore& parameters, const TensorFiles* files,
                    const std::string& source);

// Copies this rank's part from files that it reads itself. Throws as ScatterMoments.
void RestoreMoments(ParameterStore& parameters, const TensorFiles& files,
                    const std::string& source);

}  // namespace tandem::training
