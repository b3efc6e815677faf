#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

// Parquet files written byte by byte, for features that today's writers never use and for invalid
// files.
namespace tandem::training {

// The fields of one Thrift structure in the compact protocol, in the given order.
class ThriftFields {
 public:
  enum Type : uint8_t {
    kTrue = 1,
    kFalse = 2,
    kI32 = 5,
    kI64 = 6,
    kBinary = 8,
    kList = 9,
    kStruct = 12
  };

  ThriftFields& I32(int id, int64_t value) { return Number(id, kI32, value); }
  ThriftFields& I64(int id, int64_t value) { return Number(id, kI64, value); }
  ThriftFields& Bool(int id, bool value) { return Head(id, value ? kTrue : kFalse); }
  ThriftFields& Text(int id, const std::string& text) {
    Head(id, kBinary);
    bytes_ += Varint(text.size()) + text;
    return *this;
  }
  ThriftFields& Struct(int id, const ThriftFields& fields) {
    Head(id, kStruct);
    bytes_ += fields.str();
    return *this;
  }
  ThriftFields& Structs(int id, const std::vector<ThriftFields>& items) {
    Head(id, kList);
    bytes_ += static_cast<char>(0xF0 | kStruct);
    bytes_ += Varint(items.size());
    for (const ThriftFields& item : items) bytes_ += item.str();
    return *this;
  }
  // Appends any bytes, valid or not.
  ThriftFields& Raw(const std::string& bytes) {
    bytes_ += bytes;
    return *this;
  }
  std::string str() const { return bytes_ + '\0'; }

  static std::string Varint(uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
  }

 private:
  ThriftFields& Head(int id, Type type) {
    bytes_ += static_cast<char>(type);  // the long form: a type, then the number
    bytes_ += Varint(static_cast<uint64_t>(id) << 1);
    return *this;
  }
  ThriftFields& Number(int id, Type type, int64_t value) {
    Head(id, type);
    bytes_ += Varint((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
    return *this;
  }

  std::string bytes_;
};

// Enum values of the format.
enum : int { kRequired = 0, kOptional = 1, kRepeated = 2 };
enum : int { kUtf8 = 0, kMapWord = 1, kListWord = 3 };

inline ThriftFields Group(const std::string& name, int repetition, int n_children, int word = -1) {
  ThriftFields fields;
  fields.I32(3, repetition).Text(4, name).I32(5, n_children);
  if (word >= 0) fields.I32(6, word);
  return fields;
}
inline ThriftFields Root(int n_children) { return Group("schema", kRequired, n_children); }
inline ThriftFields Value(const std::string& name, int repetition, int type, int word = -1) {
  ThriftFields fields;
  fields.I32(1, type).I32(3, repetition).Text(4, name);
  if (word >= 0) fields.I32(6, word);
  return fields;
}
inline ThriftFields Text(const std::string& name, int repetition) {
  return Value(name, repetition, 6, kUtf8);
}

inline std::string FourBytes(uint32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

// Runs of length one, one byte per number: for widths from 1 to 8.
inline std::string Runs(std::initializer_list<int> numbers) {
  std::string bytes;
  for (const int number : numbers) {
    bytes += '\2';
    bytes += static_cast<char>(number);
  }
  return bytes;
}
// The levels of a version 1 page.
inline std::string Levels(std::initializer_list<int> levels) {
  const std::string bytes = Runs(levels);
  return FourBytes(static_cast<uint32_t>(bytes.size())) + bytes;
}
inline std::string Strings(std::initializer_list<std::string> texts) {
  std::string bytes;
  for (const std::string& text : texts)
    bytes += FourBytes(static_cast<uint32_t>(text.size())) + text;
  return bytes;
}

// An uncompressed version 1 data page.
inline std::string DataPage(int n_values, const std::string& body, int encoding = 0,
                            int level_encoding = 3) {
  ThriftFields page;
  page.I32(1, 0)
      .I32(2, static_cast<int64_t>(body.size()))
      .I32(3, static_cast<int64_t>(body.size()))
      .Struct(5, ThriftFields()
                     .I32(1, n_values)
                     .I32(2, encoding)
                     .I32(3, level_encoding)
                     .I32(4, level_encoding));
  return page.str() + body;
}
inline std::string DictionaryPage(int n_values, const std::string& body) {
  ThriftFields page;
  page.I32(1, 2)
      .I32(2, static_cast<int64_t>(body.size()))
      .I32(3, static_cast<int64_t>(body.size()))
      .Struct(7, ThriftFields().I32(1, n_values).I32(2, 0));
  return page.str() + body;
}

struct CraftedColumn {
  int type = 6;
  int64_t n_values = 0;
  std::string pages = "";
  int codec = 0;
  int64_t offset_error = 0;  // added to the page offset in the footer
};

// A file of one row group.
inline std::string CraftedFile(std::vector<ThriftFields> schema, std::vector<CraftedColumn> columns,
                               int64_t n_rows) {
  std::string file = "PAR1";
  std::vector<ThriftFields> chunks;
  for (const CraftedColumn& column : columns) {
    const auto offset = static_cast<int64_t>(file.size()) + column.offset_error;
    const auto bytes = static_cast<int64_t>(column.pages.size());
    chunks.push_back(ThriftFields().I64(2, offset).Struct(3, ThriftFields()
                                                                 .I32(1, column.type)
                                                                 .I32(4, column.codec)
                                                                 .I64(5, column.n_values)
                                                                 .I64(6, bytes)
                                                                 .I64(7, bytes)
                                                                 .I64(9, offset)));
    file += column.pages;
  }
  const std::string footer =
      ThriftFields()
          .I32(1, 1)
          .Structs(2, schema)
          .I64(3, n_rows)
          .Structs(4, {ThriftFields().Structs(1, chunks).I64(2, 0).I64(3, n_rows)})
          .str();
  return file + footer + FourBytes(static_cast<uint32_t>(footer.size())) + "PAR1";
}

}  // namespace tandem::training
