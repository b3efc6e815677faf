// Formats: https://zarr-specs.readthedocs.io (v2; v3 core, bytes, zstd, crc32c, sharding_indexed).

#include "convert/orbax/zarr.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"

namespace tandem::convert {
namespace {

using Json = nlohmann::ordered_json;
using engine::DType;

constexpr size_t kMaxRank = 32;
constexpr int64_t kMaxBytes = int64_t{1} << 46;

struct TypeName {
  const char* name;
  int64_t bytes;
  std::optional<DType> dtype;
};
// Names of both versions; in version 2 bfloat16 and float8 are TensorStore's extensions.
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

// The metadata of one array; every message names it.
class Metadata {
 public:
  Metadata(std::string_view json, const std::string& what)
      : root_(engine::ParseUntrustedJson(json, what)), what_(what) {
    if (!root_.is_object()) Broken("must be a JSON object");
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
    if (found == object.end()) Broken(std::string("field ") + name + " is missing");
    return *found;
  }
  std::string Text(const Json& object, const char* name) const {
    const Json& value = At(object, name);
    if (!value.is_string()) Broken(std::string(name) + " must be a string");
    return value.get<std::string>();
  }
  std::string TextOr(const Json& object, const char* name, const char* fallback) const {
    return object.is_object() && object.contains(name) ? Text(object, name) : fallback;
  }

  std::vector<int64_t> Shape(const Json& list, const char* name, int64_t least) const {
    if (!list.is_array() || list.size() > kMaxRank) {
      Broken(std::string(name) + " must be an array of at most 32 integers");
    }
    std::vector<int64_t> shape;
    for (const Json& item : list) {
      if (!item.is_number_integer() || item < least || item > kMaxBytes) {
        Broken(std::string(name) + " must contain integers of at least " + std::to_string(least) +
               " and at most " + std::to_string(kMaxBytes));
      }
      shape.push_back(item.get<int64_t>());
    }
    return shape;
  }

  int64_t BytesOf(const std::vector<int64_t>& shape, int64_t element_bytes) const {
    int64_t n = element_bytes;
    for (const int64_t size : shape) {
      if (size != 0 && n > kMaxBytes / size)
        Broken("the array has more than 64 TiB, which is the limit");
      n *= size;
    }
    return n;
  }

  void SetType(const std::string& name, ZarrArray* array) const {
    const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                    [&](const TypeName& type) { return type.name == name; });
    array->type_name = name;
    if (found == kTypes.end()) return;
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
    metadata.Refuse("order " + Quoted(order) + " is not supported, only 'C'");
  }
  if (const auto filters = root.find("filters"); filters != root.end() && !filters->is_null()) {
    metadata.Refuse("filters are not supported");
  }
  if (const Json& compressor = metadata.At(root, "compressor"); !compressor.is_null()) {
    const std::string id = metadata.Text(compressor, "id");
    if (id != "zstd")
      metadata.Refuse("compressor " + Quoted(id) + " is not supported, only 'zstd'");
    array.is_compressed = true;
  }
  const std::string separator = metadata.TextOr(root, "dimension_separator", ".");
  if (separator != "." && separator != "/")
    metadata.Broken("dimension_separator must be '.' or '/'");
  array.separator = separator[0];
  return array;
}

struct Codecs {
  bool is_compressed = false;
  bool has_crc = false;
  const Json* sharding = nullptr;
};

Codecs ParseCodecs(const Metadata& metadata, const Json& list) {
  if (!list.is_array()) metadata.Broken("codecs must be an array");
  Codecs codecs;
  for (const Json& codec : list) {
    const std::string name = metadata.Text(codec, "name");
    if (name == "sharding_indexed" && list.size() == 1) {
      codecs.sharding = &metadata.At(codec, "configuration");
    } else if (name == "bytes") {
      const auto configuration = codec.find("configuration");
      if (configuration != codec.end() &&
          metadata.TextOr(*configuration, "endian", "little") != "little") {
        metadata.Refuse("big-endian elements are not supported");
      }
    } else if (name == "zstd" && !codecs.has_crc) {
      codecs.is_compressed = true;
    } else if (name == "crc32c" && !codecs.has_crc) {
      codecs.has_crc = true;
    } else {
      metadata.Refuse(
          "codec " + Quoted(name) +
          " is not supported here; supported are bytes, zstd, crc32c and one sharding_indexed");
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
    metadata.Refuse("nested shards are not supported");
  }
  if (inner.has_crc) metadata.Refuse("checksums of chunks are not supported");
  if (index.is_compressed) metadata.Broken("the index of a shard must not be compressed");
  array->is_compressed = inner.is_compressed;
  sharding.index_has_crc = index.has_crc;
  const std::string location = metadata.TextOr(configuration, "index_location", "end");
  if (location != "start" && location != "end")
    metadata.Broken("index_location must be 'start' or 'end'");
  sharding.index_at_start = location == "start";
  if (sharding.chunk_shape.size() != array->chunk_shape.size()) {
    metadata.Broken("chunk_shape inside a shard must have the shard's rank");
  }
  for (size_t i = 0; i < sharding.chunk_shape.size(); ++i) {
    if (array->chunk_shape[i] % sharding.chunk_shape[i] != 0) {
      metadata.Broken("the shape of a shard must be a multiple of its chunk_shape");
    }
  }
  array->sharding = std::move(sharding);
}

ZarrArray ParseV3(const Metadata& metadata) {
  const Json& root = metadata.root();
  if (metadata.Text(root, "node_type") != "array") metadata.Broken("node_type must be 'array'");
  ZarrArray array;
  array.shape = metadata.Shape(metadata.At(root, "shape"), "shape", 0);
  metadata.SetType(metadata.Text(root, "data_type"), &array);
  const Json& grid = metadata.At(root, "chunk_grid");
  if (metadata.Text(grid, "name") != "regular")
    metadata.Refuse("only the regular chunk_grid is supported");
  array.chunk_shape = metadata.Shape(metadata.At(metadata.At(grid, "configuration"), "chunk_shape"),
                                     "chunk_shape", 1);
  const Json& encoding = metadata.At(root, "chunk_key_encoding");
  if (metadata.Text(encoding, "name") != "default") {
    metadata.Refuse("only the default chunk_key_encoding is supported");
  }
  const auto configuration = encoding.find("configuration");
  const std::string separator =
      configuration == encoding.end() ? "/" : metadata.TextOr(*configuration, "separator", "/");
  if (separator != "." && separator != "/") metadata.Broken("separator must be '.' or '/'");
  array.separator = separator[0];
  const Codecs codecs = ParseCodecs(metadata, metadata.At(root, "codecs"));
  if (codecs.has_crc) metadata.Refuse("checksums of chunks are not supported");
  array.is_compressed = codecs.is_compressed;
  if (codecs.sharding != nullptr) ParseSharding(metadata, *codecs.sharding, &array);
  return array;
}

}  // namespace

int64_t ZarrArray::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}
int64_t ZarrArray::bytes() const { return elements() * element_bytes; }

ZarrArray ParseZarr(int version, std::string_view json, const std::string& what) {
  const Metadata metadata(json, what);
  const Json& format = metadata.At(metadata.root(), "zarr_format");
  if (format != version) metadata.Broken("zarr_format must be " + std::to_string(version));
  ZarrArray array = version == 2 ? ParseV2(metadata) : ParseV3(metadata);
  if (array.chunk_shape.size() != array.shape.size())
    metadata.Broken("the chunks must have the rank of the array");
  const int64_t element_bytes = std::max<int64_t>(1, array.element_bytes);
  metadata.BytesOf(array.shape, element_bytes);
  metadata.BytesOf(array.chunk_shape, element_bytes);
  return array;
}

bool HasRuns(const ZarrArray& array) {
  const std::vector<int64_t>& chunk =
      array.sharding ? array.sharding->chunk_shape : array.chunk_shape;
  size_t axis = 0;  // first axis along which a chunk has several elements
  while (axis < chunk.size() && chunk[axis] == 1) ++axis;
  for (size_t d = axis + 1; d < chunk.size(); ++d) {
    if (chunk[d] != array.shape[d]) return false;
  }
  return true;
}

std::string ZarrChunkKey(const ZarrArray& array, std::span<const int64_t> at) {
  std::string key = array.version == 3 ? "c" : "";
  for (size_t i = 0; i < at.size(); ++i) {
    if (array.version == 3 || i > 0) key += array.separator;
    key += std::to_string(at[i]);
  }
  return key.empty() ? "0" : key;
}

}  // namespace tandem::convert
