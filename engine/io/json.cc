#include "engine/io/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json_events.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// JSON text has no binary values, so they are free to hold digits.
constexpr uint8_t kWideIntegerSubtype = 1;

// Builds the tree. nlohmann's own builder searches for an equal name at every insertion (quadratic
// in a hostile object) and keeps only one of two equal names.
class TreeBuilder : public JsonHandler {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}
  TreeBuilder(const TreeBuilder&) = delete;  // open_ points into root_
  TreeBuilder& operator=(const TreeBuilder&) = delete;

  Json Take() { return std::move(root_); }

  void StartObject() override { open_.push_back(Add(Json::object())); }
  void StartArray() override { open_.push_back(Add(Json::array())); }
  void Key(std::string& name) override { name_ = std::move(name); }
  void EndObject() override {
    RefuseDuplicates(open_.back()->get_ref<const Json::object_t&>());
    open_.pop_back();
  }
  void EndArray() override { open_.pop_back(); }
  void String(std::string& value) override { Add(std::move(value)); }
  void Unsigned(uint64_t value) override { Add(value); }
  void Integer(int64_t value) override { Add(value); }
  void Float(double value) override { Add(value); }
  void WideInteger(const std::string& digits, double nearest) override {
    if (!limits_.keep_wide_integers) return Float(nearest);
    Add(Json::binary({digits.begin(), digits.end()}, kWideIntegerSubtype));
  }
  void Bool(bool value) override { Add(value); }
  void Null() override { Add(nullptr); }

 private:
  // Pointers to open parents stay valid: a parent gets no sibling before it is closed.
  Json* Add(Json value) {
    if (++n_values_ > limits_.max_values) {
      Fail("more than " + std::to_string(limits_.max_values) + " values");
    }
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<Json::array_t&>();
      return &array.emplace_back(std::move(value));
    }
    auto& object = open_.back()->get_ref<Json::object_t&>();
    if (static_cast<int64_t>(object.size()) >= limits_.max_names) {
      Fail("an object with more than " + std::to_string(limits_.max_names) + " fields");
    }
    // Appends to the vector below the ordered map, without its search for an equal name.
    return &object.emplace_back(std::move(name_), std::move(value)).second;
  }

  void RefuseDuplicates(const Json::object_t& object) const {
    std::vector<std::string_view> names;
    names.reserve(object.size());
    for (const auto& [name, value] : object) names.push_back(name);
    std::sort(names.begin(), names.end());
    const auto twin = std::adjacent_find(names.begin(), names.end());
    if (twin != names.end()) {
      Fail("duplicate name " + Quoted(*twin) + " in the object that ends here");
    }
  }

  const JsonLimits limits_;
  int64_t n_values_ = 0;
  Json root_;
  std::vector<Json*> open_;
  std::string name_;
};

[[noreturn]] void ThrowField(const std::string& source, const char* field,
                             const std::string& what) {
  throw Error(ErrorCode::kDataLoss, source + ": field '" + field + "' " + what);
}

// Returns the field's value, or null when it is absent or JSON null, which config files use as "not
// set".
const Json* FindField(const Json& object, const char* field, const std::string& source) {
  if (!object.is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": expected a JSON object with field '" +
                                          std::string(field) + "', got " + object.type_name());
  }
  const auto found = object.find(field);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string Range(const std::string& min, const std::string& max) {
  return "must be in [" + min + ", " + max + "], got ";
}

std::string FormatNumber(double value) { return Json(value).dump(); }

int64_t IntValue(const Json& value, const char* field, int64_t min, int64_t max,
                 const std::string& source) {
  const std::string range = Range(std::to_string(min), std::to_string(max));
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const auto wide = value.get<uint64_t>();
    if (!std::in_range<int64_t>(wide)) ThrowField(source, field, range + std::to_string(wide));
    number = static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float()) {
    // Python writes 4096.0 for a float value. Exact integers up to 2^53 are accepted.
    const double real = value.get<double>();
    if (real != std::floor(real) || std::abs(real) > 0x1p53) {
      ThrowField(source, field, "must be an integer, got " + FormatNumber(real));
    }
    number = static_cast<int64_t>(real);
  } else {
    ThrowField(source, field, std::string("must be an integer, got ") + value.type_name());
  }
  if (number < min || number > max) ThrowField(source, field, range + std::to_string(number));
  return number;
}

}  // namespace

Json ParseUntrustedJson(std::string_view text, const std::string& source, int max_depth) {
  return ParseUntrustedJson(text, source, JsonLimits{.max_depth = max_depth});
}

Json ParseUntrustedJson(std::string_view text, const std::string& source,
                        const JsonLimits& limits) {
  TreeBuilder builder(limits);
  ParseJsonEvents(text, source, limits.max_depth, builder);
  return builder.Take();
}

std::optional<std::string> WideIntegerDigits(const Json& value) {
  if (!value.is_binary() || value.get_binary().subtype() != kWideIntegerSubtype)
    return std::nullopt;
  const Json::binary_t& digits = value.get_binary();
  return std::string(digits.begin(), digits.end());
}

bool IsString(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

int64_t JsonInt(const Json& object, const char* field, int64_t min, int64_t max,
                const std::string& source) {
  const Json* value = FindField(object, field, source);
  if (value == nullptr) ThrowField(source, field, "is missing");
  return IntValue(*value, field, min, max, source);
}

int64_t JsonIntOr(const Json& object, const char* field, int64_t fallback, int64_t min, int64_t max,
                  const std::string& source) {
  const Json* value = FindField(object, field, source);
  return value == nullptr ? fallback : IntValue(*value, field, min, max, source);
}

double JsonNumberOr(const Json& object, const char* field, double fallback, double min, double max,
                    const std::string& source) {
  const Json* value = FindField(object, field, source);
  if (value == nullptr) return fallback;
  if (!value->is_number()) {
    ThrowField(source, field, std::string("must be a number, got ") + value->type_name());
  }
  const auto number = value->get<double>();
  if (!(number >= min && number <= max)) {
    ThrowField(source, field, Range(FormatNumber(min), FormatNumber(max)) + FormatNumber(number));
  }
  return number;
}

bool JsonBoolOr(const Json& object, const char* field, bool fallback, const std::string& source) {
  const Json* value = FindField(object, field, source);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    ThrowField(source, field, std::string("must be true or false, got ") + value->type_name());
  }
  return value->get<bool>();
}

std::string JsonStringOr(const Json& object, const char* field, const std::string& fallback,
                         const std::string& source) {
  const Json* value = FindField(object, field, source);
  if (value == nullptr) return fallback;
  if (!value->is_string()) {
    ThrowField(source, field, std::string("must be a string, got ") + value->type_name());
  }
  return value->get<std::string>();
}

}  // namespace tandem::engine
