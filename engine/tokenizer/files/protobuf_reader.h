#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// Walks the fields of one protobuf message without a schema and without copying. Every read is
// checked against the remaining bytes. A nested message gets its own reader, so the caller bounds
// the nesting. Throws kDataLoss, "<file>: byte <n> of <where> …".
class ProtobufReader {
 public:
  ProtobufReader(std::string_view bytes, const std::string& file, std::string where)
      : begin_(bytes.data()), left_(bytes), file_(&file), where_(std::move(where)) {}

  struct Field {
    uint32_t number;
    uint64_t integer;        // bits of a varint or a fixed-size number
    std::string_view bytes;  // content of a string, bytes or message
    bool is_bytes;
    bool is_fixed32;
  };
  // Returns the next field; nullopt at the end.
  std::optional<Field> Next();

  // Read a field as the type in its schema.
  int32_t Int32(const Field& field) const;
  bool Bool(const Field& field) const;
  float Float(const Field& field) const;
  std::string_view Bytes(const Field& field) const;

 private:
  [[noreturn]] void Fail(const std::string& what) const;
  uint64_t Varint();
  uint64_t Fixed(size_t bytes);

  const char* begin_;
  std::string_view left_;
  const std::string* file_;
  std::string where_;
};

}  // namespace tandem::engine
