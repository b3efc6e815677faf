#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "training/data/parquet/place.h"

// The metadata of a Parquet file, as stored. Types, codecs and encodings have the format's numbers
// (parquet.thrift); callers decide which of them they support.
namespace tandem::training {

enum class ParquetType : int32_t {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLenByteArray = 7,
};

enum class ParquetCodec : int32_t { kUncompressed = 0, kSnappy = 1, kGzip = 2, kZstd = 6 };

enum class ParquetEncoding : int32_t {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kBitPacked = 4,
  kRleDictionary = 8,
};

enum class Repetition : int32_t { kRequired = 0, kOptional = 1, kRepeated = 2 };

// The meaning of a column's values, from its LogicalType or else its ConvertedType.
enum class Annotation {
  kNone,
  kText,  // STRING, ENUM, JSON
  kList,
  kSigned,
  kUnsigned,
  kNull,     // UNKNOWN: only nulls
  kRefused,  // all others; SchemaElement::annotation_name has the name
};

struct SchemaElement {
  std::string name;
  std::optional<ParquetType> type;  // absent: a group
  Repetition repetition = Repetition::kRequired;
  int32_t n_children = 0;
  Annotation annotation = Annotation::kNone;
  std::string_view annotation_name;  // points into a static table
};

struct ColumnChunk {
  ParquetType type = ParquetType::kBoolean;
  ParquetCodec codec = ParquetCodec::kUncompressed;
  std::vector<ParquetEncoding> encodings;  // of all pages, levels included
  int64_t n_values = 0;                    // nulls and empty lists included
  int64_t compressed_bytes = 0;            // of all pages, headers included
  int64_t data_offset = 0;
  std::optional<int64_t> dictionary_offset;
  bool is_encrypted = false;
  bool is_elsewhere = false;  // in another file
};

struct RowGroup {
  int64_t n_rows = 0;
  std::vector<ColumnChunk> columns;  // one per leaf of the schema, in its order
};

struct FileMetadata {
  std::vector<SchemaElement> schema;  // depth first; the first is the root
  int64_t n_rows = 0;
  std::vector<RowGroup> row_groups;
  size_t data_end = 0;  // offset of the footer
};

enum class PageType : int32_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

struct PageHeader {
  PageType type = PageType::kData;
  int32_t bytes = 0;             // decompressed, with levels
  int32_t compressed_bytes = 0;  // as stored after the header
  std::optional<uint32_t> crc;
  int32_t n_values = 0;
  ParquetEncoding encoding = ParquetEncoding::kPlain;
  // Data pages of version 1.
  ParquetEncoding definition_encoding = ParquetEncoding::kRle;
  ParquetEncoding repetition_encoding = ParquetEncoding::kRle;
  // Data pages of version 2, where levels come first and are never compressed.
  int32_t definition_bytes = 0;
  int32_t repetition_bytes = 0;
  bool is_compressed = true;
  size_t header_bytes = 0;
};

inline constexpr size_t kMaxFooterBytes = size_t{64} << 20;

// Throws kDataLoss for a broken file or another format, kUnsupported for an encrypted file.
FileMetadata ReadFooter(std::span<const std::byte> file, const ParquetPlace& place);

// Reads the header at the front of `bytes`. Sizes are checked: not negative and within `bytes`.
PageHeader ReadPageHeader(std::span<const std::byte> bytes, const ParquetPlace& place);

// Names for messages: "DELTA_BINARY_PACKED", "LZ4_RAW", "INT96", or "number 17".
std::string NameOf(ParquetEncoding encoding);
std::string NameOf(ParquetCodec codec);
std::string NameOf(ParquetType type);

}  // namespace tandem::training
