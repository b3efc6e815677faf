// Formats: https://zarr-specs.readthedocs.io (v2; v3 core, bytes, zstd, crc32c, sharding_indexed).

#include "convert/orbax/zarr.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "convert/orbax/byte_reader.h"
#include "convert/orbax/zstd.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/crc32c.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

using Json = nlohmann::ordered_json;
using engine::DType;

constexpr size_t kMaxRank = 32;
constexpr int64_t kMaxBytes = int64_t{1} << 46;
constexpr uint64_t kNoChunk = std::numeric_limits<uint64_t>::max();

struct TypeName {
  const char* name;
  int64_t bytes;
  std::optional<DType> dtype;
};
// Both versions' names; bfloat16 and the like are TensorStore's in version 2.
constexpr std::array kTypes = {
    TypeName{"<f4", 4, DType::kF32},         TypeName{"float32", 4, DType::kF32},
    TypeName{"bfloat16", 2, DType::kBF16},   TypeName{"<f2", 2, DType::kF16},
    TypeName{"float16", 2, DType::kF16},     TypeName{"<f8", 8, DType::kF64},
    TypeName{"float64", 8, DType::kF64},     TypeName{"<i8", 8, DType::kI64},
    TypeName{"int64", 8, DType::kI64},       TypeName{"<i4", 4, DType::kI32},
    TypeName{"int32", 4, DType::kI32},       TypeName{"<i2", 2, DType::kI16},
    TypeName{"int16", 2, DType::kI16},       TypeName{"|i1", 1, DType::kI8},
    TypeName{"int8", 1, DType::kI8},         TypeName{"|u1", 1, DType::kU8},
    TypeName{"uint8", 1, DType::kU8},        TypeName{"|b1", 1, DType::kBool},
    TypeName{"bool", 1, DType::kBool},       TypeName{"<u2", 2, std::nullopt},
    TypeName{"uint16", 2, std::nullopt},     TypeName{"<u4", 4, std::nullopt},
    TypeName{"uint32", 4, std::nullopt},     TypeName{"<u8", 8, std::nullopt},
    TypeName{"uint64", 8, std::nullopt},     TypeName{"float8_e4m3fn", 1, std::nullopt},
    TypeName{"float8_e5m2", 1, std::nullopt}};

// The metadata of one array, which every message names.
class Metadata {
 public:
  Metadata(std::string_view json, const std::string& what)
      : root_(engine::ParseUntrustedJson(json, what)), what_(what) {
    if (!root_.is_object()) Broken("is not a JSON object");
  }

  const Json& root() const { return root_; }

  [[noreturn]] void Broken(const std::string& why) const {
    throw Error(ErrorCode::kDataLoss, what_ + ": " + why);
  }
  [[noreturn]] void Refuse(const std::string& why) const {
    throw Error(ErrorCode::kUnsupported, what_ + ": " + why);
  }

  const Json& At(const Json& object, const char* name) const {
    const auto found = object.is_object() ? object.find(name) : object.end();
    if (found == object.end()) Broken(std::string("has no ") + name);
    return *found;
  }
  std::string Text(const Json& object, const char* name) const {
    const Json& value = At(object, name);
    if (!value.is_string()) Broken(std::string(name) + " is not a text");
    return value.get<std::string>();
  }
  std::string TextOr(const Json& object, const char* name, const char* fallback) const {
    return object.is_object() && object.contains(name) ? Text(object, name) : fallback;
  }

  std::vector<int64_t> Shape(const Json& list, const char* name, int64_t least) const {
    if (!list.is_array() || list.size() > kMaxRank) {
      Broken(std::string(name) + " is not a list of at most 32 numbers");
    }
    std::vector<int64_t> shape;
    for (const Json& item : list) {
      if (!item.is_number_integer() || item < least || item > kMaxBytes) {
        Broken(std::string(name) + " holds a size that cannot be");
      }
      shape.push_back(item.get<int64_t>());
    }
    return shape;
  }

  int64_t BytesOf(const std::vector<int64_t>& shape, int64_t element_bytes) const {
    int64_t n = element_bytes;
    for (const int64_t size : shape) {
      if (size != 0 && n > kMaxBytes / size) Broken("has more than 64 TiB");
      n *= size;
    }
    return n;
  }

  void SetType(const std::string& name, ZarrArray* array) const {
    const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const TypeName& type) { return type.name == name; });
    if (found == kTypes.end()) Refuse("elements of type " + Quoted(name) + " are not read");
    array->type_name = name;
    array->element_bytes = found->bytes;
    array->dtype = found->dtype;
  }

 private:
  Json root_;
  std::string what_;
};

ZarrArray ParseV2(const Metadata& metadata) {
  const Json& root = metadata.root();
  ZarrArray array;
  array.version = 2;
  array.shape = metadata.Shape(metadata.At(root, "shape"), "shape", 0);
  array.chunk_shape = metadata.Shape(metadata.At(root, "chunks"), "chunks", 1);
  metadata.SetType(metadata.Text(root, "dtype"), &array);
  if (const std::string order = metadata.TextOr(root, "order", "C"); order != "C") {
    metadata.Refuse("order " + Quoted(order) + " is not read, C is");
  }
  if (const auto filters = root.find("filters"); filters != root.end() && !filters->is_null()) {
    metadata.Refuse("filters are not read");
  }
  if (const Json& compressor = metadata.At(root, "compressor"); !compressor.is_null()) {
    const std::string id = metadata.Text(compressor, "id");
    if (id != "zstd") metadata.Refuse("compressor " + Quoted(id) + " is not read, zstd is");
    array.is_compressed = true;
  }
  const std::string separator = metadata.TextOr(root, "dimension_separator", ".");
  if (separator != "." && separator != "/")
    metadata.Broken("dimension_separator is neither . nor /");
  array.separator = separator[0];
  return array;
}

struct Codecs {
  bool is_compressed = false;
  bool has_crc = false;
  const Json* sharding = nullptr;
};

Codecs ParseCodecs(const Metadata& metadata, const Json& list) {
  if (!list.is_array()) metadata.Broken("codecs are not a list");
  Codecs codecs;
  for (const Json& codec : list) {
    const std::string name = metadata.Text(codec, "name");
    if (name == "sharding_indexed" && list.size() == 1) {
      codecs.sharding = &metadata.At(codec, "configuration");
    } else if (name == "bytes") {
      const auto configuration = codec.find("configuration");
      if (configuration != codec.end() &&
          metadata.TextOr(*configuration, "endian", "little") != "little") {
        metadata.Refuse("big-endian elements are not read");
      }
    } else if (name == "zstd" && !codecs.has_crc) {
      codecs.is_compressed = true;
    } else if (name == "crc32c" && !codecs.has_crc) {
      codecs.has_crc = true;
    } else {
      metadata.Refuse("codec " + Quoted(name) +
                      " is not read here; bytes, zstd, crc32c and one sharding_indexed are");
    }
  }
  return codecs;
}

void ParseSharding(const Metadata& metadata, const Json& configuration, ZarrArray* array) {
  ZarrArray::Sharding sharding;
  sharding.chunk_shape =
      metadata.Shape(metadata.At(configuration, "chunk_shape"), "a shard's chunk_shape", 1);
  const Codecs inner = ParseCodecs(metadata, metadata.At(configuration, "codecs"));
  const Codecs index = ParseCodecs(metadata, metadata.At(configuration, "index_codecs"));
  if (inner.sharding != nullptr || index.sharding != nullptr) {
    metadata.Refuse("shards in shards are not read");
  }
  if (inner.has_crc) metadata.Refuse("checksums of chunks are not read");
  if (index.is_compressed) metadata.Broken("the index of a shard cannot be compressed");
  array->is_compressed = inner.is_compressed;
  sharding.index_has_crc = index.has_crc;
  const std::string location = metadata.TextOr(configuration, "index_location", "end");
  if (location != "start" && location != "end") metadata.Broken("index_location is unknown");
  sharding.index_at_start = location == "start";
  if (sharding.chunk_shape.size() != array->chunk_shape.size()) {
    metadata.Broken("a shard's chunks have another rank than the shard");
  }
  for (size_t i = 0; i < sharding.chunk_shape.size(); ++i) {
    if (array->chunk_shape[i] % sharding.chunk_shape[i] != 0) {
      metadata.Broken("a shard is no whole number of its chunks");
    }
  }
  array->sharding = std::move(sharding);
}

ZarrArray ParseV3(const Metadata& metadata) {
  const Json& root = metadata.root();
  if (metadata.Text(root, "node_type") != "array") metadata.Broken("is no array");
  ZarrArray array;
  array.shape = metadata.Shape(metadata.At(root, "shape"), "shape", 0);
  metadata.SetType(metadata.Text(root, "data_type"), &array);
  const Json& grid = metadata.At(root, "chunk_grid");
  if (metadata.Text(grid, "name") != "regular") metadata.Refuse("chunk_grid is not regular");
  array.chunk_shape = metadata.Shape(metadata.At(metadata.At(grid, "configuration"), "chunk_shape"),
                                     "chunk_shape", 1);
  const Json& encoding = metadata.At(root, "chunk_key_encoding");
  if (metadata.Text(encoding, "name") != "default") {
    metadata.Refuse("chunk_key_encoding is not the default");
  }
  const auto configuration = encoding.find("configuration");
  const std::string separator =
      configuration == encoding.end() ? "/" : metadata.TextOr(*configuration, "separator", "/");
  if (separator != "." && separator != "/") metadata.Broken("separator is neither . nor /");
  array.separator = separator[0];
  const Codecs codecs = ParseCodecs(metadata, metadata.At(root, "codecs"));
  if (codecs.has_crc) metadata.Refuse("checksums of chunks are not read");
  array.is_compressed = codecs.is_compressed;
  if (codecs.sharding != nullptr) ParseSharding(metadata, *codecs.sharding, &array);
  return array;
}

// Steps through all positions of a grid in C order; false behind the last.
bool Next(std::vector<int64_t>& at, const std::vector<int64_t>& sizes) {
  for (size_t i = at.size(); i-- > 0;) {
    if (++at[i] < sizes[i]) return true;
    at[i] = 0;
  }
  return false;
}

std::vector<int64_t> GridOf(const std::vector<int64_t>& shape, const std::vector<int64_t>& chunk) {
  std::vector<int64_t> grid(shape.size());
  for (size_t i = 0; i < grid.size(); ++i) grid[i] = (shape[i] + chunk[i] - 1) / chunk[i];
  return grid;
}

int64_t Product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const int64_t size : sizes) n *= size;
  return n;
}

class Reader {
 public:
  Reader(const KeyValues& values, const std::string& prefix, const ZarrArray& array,
         std::optional<std::span<std::byte>> out)
      : values_(values), prefix_(prefix), array_(array), out_(out) {}
  Reader(const KeyValues& values, const std::string& prefix, const ZarrArray& array,
         const TakeRun& take)
      : values_(values), prefix_(prefix), array_(array), take_(&take) {}

  void Read() {
    if (array_.bytes() == 0) return;
    const std::vector<int64_t> grid = GridOf(array_.shape, array_.chunk_shape);
    std::vector<int64_t> at(grid.size(), 0);
    do {
      key_ = prefix_ + "/" + ZarrChunkKey(array_, at);
      const std::optional<StoredBytes> stored = values_.Find(key_);
      if (!stored) Broken("is missing");
      std::vector<int64_t> first(at.size());
      for (size_t i = 0; i < at.size(); ++i) first[i] = at[i] * array_.chunk_shape[i];
      if (array_.sharding) {
        ReadShard(stored->bytes, first);
      } else {
        ReadChunk(stored->bytes, first, array_.chunk_shape);
      }
      stored->LetGo();
    } while (Next(at, grid));
  }

 private:
  [[noreturn]] void Broken(const std::string& why) const {
    throw Error(ErrorCode::kDataLoss, Quoted(key_) + ": " + why);
  }

  // Where a chunk of a shard lies: its index, of offset and length for each.
  std::vector<uint64_t> IndexOf(std::span<const std::byte> shard, uint64_t n) const {
    const auto& sharding = *array_.sharding;
    const uint64_t bytes = n * 16 + (sharding.index_has_crc ? 4 : 0);
    if (n > shard.size() / 16 || bytes > shard.size()) Broken("is shorter than its index");
    const auto index = sharding.index_at_start ? shard.first(static_cast<size_t>(bytes))
                                               : shard.last(static_cast<size_t>(bytes));
    ByteReader in(index, Quoted(key_));
    std::vector<uint64_t> numbers(static_cast<size_t>(2 * n));
    for (uint64_t& number : numbers) number = in.U64();
    if (sharding.index_has_crc &&
        engine::Crc32c(0, index.first(static_cast<size_t>(n * 16))) != in.U32()) {
      Broken("the index is damaged: its CRC-32C is another");
    }
    return numbers;
  }

  void ReadShard(std::span<const std::byte> shard, const std::vector<int64_t>& first) {
    const std::vector<int64_t>& chunk = array_.sharding->chunk_shape;
    const std::vector<int64_t> grid = GridOf(array_.chunk_shape, chunk);
    const std::vector<uint64_t> index = IndexOf(shard, static_cast<uint64_t>(Product(grid)));
    std::vector<int64_t> at(grid.size(), 0);
    size_t i = 0;
    do {
      const uint64_t offset = index[i];
      const uint64_t length = index[i + 1];
      i += 2;
      std::vector<int64_t> from(at.size());
      bool is_within = true;
      for (size_t d = 0; d < at.size(); ++d) {
        from[d] = first[d] + at[d] * chunk[d];
        is_within = is_within && from[d] < array_.shape[d];
      }
      if (!is_within) continue;  // beyond the array's end: writers leave these out
      if (offset == kNoChunk && length == kNoChunk) Broken("a chunk of the shard is missing");
      if (offset > shard.size() || length > shard.size() - offset) {
        Broken("the index names bytes that are not there");
      }
      ReadChunk(shard.subspan(static_cast<size_t>(offset), static_cast<size_t>(length)), from,
                chunk);
    } while (Next(at, grid));
  }

  void ReadChunk(std::span<const std::byte> stored, const std::vector<int64_t>& first,
                 const std::vector<int64_t>& chunk) {
    const auto bytes = static_cast<size_t>(Product(chunk) * array_.element_bytes);
    if (!array_.is_compressed) {
      if (stored.size() != bytes) {
        Broken("has " + std::to_string(stored.size()) + " bytes instead of " +
               std::to_string(bytes));
      }
      Deal(stored, first, chunk);
      return;
    }
    if (const auto run = RunOf(first, chunk, bytes)) return DecodeZstd(stored, *run, Quoted(key_));
    buffer_.resize(bytes);
    DecodeZstd(stored, buffer_, Quoted(key_));
    Deal(buffer_, first, chunk);
  }

  void Deal(std::span<const std::byte> elements, const std::vector<int64_t>& first,
            const std::vector<int64_t>& chunk) {
    if (out_) return Place(elements, first, chunk);
    if (take_ == nullptr) return;
    int64_t offset = 0;
    for (size_t d = 0; d < first.size(); ++d) offset = offset * array_.shape[d] + first[d];
    (*take_)(offset * array_.element_bytes, elements);
  }

  // Where a chunk's elements go, if they are one run of the array: decoded without a copy.
  std::optional<std::span<std::byte>> RunOf(const std::vector<int64_t>& first,
                                            const std::vector<int64_t>& chunk, size_t bytes) const {
    if (!out_) return std::nullopt;
    const size_t rank = chunk.size();
    size_t axis = 0;  // the first that has more than one element of the chunk
    while (axis < rank && chunk[axis] == 1) ++axis;
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) {
      if (first[d] + chunk[d] > array_.shape[d]) return std::nullopt;
      if (d > axis && chunk[d] != array_.shape[d]) return std::nullopt;
      offset = offset * array_.shape[d] + first[d];
    }
    return out_->subspan(static_cast<size_t>(offset * array_.element_bytes), bytes);
  }

  // Copies what of a chunk lies within the array, row by row.
  void Place(std::span<const std::byte> from, const std::vector<int64_t>& first,
             const std::vector<int64_t>& chunk) {
    const size_t rank = chunk.size();
    std::vector<int64_t> inside(rank);
    for (size_t d = 0; d < rank; ++d) inside[d] = std::min(chunk[d], array_.shape[d] - first[d]);
    const int64_t run = (rank == 0 ? 1 : inside.back()) * array_.element_bytes;
    std::vector<int64_t> rows(inside.begin(), inside.end() - (rank == 0 ? 0 : 1));
    std::vector<int64_t> at(rows.size(), 0);
    do {
      int64_t source = 0;
      int64_t target = 0;
      for (size_t d = 0; d < rank; ++d) {
        const int64_t i = d < at.size() ? at[d] : 0;
        source = source * chunk[d] + i;
        target = target * array_.shape[d] + first[d] + i;
      }
      std::memcpy(out_->data() + target * array_.element_bytes,
                  from.data() + source * array_.element_bytes, static_cast<size_t>(run));
    } while (Next(at, rows));
  }

  const KeyValues& values_;
  const std::string& prefix_;
  const ZarrArray& array_;
  std::optional<std::span<std::byte>> out_;  // none: chunks are taken, or forgotten
  const TakeRun* take_ = nullptr;
  std::string key_;
  std::vector<std::byte> buffer_;
};

}  // namespace

int64_t ZarrArray::elements() const { return Product(shape); }
int64_t ZarrArray::bytes() const { return elements() * element_bytes; }

ZarrArray ParseZarr(int version, std::string_view json, const std::string& what) {
  const Metadata metadata(json, what);
  const Json& format = metadata.At(metadata.root(), "zarr_format");
  if (format != version) metadata.Broken("zarr_format is not " + std::to_string(version));
  ZarrArray array = version == 2 ? ParseV2(metadata) : ParseV3(metadata);
  if (array.chunk_shape.size() != array.shape.size()) metadata.Broken("chunks have another rank");
  metadata.BytesOf(array.shape, array.element_bytes);
  metadata.BytesOf(array.chunk_shape, array.element_bytes);
  return array;
}

std::string ZarrChunkKey(const ZarrArray& array, std::span<const int64_t> at) {
  std::string key = array.version == 3 ? "c" : "";
  for (size_t i = 0; i < at.size(); ++i) {
    if (array.version == 3 || i > 0) key += array.separator;
    key += std::to_string(at[i]);
  }
  return key.empty() ? "0" : key;
}

void ReadZarr(const KeyValues& values, const std::string& prefix, const ZarrArray& array,
              std::span<std::byte> out) {
  if (static_cast<int64_t>(out.size()) != array.bytes()) {
    throw Error(ErrorCode::kInternal, prefix + ": room for another number of bytes");
  }
  Reader(values, prefix, array, out).Read();
}

bool ReadZarrRuns(const KeyValues& values, const std::string& prefix, const ZarrArray& array,
                  const TakeRun& take) {
  const std::vector<int64_t>& chunk =
      array.sharding ? array.sharding->chunk_shape : array.chunk_shape;
  size_t axis = 0;  // the first that has more than one element of a chunk
  while (axis < chunk.size() && chunk[axis] == 1) ++axis;
  for (size_t d = 0; d < chunk.size(); ++d) {
    if (array.shape[d] % array.chunk_shape[d] != 0) return false;
    if (d > axis && chunk[d] != array.shape[d]) return false;
  }
  Reader(values, prefix, array, take).Read();
  return true;
}

void DecompressZarr(const KeyValues& values, const std::string& prefix, const ZarrArray& array) {
  Reader(values, prefix, array, std::nullopt).Read();
}

}  // namespace tandem::convert
