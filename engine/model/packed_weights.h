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
#include "engine/model/families/weights.h"
#include "engine/ops/ops_context.h"

namespace tandem::engine {

// All weights of a model in the form the kernels read. They are packed once per checkpoint and
// types, and kept in a cache from which the server and jobs map them.
//
// The file, version 1, little endian:
//    0  8 bytes   magic "TANDEMPW"
//    8  u32       version of this format
//   12  u32       version of the panel layout (engine/kernels/kernels.h)
//   16  u64       bytes of the table
//   24  u64       bytes of the file
//   32  32 bytes  SHA-256 of bytes [0, 32) and the table
//   64  table     text: "content <hash> dtype <name>", then per weight, in list order, one line
//                 "<name> <kind> <n> <k> <offset> <bytes>". Optional suffixes of a line:
//                 " <format>/<version of the block layout>" for a weight in blocks,
//                 " exact" when the blocks are the file's own,
//                 " plus <x>" when x was added,
//                 " from <decoding>" (DecodingOf) when the file stores it in a foreign layout
//   then one section per weight, each at a multiple of 64, zero-padded: panels, blocks, or f32
//   vectors.
// A file is used only if its header equals the expected one byte for byte, its size is right and
// every piece matches its checksum (packed_sums.h). Any other file is rebuilt. Its path is
// <cache_dir>/packed/<types>-<hash of the header>/weights; the checksums are in weights.crc32c in
// the same folder.
inline constexpr std::string_view kPackedMagic = "TANDEMPW";
inline constexpr uint32_t kPackedFormatVersion = 1;
inline constexpr uint32_t kPanelLayoutVersion = 1;
inline constexpr size_t kPackedHeaderBytes = 64;  // before the table
inline constexpr const char* kPackedFileName = "weights";
inline constexpr const char* kPackedSumsName = "weights.crc32c";

// The storage type of each weight.
struct PackedTypes {
  DType dtype = DType::kBF16;       // of compute, and of panels that are not in blocks
  std::string name;                 // Model::weights_type: "bf16", "int8"
  std::vector<BlockFormat> blocks;  // by weight; vectors are kNone
  // By weight: the file's blocks are ours in another byte order (stored_weights.h), so they are
  // moved, not rounded. Empty: none is exact.
  std::vector<bool> exact = {};
  // By weight: how a foreign file's numbers are decoded; an empty string for the plain layout.
  std::vector<std::string> decodings = {};

  bool IsExact(size_t weight) const { return !exact.empty() && exact[weight]; }
};

// The layout of all weights in one run of bytes. A pure function of its arguments.
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
  int64_t cache_limit_bytes = 0;    // of all packed files together; evicts the least recently used
  std::function<void(double fraction)> progress;
};

// The packed bytes, mapped or owned; `weights` borrows them.
struct PackedWeights {
  Weights weights;
  std::shared_ptr<const MappedFile> mapped;
  AlignedBuffer owned;
};

// Finds the packed file or makes it. REQUIRES: every tensor of `specs` is in `dir` with its shape
// and a floating-point type; `specs` outlive the result. If the cache cannot be written, logs one
// warning and packs the weights in memory, where jobs cannot share them. Packing logs the error of
// rounding to blocks: per weight (debug), by type of the file, and in total. Throws kDataLoss when
// a file of `dir` was changed in place since it was opened.
PackedWeights LoadPackedWeights(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                                const PackedTypes& types, const PackedLayout& layout,
                                const PackOptions& options, OpsContext& ops);

}  // namespace tandem::engine
