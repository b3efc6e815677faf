// The part of GgufFile that converts the values of its keys.

#include <simdjson.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/formats/gguf/gguf.h"
#include "engine/formats/gguf/gguf_bytes.h"

namespace tandem::engine {
namespace {

// Reads an integer; nullopt for another type or a value beyond int64.
std::optional<int64_t> IntAt(GgufFile::Type type, const std::byte* at) {
  using Type = GgufFile::Type;
  switch (type) {
    case Type::kU8:
    case Type::kBool:
      return LoadNumber<uint8_t>(at);
    case Type::kI8:
      return LoadNumber<int8_t>(at);
    case Type::kU16:
      return LoadNumber<uint16_t>(at);
    case Type::kI16:
      return LoadNumber<int16_t>(at);
    case Type::kU32:
      return LoadNumber<uint32_t>(at);
    case Type::kI32:
      return LoadNumber<int32_t>(at);
    case Type::kI64:
      return LoadNumber<int64_t>(at);
    case Type::kU64: {
      const auto value = LoadNumber<uint64_t>(at);
      return std::in_range<int64_t>(value) ? std::optional(static_cast<int64_t>(value))
                                           : std::nullopt;
    }
    case Type::kF32:
    case Type::kF64:
    case Type::kString:
    case Type::kArray:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

uint64_t LeastBytesOf(GgufFile::Type type) {
  using Type = GgufFile::Type;
  switch (type) {
    case Type::kU8:
    case Type::kI8:
    case Type::kBool:
      return 1;
    case Type::kU16:
    case Type::kI16:
      return 2;
    case Type::kU32:
    case Type::kI32:
    case Type::kF32:
      return 4;
    case Type::kU64:
    case Type::kI64:
    case Type::kF64:
    case Type::kString:  // its length
      return 8;
    case Type::kArray:  // its type and count
      return 12;
  }
  TANDEM_CHECK(false);
}

const GgufFile::Value* GgufFile::Get(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

const GgufFile::Value* GgufFile::GetArray(std::string_view key) const {
  const Value* value = Get(key);
  if (value != nullptr && value->type != Type::kArray) Broken(key, "must be an array");
  return value;
}

bool GgufFile::IsArray(std::string_view key) const {
  const Value* value = Get(key);
  return value != nullptr && value->type == Type::kArray;
}

std::optional<int64_t> GgufFile::Int(std::string_view key) const {
  const Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  const auto number =
      value->type == Type::kBool ? std::nullopt : IntAt(value->type, value->bytes.data());
  if (!number) Broken(key, "must be an integer");
  return number;
}

std::optional<double> GgufFile::Number(std::string_view key) const {
  const Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  double number = 0;
  if (value->type == Type::kF32) {
    number = LoadNumber<float>(value->bytes.data());
  } else if (value->type == Type::kF64) {
    number = LoadNumber<double>(value->bytes.data());
  } else {
    number = static_cast<double>(*Int(key));
  }
  if (!std::isfinite(number)) Broken(key, "must be finite");
  return number;
}

std::optional<bool> GgufFile::Bool(std::string_view key) const {
  const Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kBool) Broken(key, "must be a boolean");
  return LoadNumber<uint8_t>(value->bytes.data()) != 0;
}

void GgufFile::CheckText(std::string_view key, const std::string& which, std::string_view text,
                         uint64_t most) const {
  if (text.size() > most) {
    Broken(key, which + "has " + std::to_string(text.size()) + " bytes, more than the limit of " +
                    std::to_string(most));
  }
  if (!simdjson::validate_utf8(text.data(), text.size())) Broken(key, which + "is not UTF-8");
}

std::optional<std::string_view> GgufFile::String(std::string_view key) const {
  const Value* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != Type::kString) Broken(key, "must be a string");
  const std::string_view text = GgufText(value->bytes);
  CheckText(key, "", text, kMaxStringBytes);
  return text;
}

std::optional<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  const Value* value = GetArray(key);
  if (value == nullptr) return std::nullopt;
  if (value->item != Type::kString) Broken(key, "must be an array of strings");
  std::vector<std::string_view> strings;
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto length = static_cast<size_t>(LoadNumber<uint64_t>(at));  // checked by Skip
    strings.push_back(GgufText({at + sizeof(uint64_t), length}));
    CheckText(key, "item " + std::to_string(i) + " ", strings.back(), kMaxNameBytes);
    at += sizeof(uint64_t) + length;
  }
  return strings;
}

std::optional<std::vector<int64_t>> GgufFile::Ints(std::string_view key) const {
  const Value* value = GetArray(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int64_t> numbers;
  const uint64_t bytes = LeastBytesOf(value->item);  // other types take at least as many
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = IntAt(value->item, value->bytes.data() + i * bytes);
    if (!number) Broken(key, "must be an array of integers");
    numbers.push_back(*number);
  }
  return numbers;
}

std::optional<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  const Value* value = GetArray(key);
  if (value == nullptr) return std::nullopt;
  if (value->item != Type::kF32) Broken(key, "must be an array of 32-bit floats");
  std::vector<float> numbers;
  for (uint64_t i = 0; i < value->count; ++i) {
    numbers.push_back(LoadNumber<float>(value->bytes.data() + i * sizeof(float)));
  }
  return numbers;
}

std::optional<std::string_view> GgufFile::Bytes(std::string_view key) const {
  const Value* value = GetArray(key);
  if (value == nullptr) return std::nullopt;
  if (value->item != Type::kU8 && value->item != Type::kI8)
    Broken(key, "must be an array of bytes");
  return GgufText(value->bytes);
}

}  // namespace tandem::engine
