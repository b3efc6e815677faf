#include "convert/orbax/zarr_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "convert/orbax/byte_writer.h"
#include "convert/orbax/zstd.h"
#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/crc32c.h"
#include "engine/tensor/tensor.h"

namespace tandem::convert {
namespace {

using engine::DType;
// Sorts names like TensorStore.
using SortedJson = nlohmann::json;

struct TypeNames {
  DType dtype;
  const char* zarr2;
  const char* zarr3;
};
constexpr std::array kTypeNames = {
    TypeNames{DType::kF32, "<f4", "float32"},        TypeNames{DType::kF64, "<f8", "float64"},
    TypeNames{DType::kBF16, "bfloat16", "bfloat16"}, TypeNames{DType::kF16, "<f2", "float16"},
    TypeNames{DType::kI64, "<i8", "int64"},          TypeNames{DType::kI32, "<i4", "int32"},
    TypeNames{DType::kI16, "<i2", "int16"},          TypeNames{DType::kI8, "|i1", "int8"},
    TypeNames{DType::kU8, "|u1", "uint8"},           TypeNames{DType::kBool, "|b1", "bool"}};

int64_t SmallestFactor(int64_t n) {
  for (int64_t factor = 2; factor * factor <= n; ++factor) {
    if (n % factor == 0) return factor;
  }
  return n;
}

std::vector<int64_t> ChunkShape(std::vector<int64_t> shape, int64_t element_bytes, int64_t most) {
  for (int64_t& size : shape) size = std::max<int64_t>(1, size);
  int64_t bytes = engine::ElementCount(shape) * element_bytes;
  for (int64_t& size : shape) {
    while (bytes > most && size > 1) {
      const int64_t factor = SmallestFactor(size);
      size /= factor;
      bytes /= factor;
    }
  }
  return shape;
}

int64_t Grid(const ZarrArray& array, size_t axis) {
  return (array.shape[axis] + array.chunk_shape[axis] - 1) / array.chunk_shape[axis];
}

// Returns a chunk's bytes: a run of the array, or gathered in `buffer`. Chunks divide the array, so
// none exceeds it.
std::span<const std::byte> ChunkBytes(const ZarrArray& array, const std::vector<int64_t>& at,
                                      std::span<const std::byte> bytes,
                                      std::vector<std::byte>* buffer) {
  const size_t rank = at.size();
  // Trailing axes that chunks span entirely form one run.
  size_t whole = rank;
  int64_t run = array.element_bytes;
  while (whole > 0 && array.chunk_shape[whole - 1] == array.shape[whole - 1]) {
    run *= array.shape[--whole];
  }
  if (whole > 0) run *= array.chunk_shape[--whole];
  // A run spans axis `whole` and the following ones; the earlier axes are walked.
  std::vector<int64_t> inside(whole, 0);
  int64_t n_runs = 1;
  for (size_t d = 0; d < whole; ++d) n_runs *= array.chunk_shape[d];
  if (n_runs > 1) buffer->resize(static_cast<size_t>(n_runs * run));
  for (int64_t i = 0; i < n_runs; ++i) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t within = d < whole ? inside[d] : 0;
      offset = offset * array.shape[d] + at[d] * array.chunk_shape[d] + within;
    }
    const auto part =
        bytes.subspan(static_cast<size_t>(offset * array.element_bytes), static_cast<size_t>(run));
    if (n_runs == 1) return part;
    std::memcpy(buffer->data() + i * run, part.data(), part.size());
    for (size_t d = whole; d-- > 0;) {
      if (++inside[d] < array.chunk_shape[d]) break;
      inside[d] = 0;
    }
  }
  return *buffer;
}

}  // namespace

ZarrArray PlanZarr(int version, DType dtype, std::vector<int64_t> shape, int64_t max_chunk_bytes) {
  if (version != 2 && version != 3) {
    throw Error(ErrorCode::kInvalidArgument, "the zarr version must be 2 or 3");
  }
  const auto type = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                 [&](const TypeNames& names) { return names.dtype == dtype; });
  TANDEM_CHECK(type != kTypeNames.end());
  ZarrArray array;
  array.version = version;
  array.type_name = version == 2 ? type->zarr2 : type->zarr3;
  array.element_bytes = static_cast<int64_t>(engine::DTypeBytes(dtype));
  array.dtype = dtype;
  array.is_compressed = true;
  array.separator = version == 2 ? '.' : '/';
  array.chunk_shape = ChunkShape(shape, array.element_bytes, std::max<int64_t>(1, max_chunk_bytes));
  array.shape = std::move(shape);
  if (version == 3) {
    // Like Orbax: every shard is one chunk and its index.
    array.sharding = ZarrArray::Sharding{};
    array.sharding->chunk_shape = array.chunk_shape;
    array.sharding->index_has_crc = true;
  }
  return array;
}

const char* ZarrMetadataName(const ZarrArray& array) {
  return array.version == 2 ? ".zarray" : "zarr.json";
}

std::string ZarrMetadataText(const ZarrArray& array) {
  if (array.version == 2) {
    return SortedJson{{"zarr_format", 2},
                      {"shape", array.shape},
                      {"chunks", array.chunk_shape},
                      {"dtype", array.type_name},
                      {"compressor", {{"id", "zstd"}, {"level", 1}}},
                      {"fill_value", nullptr},
                      {"filters", nullptr},
                      {"order", "C"},
                      {"dimension_separator", "."}}
        .dump();
  }
  const SortedJson bytes = {{"name", "bytes"}, {"configuration", {{"endian", "little"}}}};
  const SortedJson zstd = {{"name", "zstd"}, {"configuration", {{"checksum", true}, {"level", 1}}}};
  const SortedJson sharding = {
      {"name", "sharding_indexed"},
      {"configuration",
       {{"chunk_shape", array.chunk_shape},
        {"codecs", SortedJson::array({bytes, zstd})},
        {"index_codecs", SortedJson::array({bytes, SortedJson{{"name", "crc32c"}}})}}}};
  const bool is_float = array.dtype == DType::kF32 || array.dtype == DType::kF64 ||
                        array.dtype == DType::kBF16 || array.dtype == DType::kF16;
  SortedJson fill = is_float ? SortedJson(0.0) : SortedJson(0);
  if (array.dtype == DType::kBool) fill = false;
  return SortedJson{
      {"zarr_format", 3},
      {"node_type", "array"},
      {"shape", array.shape},
      {"data_type", array.type_name},
      {"chunk_grid",
       {{"name", "regular"}, {"configuration", {{"chunk_shape", array.chunk_shape}}}}},
      {"chunk_key_encoding", {{"name", "default"}}},
      {"fill_value", std::move(fill)},
      {"codecs", SortedJson::array({sharding})}}
      .dump();
}

int64_t ZarrChunkCount(const ZarrArray& array) {
  int64_t n = 1;
  for (size_t d = 0; d < array.shape.size(); ++d) n *= Grid(array, d);
  return n;
}

std::vector<int64_t> ZarrChunkPosition(const ZarrArray& array, int64_t chunk) {
  std::vector<int64_t> at(array.shape.size());
  for (size_t d = at.size(); d-- > 0;) {
    at[d] = chunk % Grid(array, d);
    chunk /= Grid(array, d);
  }
  return at;
}

std::vector<std::byte> EncodeZarrChunk(const ZarrArray& array, int64_t chunk,
                                       std::span<const std::byte> bytes) {
  std::vector<std::byte> buffer;
  std::vector<std::byte> encoded =
      EncodeZstd(ChunkBytes(array, ZarrChunkPosition(array, chunk), bytes, &buffer));
  if (!array.sharding) return encoded;
  ByteWriter index;
  index.U64(0);
  index.U64(encoded.size());
  index.U32(engine::Crc32c(0, index.bytes()));
  encoded.insert(encoded.end(), index.bytes().begin(), index.bytes().end());
  return encoded;
}

}  // namespace tandem::convert
