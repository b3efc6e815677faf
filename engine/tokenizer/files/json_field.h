#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/quoted.h"
#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/files/json_value.h"

namespace tandem::engine {

// A value in a tokenizer file with its path for messages. The getters throw kDataLoss when the
// value has another type.
class Field {
 public:
  Field(const std::string& file, JsonValue value, std::string path)
      : file_(&file), value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const std::string& file() const { return *file_; }
  JsonValue value() const { return value_; }

  [[noreturn]] void Broken(std::string_view what) const { ThrowBroken(*file_, path_, what); }
  [[noreturn]] void Unsupported(std::string_view what) const {
    ThrowUnsupported(*file_, path_, what);
  }

  std::string_view String() const {
    if (const auto text = value_.AsString()) return *text;
    Broken("must be a string");
  }
  bool Bool() const {
    if (const auto flag = value_.AsBool()) return *flag;
    Broken("must be true or false");
  }
  double Number() const {
    if (const auto number = value_.AsNumber()) return *number;
    Broken("must be a number");
  }
  size_t Count() const {
    const int64_t number = Int();
    if (number < 0) Broken("must not be negative, got " + std::to_string(number));
    return static_cast<size_t>(number);
  }
  int64_t Int() const {
    if (const auto number = value_.AsInt()) return *number;
    Broken("must be an integer");
  }
  std::vector<Field> Items() const {
    if (!value_.IsArray()) Broken("must be an array");
    std::vector<Field> items;
    value_.ForEachItem([&](size_t i, JsonValue item) {
      items.emplace_back(*file_, item, path_ + "[" + std::to_string(i) + "]");
    });
    return items;
  }

  std::optional<Field> Find(const char* key) const {
    if (!value_.IsObject()) Broken("must be an object");
    const std::optional<JsonValue> member = value_.Find(key);
    if (!member) return std::nullopt;
    return Field(*file_, *member, path_.empty() ? key : path_ + "." + key);
  }
  Field At(const char* key) const {
    if (auto member = Find(key)) return *member;
    ThrowBroken(*file_, path_.empty() ? key : path_ + "." + key, "is missing");
  }
  bool BoolOr(const char* key, bool fallback) const {
    const auto member = Find(key);
    return member ? member->Bool() : fallback;
  }
  std::string Type() const { return std::string(At("type").String()); }
  [[noreturn]] void UnsupportedType() const {
    ThrowUnsupported(
        *file_, path_ + ".type",
        Quoted(Type()) + " is not supported; engine/tokenizer/README.md lists the supported types");
  }

 private:
  const std::string* file_;
  JsonValue value_;
  std::string path_;
};

}  // namespace tandem::engine
