#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

// A value in a parsed JsonDocument, which must outlive it. Cheap to copy. The getters return
// nullopt when the value has another type.
class JsonValue {
 public:
  bool IsNull() const;
  bool IsObject() const;
  bool IsArray() const;
  std::optional<std::string_view> AsString() const;
  std::optional<int64_t> AsInt() const;    // numbers without fraction or exponent
  std::optional<double> AsNumber() const;  // any number
  std::optional<bool> AsBool() const;

  size_t size() const;  // members of an object or items of an array (saturates at 2^24 - 1), else 0
  // The member of an object; nullopt when it is absent or null, or when this is not an object.
  std::optional<JsonValue> Find(std::string_view key) const;
  void ForEachMember(const std::function<void(std::string_view key, JsonValue)>& each) const;
  void ForEachItem(const std::function<void(size_t index, JsonValue)>& each) const;

 private:
  friend class JsonDocument;
  JsonValue() = default;

  alignas(8) std::byte element_[16];  // a simdjson::dom::element, kept out of this header
};

// An untrusted JSON text of up to 256 MiB.
class JsonDocument {
 public:
  // Throws kDataLoss, "<source>: <what>", for malformed JSON, invalid UTF-8, nesting deeper than 64
  // and texts over 256 MiB.
  static JsonDocument Parse(std::string_view text, const std::string& source);

  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const;

 private:
  struct Impl;
  explicit JsonDocument(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
