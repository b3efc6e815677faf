#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/work/write_context.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/sha256.h"

namespace tandem::convert {

// Safetensors files of a target. The place of every tensor is fixed before the first byte is
// written. Threads may therefore write tensors in any order and resume after a kill.

struct OutTensor {
  engine::NamedTensor tensor;
  // Indices of source tensors, concatenated here: one, or one per layer.
  std::vector<int64_t> sources;
};

struct OutFile {
  std::string name;
  std::vector<OutTensor> tensors;
};

// Returns one OutTensor per source tensor.
std::vector<OutTensor> EachAlone(const ModelSource& source);
// Stacks layers that differ only by their number (engine/formats/stored/stacked_tensors.h) and
// leaves the other tensors alone. Throws kUnsupported if a name of the source has the stacking
// mark.
std::vector<OutTensor> Stacked(const ModelSource& source);

// Splits into `<stem>-00001-of-0000N.safetensors` of at most `max_bytes` each; a longer tensor has
// a file of its own. With `plain_if_one`, a single file is named `<stem>.safetensors`.
std::vector<OutFile> InShards(std::vector<OutTensor> tensors, const std::string& stem,
                              int64_t max_bytes, bool plain_if_one);

// Throws kIo if the disk of `dir` lacks room for `bytes` plus 5 %, less what `dir` already takes.
void CheckRoom(const std::filesystem::path& dir, int64_t bytes);
int64_t BytesOf(const std::vector<OutFile>& files);

struct WrittenFile {
  std::string name;
  int64_t bytes = 0;
  engine::Sha256Digest sha256 = {};
};

// Writes `files` with the tensors of `source` into context.target on all threads of the pool,
// resuming from context.journal. Reports their hashes through context.hashed. Throws kIo naming the
// file, and any error of reading the source.
std::vector<WrittenFile> WriteTensorFiles(const ModelSource& source,
                                          const std::vector<OutFile>& files,
                                          const WriteContext& context);

}  // namespace tandem::convert
