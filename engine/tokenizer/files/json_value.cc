#include "engine/tokenizer/files/json_value.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

using Element = simdjson::dom::element;

constexpr size_t kMaxBytes = 256 << 20;
constexpr size_t kMaxDepth = 64;

Element Unwrap(const std::byte* bytes) {
  static_assert(sizeof(Element) == 16 && alignof(Element) <= 8);
  static_assert(std::is_trivially_copyable_v<Element>);
  Element element;
  std::memcpy(static_cast<void*>(&element), bytes, sizeof(element));
  return element;
}

// Whether the digits [first, last) are a whole integer of 20 or more digits, and not a fraction or
// an exponent.
bool IsLongInteger(std::string_view text, size_t first, size_t last) {
  constexpr size_t kLong = 20;  // digits of 2^64
  const auto is_one_of = [&](size_t at, std::string_view letters) {
    return at < text.size() && letters.find(text[at]) != letters.npos;
  };
  const size_t before = first - 1;  // wraps where there is nothing
  const bool signed_exponent = is_one_of(before, "+-") && is_one_of(before - 1, "eE");
  return last - first >= kLong && !signed_exponent && !is_one_of(before, ".eE") &&
         !is_one_of(last, ".eE");
}

// Rewrites such integers as doubles, because simdjson refuses them. transformers writes 10^30 into
// tokenizer_config.json for an unlimited text length.
std::string WithLongIntegersAsDoubles(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 64);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    size_t end = i + 1;
    if (in_string && text[i] == '\\') {
      end = std::min(i + 2, text.size());
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string && text[i] >= '0' && text[i] <= '9') {
      end = std::min(text.find_first_not_of("0123456789", i), text.size());
    }
    out += text.substr(i, end - i);
    if (!in_string && IsLongInteger(text, i, end)) out += ".0";
    i = end;
  }
  return out;
}

}  // namespace

struct JsonDocument::Impl {
  simdjson::dom::parser parser;  // owns the document
  Element root;
};

JsonDocument::JsonDocument(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

JsonDocument JsonDocument::Parse(std::string_view text, const std::string& source) {
  if (text.size() > kMaxBytes) {
    throw Error(ErrorCode::kDataLoss, source + ": must be at most " + std::to_string(kMaxBytes) +
                                          " bytes, got " + std::to_string(text.size()));
  }
  auto impl = std::make_unique<Impl>();
  simdjson::error_code error = impl->parser.allocate(std::max<size_t>(text.size(), 64), kMaxDepth);
  if (!error) error = impl->parser.parse(text.data(), text.size()).get(impl->root);
  if (error == simdjson::NUMBER_ERROR) {
    const std::string again = WithLongIntegersAsDoubles(text);
    error = impl->parser.allocate(again.size(), kMaxDepth);
    if (!error) error = impl->parser.parse(again.data(), again.size()).get(impl->root);
  }
  if (error) {
    throw Error(ErrorCode::kDataLoss,
                source + ": not valid JSON: " + std::string(simdjson::error_message(error)));
  }
  return JsonDocument(std::move(impl));
}

JsonValue JsonDocument::root() const {
  JsonValue value;
  std::memcpy(value.element_, &impl_->root, sizeof(value.element_));
  return value;
}

bool JsonValue::IsNull() const { return Unwrap(element_).is_null(); }
bool JsonValue::IsObject() const { return Unwrap(element_).is_object(); }
bool JsonValue::IsArray() const { return Unwrap(element_).is_array(); }

std::optional<std::string_view> JsonValue::AsString() const {
  std::string_view value;
  if (Unwrap(element_).get(value)) return std::nullopt;
  return value;
}

std::optional<int64_t> JsonValue::AsInt() const {
  int64_t value;
  const Element element = Unwrap(element_);
  if (!element.is_int64() || element.get(value)) return std::nullopt;
  return value;
}

std::optional<double> JsonValue::AsNumber() const {
  double value;
  if (Unwrap(element_).get(value)) return std::nullopt;
  return value;
}

std::optional<bool> JsonValue::AsBool() const {
  bool value;
  if (Unwrap(element_).get(value)) return std::nullopt;
  return value;
}

size_t JsonValue::size() const {
  simdjson::dom::object object;
  simdjson::dom::array array;
  if (!Unwrap(element_).get(object)) return object.size();
  if (!Unwrap(element_).get(array)) return array.size();
  return 0;
}

std::optional<JsonValue> JsonValue::Find(std::string_view key) const {
  Element found;
  if (Unwrap(element_)[key].get(found) || found.is_null()) return std::nullopt;
  JsonValue value;
  std::memcpy(value.element_, &found, sizeof(value.element_));
  return value;
}

void JsonValue::ForEachMember(const std::function<void(std::string_view, JsonValue)>& each) const {
  simdjson::dom::object object;
  if (Unwrap(element_).get(object)) return;
  for (const simdjson::dom::key_value_pair member : object) {
    JsonValue value;
    std::memcpy(value.element_, &member.value, sizeof(value.element_));
    each(member.key, value);
  }
}

void JsonValue::ForEachItem(const std::function<void(size_t, JsonValue)>& each) const {
  simdjson::dom::array array;
  if (Unwrap(element_).get(array)) return;
  size_t index = 0;
  for (const Element item : array) {
    JsonValue value;
    std::memcpy(value.element_, &item, sizeof(value.element_));
    each(index++, value);
  }
}

}  // namespace tandem::engine
