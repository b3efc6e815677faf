#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "convert/work/write_context.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/sha256.h"

namespace tandem::convert {

// Safetensors files as targets have them: what is in which, and where, is settled before the first
// byte, so that tensors may be written in any order, by several threads, and again after a kill.

// One tensor of a file.
struct OutTensor {
  engine::NamedTensor tensor;
  // Of the source, one behind the other: one, or all layers.
  std::vector<int64_t> sources;
};

struct OutFile {
  std::string name;
  std::vector<OutTensor> tensors;
};

// The tensors of the source as they are.
std::vector<OutTensor> EachAlone(const ModelSource& source);
// Layers that differ by their number alone as one (engine/formats/stored/stacked_tensors.h), the
// others as they are. Throws kUnsupported for a source that uses the mark in names of its own.
std::vector<OutTensor> Stacked(const ModelSource& source);

// `<stem>-00001-of-0000N.safetensors`, each of `max_bytes` at most, unless a tensor alone is
// longer; with `plain_if_one`, what fits in one is `<stem>.safetensors`.
std::vector<OutFile> InShards(std::vector<OutTensor> tensors, const std::string& stem,
                              int64_t max_bytes, bool plain_if_one);

// Throws kIo where the disk of `dir` has less room than `bytes` and 5 %, less what is in `dir`.
void CheckRoom(const std::filesystem::path& dir, int64_t bytes);
int64_t BytesOf(const std::vector<OutFile>& files);

struct WrittenFile {
  std::string name;
  int64_t bytes = 0;
  engine::Sha256Digest sha256 = {};
};

// Writes the files into context.target with the tensors of `source`, on all threads of the pool,
// going on from context.journal, and hashes them (context.hashed). Throws kIo naming the file, and
// what reading throws.
std::vector<WrittenFile> WriteTensorFiles(const ModelSource& source,
                                          const std::vector<OutFile>& files,
                                          const WriteContext& context);

}  // namespace tandem::convert
