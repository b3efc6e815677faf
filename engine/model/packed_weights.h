#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/formats/model_dir.h"
#include "engine/model/weights.h"
#include "engine/ops/ops_context.h"

namespace tandem::engine {

// All weights of a model in the form the kernels read, made once per checkpoint and types and kept
// in a cache from which server and jobs map it.
//
// The file, version 1, little endian:
//    0  8 bytes   magic "TANDEMPW"
//    8  u32       version of this format
//   12  u32       version of the panel layout (engine/kernels/kernels.h)
//   16  u64       bytes of the table
//   24  u64       bytes of the file
//   32  32 bytes  SHA-256 of bytes [0, 32) and the table
//   64  table     text: "content <hash> dtype <name>", then per weight, in list order, one line
//                 "<name> <kind> <n> <k> <offset> <bytes>", where it is in blocks
//                 " <format>/<version of the block layout>", " exact" where the blocks are the
//                 file's own, " plus <x>" where x was added, and " from <decoding>" (DecodingOf)
//                 where the model's file has it in another way than families ask for
//   then one section per weight, each at a multiple of 64, zero-padded: panels, blocks, or f32
//   vectors.
// A file is used only if its header is byte for byte the one we would write, its size is right and
// every piece has its checksum (packed_sums.h); anything else is made again. It lies in
// <cache_dir>/packed/<types>-<hash of the header>/weights, the checksums beside it in
// weights.crc32c.
inline constexpr std::string_view kPackedMagic = "TANDEMPW";
inline constexpr uint32_t kPackedFormatVersion = 1;
inline constexpr uint32_t kPanelLayoutVersion = 1;
inline constexpr size_t kPackedHeaderBytes = 64;  // before the table
inline constexpr const char* kPackedFileName = "weights";
inline constexpr const char* kPackedSumsName = "weights.crc32c";

// In what each weight is stored.
struct PackedTypes {
  DType dtype = DType::kBF16;       // of compute, and of panels that are not in blocks
  std::string name;                 // as users write it: "bf16", "int8"
  std::vector<BlockFormat> blocks;  // by weight; vectors are kNone
  // By weight: the file keeps it in blocks that are ours in another order (stored_weights.h), and
  // they are moved, not rounded. Empty: none is.
  std::vector<bool> exact = {};
  // By weight: how the numbers of a foreign file are decoded; empty where they are as asked.
  std::vector<std::string> decodings = {};

  bool IsExact(size_t weight) const { return !exact.empty() && exact[weight]; }
};

// How weights lie in one run of bytes. A function of its arguments alone.
struct PackedLayout {
  std::string header;            // everything before the first section
  std::vector<int64_t> offsets;  // of each weight's section, from the start of the file
  std::vector<int64_t> sizes;    // bytes of each section without padding
  int64_t file_bytes = 0;
  std::string key;  // directory name in the cache
};
PackedLayout LayOutWeights(const std::vector<WeightSpec>& specs, const PackedTypes& types,
                           const std::string& tensor_hash);

struct PackOptions {
  std::filesystem::path cache_dir;  // empty: in memory
  int64_t cache_limit_bytes = 0;    // of all packed files together; oldest use goes first
  std::function<void(double fraction)> progress;
};

// The packed bytes: mapped or owned. The `weights` borrow from them.
struct PackedWeights {
  Weights weights;
  std::shared_ptr<const MappedFile> mapped;
  AlignedBuffer owned;
};

// Finds the packed file or makes it. REQUIRES: every tensor of `specs` is in `dir` with its shape
// and a floating-point type; `specs` outlive the result. A cache that cannot be written costs one
// warning, and the weights are packed in memory, where jobs cannot share them. What rounding to
// blocks lost is logged while packing: per weight (debug), by type of the file, and in all. Throws
// kDataLoss when a file of `dir` was changed in place since it was opened.
PackedWeights LoadPackedWeights(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                                const PackedTypes& types, const PackedLayout& layout,
                                const PackOptions& options, OpsContext& ops);

}  // namespace tandem::engine
