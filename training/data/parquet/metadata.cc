#include "training/data/parquet/metadata.h"

#include <array>
#include <cstring>
#include <utility>

#include "training/data/parquet/thrift.h"

namespace tandem::training {
namespace {

constexpr std::string_view kMagic = "PAR1";
constexpr std::string_view kEncryptedMagic = "PARE";
constexpr size_t kTailBytes = 8;  // the footer's length, the magic
// Far above known files. They bound the memory that a hostile footer can claim.
constexpr size_t kMaxRowGroups = 100'000;
constexpr size_t kMaxSchemaElements = 20'000;
constexpr size_t kMaxChunks = 2'000'000;
constexpr size_t kMaxEncodings = 16;
constexpr size_t kMaxNameBytes = 4096;

struct AnnotationName {
  int32_t number;
  Annotation annotation;
  std::string_view name;
};
// ConvertedType: the predecessor of LogicalType, still written in addition to it.
constexpr auto kConverted = std::to_array<AnnotationName>({
    {0, Annotation::kText, "UTF8"},
    {1, Annotation::kRefused, "MAP"},
    {2, Annotation::kRefused, "MAP_KEY_VALUE"},
    {3, Annotation::kList, "LIST"},
    {4, Annotation::kText, "ENUM"},
    {5, Annotation::kRefused, "DECIMAL"},
    {6, Annotation::kRefused, "DATE"},
    {7, Annotation::kRefused, "TIME_MILLIS"},
    {8, Annotation::kRefused, "TIME_MICROS"},
    {9, Annotation::kRefused, "TIMESTAMP_MILLIS"},
    {10, Annotation::kRefused, "TIMESTAMP_MICROS"},
    {11, Annotation::kUnsigned, "UINT_8"},
    {12, Annotation::kUnsigned, "UINT_16"},
    {13, Annotation::kUnsigned, "UINT_32"},
    {14, Annotation::kUnsigned, "UINT_64"},
    {15, Annotation::kSigned, "INT_8"},
    {16, Annotation::kSigned, "INT_16"},
    {17, Annotation::kSigned, "INT_32"},
    {18, Annotation::kSigned, "INT_64"},
    {19, Annotation::kText, "JSON"},
    {20, Annotation::kRefused, "BSON"},
    {21, Annotation::kRefused, "INTERVAL"},
});
// Fields of the union LogicalType.
constexpr int32_t kLogicalInteger = 10;
constexpr auto kLogical = std::to_array<AnnotationName>({
    {1, Annotation::kText, "STRING"},
    {2, Annotation::kRefused, "MAP"},
    {3, Annotation::kList, "LIST"},
    {4, Annotation::kText, "ENUM"},
    {5, Annotation::kRefused, "DECIMAL"},
    {6, Annotation::kRefused, "DATE"},
    {7, Annotation::kRefused, "TIME"},
    {8, Annotation::kRefused, "TIMESTAMP"},
    {11, Annotation::kNull, "UNKNOWN"},
    {12, Annotation::kText, "JSON"},
    {13, Annotation::kRefused, "BSON"},
    {14, Annotation::kRefused, "UUID"},
    {15, Annotation::kRefused, "FLOAT16"},
    {16, Annotation::kRefused, "VARIANT"},
    {17, Annotation::kRefused, "GEOMETRY"},
    {18, Annotation::kRefused, "GEOGRAPHY"},
});

struct Number {
  int32_t number;
  const char* name;
};
constexpr auto kEncodings = std::to_array<Number>({{0, "PLAIN"},
                                                   {2, "PLAIN_DICTIONARY"},
                                                   {3, "RLE"},
                                                   {4, "BIT_PACKED"},
                                                   {5, "DELTA_BINARY_PACKED"},
                                                   {6, "DELTA_LENGTH_BYTE_ARRAY"},
                                                   {7, "DELTA_BYTE_ARRAY"},
                                                   {8, "RLE_DICTIONARY"},
                                                   {9, "BYTE_STREAM_SPLIT"}});
constexpr auto kCodecs = std::to_array<Number>({{0, "UNCOMPRESSED"},
                                                {1, "SNAPPY"},
                                                {2, "GZIP"},
                                                {3, "LZO"},
                                                {4, "BROTLI"},
                                                {5, "LZ4"},
                                                {6, "ZSTD"},
                                                {7, "LZ4_RAW"}});
constexpr auto kTypes = std::to_array<Number>({{0, "BOOLEAN"},
                                               {1, "INT32"},
                                               {2, "INT64"},
                                               {3, "INT96"},
                                               {4, "FLOAT"},
                                               {5, "DOUBLE"},
                                               {6, "BYTE_ARRAY"},
                                               {7, "FIXED_LEN_BYTE_ARRAY"}});

template <class Numbers>
std::string NameIn(const Numbers& numbers, int32_t number) {
  for (const Number& known : numbers) {
    if (known.number == number) return known.name;
  }
  return "number " + std::to_string(number);
}

// Reads the footer's structures and skips unknown fields.
class FooterReader {
 public:
  FooterReader(std::span<const std::byte> bytes, const ParquetPlace& place)
      : thrift_(bytes, place, "footer"), place_(place) {}

  FileMetadata Read() {
    FileMetadata file;
    bool has_rows = false;
    thrift_.Struct([&](ThriftField field) {
      switch (field.id) {
        case 2:
          file.schema = ReadSchema(field);
          return true;
        case 3:
          file.n_rows = thrift_.I64(field);
          has_rows = true;
          return true;
        case 4:
          file.row_groups = ReadRowGroups(field);
          return true;
        case 8:
          place_.Refuse("the file is encrypted; write it without encryption");
        default:
          return false;
      }
    });
    if (file.schema.empty()) place_.Broken("the footer has no schema");
    if (!has_rows) place_.Broken("the footer has no number of rows");
    return file;
  }

 private:
  void Limit(const char* what, size_t count, size_t limit) const {
    if (count > limit) {
      place_.Refuse("more than " + std::to_string(limit) + " " + what);
    }
  }

  std::vector<SchemaElement> ReadSchema(ThriftField list) {
    std::vector<SchemaElement> schema;
    thrift_.List(list, [&](ThriftField item) {
      Limit("elements of the schema", schema.size() + 1, kMaxSchemaElements);
      schema.push_back(ReadSchemaElement(item));
    });
    return schema;
  }

  SchemaElement ReadSchemaElement(ThriftField item) {
    SchemaElement element;
    std::optional<AnnotationName> converted;
    std::optional<AnnotationName> logical;
    thrift_.Struct(item, [&](ThriftField field) {
      switch (field.id) {
        case 1:
          element.type = static_cast<ParquetType>(thrift_.I32(field));
          return true;
        case 3: {
          const int32_t repetition = thrift_.I32(field);
          if (repetition < 0 || repetition > 2) {
            place_.Broken("a schema element has the unknown repetition " +
                          std::to_string(repetition));
          }
          element.repetition = static_cast<Repetition>(repetition);
          return true;
        }
        case 4:
          element.name = thrift_.Binary(field);
          Limit("bytes of a column's name", element.name.size(), kMaxNameBytes);
          return true;
        case 5:
          element.n_children = thrift_.I32(field);
          return true;
        case 6:
          converted = Find(kConverted, thrift_.I32(field));
          return true;
        case 10:
          logical = ReadLogicalType(field);
          return true;
        default:
          return false;
      }
    });
    if (const auto& chosen = logical ? logical : converted) {
      element.annotation = chosen->annotation;
      element.annotation_name = chosen->name;
    }
    return element;
  }

  template <class Names>
  static AnnotationName Find(const Names& names, int32_t number) {
    for (const AnnotationName& known : names) {
      if (known.number == number) return known;
    }
    return {number, Annotation::kRefused, "of a later format"};
  }

  AnnotationName ReadLogicalType(ThriftField of) {
    AnnotationName type{0, Annotation::kRefused, "of a later format"};
    thrift_.Struct(of, [&](ThriftField field) {
      if (field.id != kLogicalInteger) {
        type = Find(kLogical, field.id);
        return false;  // skips its parameters
      }
      type = {kLogicalInteger, Annotation::kSigned, "INTEGER"};
      thrift_.Struct(field, [&](ThriftField parameter) {
        if (parameter.id != 2) return false;
        if (!thrift_.Bool(parameter)) type.annotation = Annotation::kUnsigned;
        return true;
      });
      return true;
    });
    return type;
  }

  std::vector<RowGroup> ReadRowGroups(ThriftField list) {
    std::vector<RowGroup> groups;
    thrift_.List(list, [&](ThriftField item) {
      Limit("row groups", groups.size() + 1, kMaxRowGroups);
      RowGroup group;
      thrift_.Struct(item, [&](ThriftField field) {
        if (field.id == 1) {
          thrift_.List(field, [&](ThriftField chunk) {
            Limit("columns of all row groups", ++n_chunks_, kMaxChunks);
            group.columns.push_back(ReadChunk(chunk));
          });
        } else if (field.id == 3) {
          group.n_rows = thrift_.I64(field);
        } else {
          return false;
        }
        return true;
      });
      groups.push_back(std::move(group));
    });
    return groups;
  }

  ColumnChunk ReadChunk(ThriftField item) {
    ColumnChunk chunk;
    bool has_metadata = false;
    thrift_.Struct(item, [&](ThriftField field) {
      switch (field.id) {
        case 1:
          chunk.is_elsewhere = !thrift_.Binary(field).empty();
          return true;
        case 3:
          ReadChunkMetadata(field, chunk);
          has_metadata = true;
          return true;
        case 8:
        case 9:
          chunk.is_encrypted = true;
          return false;
        default:
          return false;
      }
    });
    if (!has_metadata && !chunk.is_encrypted) place_.Broken("a column has no metadata");
    return chunk;
  }

  void ReadChunkMetadata(ThriftField of, ColumnChunk& chunk) {
    thrift_.Struct(of, [&](ThriftField field) {
      switch (field.id) {
        case 1:
          chunk.type = static_cast<ParquetType>(thrift_.I32(field));
          return true;
        case 2:
          chunk.encodings.clear();
          thrift_.List(field, [&](ThriftField encoding) {
            Limit("encodings of a column", chunk.encodings.size() + 1, kMaxEncodings);
            chunk.encodings.push_back(static_cast<ParquetEncoding>(thrift_.I32(encoding)));
          });
          return true;
        case 4:
          chunk.codec = static_cast<ParquetCodec>(thrift_.I32(field));
          return true;
        case 5:
          chunk.n_values = thrift_.I64(field);
          return true;
        case 7:
          chunk.compressed_bytes = thrift_.I64(field);
          return true;
        case 9:
          chunk.data_offset = thrift_.I64(field);
          return true;
        case 11:
          chunk.dictionary_offset = thrift_.I64(field);
          return true;
        default:
          return false;
      }
    });
  }

  ThriftReader thrift_;
  const ParquetPlace& place_;
  size_t n_chunks_ = 0;
};

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

FileMetadata ReadFooter(std::span<const std::byte> file, const ParquetPlace& place) {
  if (file.size() < kMagic.size() + kTailBytes) {
    place.Broken("a file of " + std::to_string(file.size()) + " bytes is too short for Parquet");
  }
  const std::string_view tail = Text(file.last(kMagic.size()));
  if (tail == kEncryptedMagic) {
    place.Refuse("the file is encrypted; write it without encryption");
  }
  if (tail != kMagic || Text(file.first(kMagic.size())) != kMagic) {
    place.Broken(
        "the file is truncated or not a Parquet file: it does not start and end with 'PAR1'");
  }
  uint32_t length = 0;
  std::memcpy(&length, file.last(kTailBytes).data(), sizeof(length));
  const size_t room = file.size() - kMagic.size() - kTailBytes;
  if (length > room) {
    place.Broken("a footer of " + std::to_string(length) + " bytes in a file of " +
                 std::to_string(file.size()));
  }
  if (length > kMaxFooterBytes) {
    place.Refuse("a footer of " + std::to_string(length) + " bytes, more than the limit of " +
                 std::to_string(kMaxFooterBytes));
  }
  const size_t begin = file.size() - kTailBytes - length;
  FileMetadata metadata = FooterReader(file.subspan(begin, length), place).Read();
  metadata.data_end = begin;
  return metadata;
}

namespace {

// Reads one of the three page kinds that have a nested header.
bool ReadPageKind(ThriftReader& thrift, ThriftField of, PageHeader& page) {
  if (of.id != 5 && of.id != 7 && of.id != 8) return false;
  const bool is_v2 = of.id == 8;
  thrift.Struct(of, [&](ThriftField field) {
    if (field.id == 1) {
      page.n_values = thrift.I32(field);
    } else if (field.id == (is_v2 ? 4 : 2)) {
      page.encoding = static_cast<ParquetEncoding>(thrift.I32(field));
    } else if (of.id == 5 && field.id == 3) {
      page.definition_encoding = static_cast<ParquetEncoding>(thrift.I32(field));
    } else if (of.id == 5 && field.id == 4) {
      page.repetition_encoding = static_cast<ParquetEncoding>(thrift.I32(field));
    } else if (is_v2 && field.id == 5) {
      page.definition_bytes = thrift.I32(field);
    } else if (is_v2 && field.id == 6) {
      page.repetition_bytes = thrift.I32(field);
    } else if (is_v2 && field.id == 7) {
      page.is_compressed = thrift.Bool(field);
    } else {
      return false;
    }
    return true;
  });
  return true;
}

}  // namespace

PageHeader ReadPageHeader(std::span<const std::byte> bytes, const ParquetPlace& place) {
  ThriftReader thrift(bytes, place, "page header");
  PageHeader page;
  int32_t kind_id = 0;
  thrift.Struct([&](ThriftField field) {
    switch (field.id) {
      case 1:
        page.type = static_cast<PageType>(thrift.I32(field));
        return true;
      case 2:
        page.bytes = thrift.I32(field);
        return true;
      case 3:
        page.compressed_bytes = thrift.I32(field);
        return true;
      case 4:
        page.crc = static_cast<uint32_t>(thrift.I32(field));
        return true;
      default:
        if (!ReadPageKind(thrift, field, page)) return false;
        kind_id = field.id;
        return true;
    }
  });
  page.header_bytes = thrift.consumed();
  if (page.bytes < 0 || page.compressed_bytes < 0 || page.n_values < 0 ||
      page.definition_bytes < 0 || page.repetition_bytes < 0) {
    place.Broken("a page has a negative size");
  }
  if (static_cast<size_t>(page.compressed_bytes) > bytes.size() - page.header_bytes) {
    place.Broken("a page of " + std::to_string(page.compressed_bytes) + " bytes with " +
                 std::to_string(bytes.size() - page.header_bytes) + " left of its column");
  }
  const int32_t expected_id = page.type == PageType::kData         ? 5
                              : page.type == PageType::kDictionary ? 7
                              : page.type == PageType::kDataV2     ? 8
                                                                   : kind_id;
  if (kind_id != expected_id) place.Broken("a page header has no description of its content");
  return page;
}

std::string NameOf(ParquetEncoding encoding) {
  return NameIn(kEncodings, static_cast<int32_t>(encoding));
}
std::string NameOf(ParquetCodec codec) { return NameIn(kCodecs, static_cast<int32_t>(codec)); }
std::string NameOf(ParquetType type) { return NameIn(kTypes, static_cast<int32_t>(type)); }

}  // namespace tandem::training
