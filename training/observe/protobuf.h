#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

// Protocol buffers' wire format, for the few messages that this room reads and writes.
namespace tandem::training {

static_assert(std::endian::native == std::endian::little);

enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

template <class T>
void PutRaw(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// REQUIRES: bytes.size() >= sizeof(T).
template <class T>
T GetRaw(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

void PutVarint(std::string* out, uint64_t value);
void PutTag(std::string* out, uint32_t field, WireType wire);
// A field of text, bytes or a message.
void PutBytes(std::string* out, uint32_t field, std::string_view bytes);
void PutNumber(std::string* out, uint32_t field, uint64_t value);

struct WireField {
  uint32_t number = 0;
  WireType wire = WireType::kVarint;
  uint64_t varint = 0;
  std::string_view bytes;  // for the other wire types
};

// Removes the first field of a message. Returns false when the bytes are none.
bool TakeField(std::string_view* from, WireField* field);

}  // namespace tandem::training
