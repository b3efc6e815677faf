#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "training/data/parquet/place.h"

namespace tandem::training {

// The encoding of a value; the numbers are the format's.
enum class ThriftType : uint8_t {
  kTrue = 1,
  kFalse = 2,
  kByte = 3,
  kI16 = 4,
  kI32 = 5,
  kI64 = 6,
  kDouble = 7,
  kBinary = 8,
  kList = 9,
  kSet = 10,
  kMap = 11,
  kStruct = 12,
  kUuid = 13,
};

// Reads Thrift's compact protocol from front to back, without a schema or copies. Compares every
// length with the remaining bytes before use, so the work is linear in them. Nesting is bounded.
// Throws kDataLoss.
//
//   reader.Struct([&](ThriftField field) {
//     if (field.id == 1) version = reader.I32(field);
//     else return false;  // skipped
//     return true;
//   });
struct ThriftField {
  int32_t id = 0;
  ThriftType type = ThriftType::kTrue;
};

class ThriftReader {
 public:
  // The arguments must outlive the reader. `what` names the input in messages.
  ThriftReader(std::span<const std::byte> bytes, const ParquetPlace& place, std::string_view what)
      : bytes_(bytes), place_(place), what_(what) {}

  // Calls on_field for every field and skips the field when it returns false.
  template <class OnField>
  void Struct(OnField&& on_field) {
    Enter();
    ThriftField field;
    while (NextField(field)) {
      if (!on_field(field)) Skip(field.type, /*in_container=*/false);
    }
    --depth_;
  }

  // These return a field's value. They throw when the field has another type.
  bool Bool(ThriftField field) const;
  int32_t I32(ThriftField field);
  int64_t I64(ThriftField field);
  std::string_view Binary(ThriftField field);
  template <class OnField>
  void Struct(ThriftField field, OnField&& on_field) {
    Expect(field, ThriftType::kStruct);
    Struct(on_field);
  }
  // Calls on_item(item) for every item, which must read it. `item` has the items' type.
  template <class OnItem>
  void List(ThriftField field, OnItem&& on_item) {
    Expect(field, ThriftType::kList);
    Enter();
    ThriftField item{field.id, ThriftType::kTrue};
    for (uint64_t left = ListHeader(item.type); left > 0; --left) on_item(item);
    --depth_;
  }

  size_t consumed() const { return at_; }

 private:
  [[noreturn]] void Fail(const std::string& problem) const;
  void Enter();
  bool NextField(ThriftField& field);  // false: end of the struct
  void Expect(ThriftField field, ThriftType type) const;
  uint64_t ListHeader(ThriftType& type);
  void SkipMap();
  void Skip(ThriftType type, bool in_container);
  ThriftType TypeOf(uint8_t code) const;
  uint8_t Byte();
  uint64_t Varint();
  int64_t Zigzag();
  std::span<const std::byte> Take(uint64_t n);
  size_t left() const { return bytes_.size() - at_; }

  std::span<const std::byte> bytes_;
  const ParquetPlace& place_;
  std::string_view what_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace tandem::training
