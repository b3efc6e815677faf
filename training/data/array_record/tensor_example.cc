#include "training/data/array_record/tensor_example.h"

#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "training/data/array_record/byte_reader.h"

namespace tandem::training {
namespace {

using nlohmann::ordered_json;
using ByteSpan = std::span<const std::byte>;

constexpr const char* kName = "tf.train.Example";

// One field of a protocol buffer.
struct Field {
  uint64_t number = 0;
  uint64_t wire = 0;
  uint64_t value = 0;  // of a varint, or of 4 or 8 bytes
  ByteSpan bytes;      // of a run of bytes
};

enum : uint64_t { kVarint = 0, kFixed64 = 1, kRun = 2, kFixed32 = 5 };

Field NextField(ByteReader& reader) {
  Field field;
  const uint64_t tag = reader.Varint();
  field.number = tag >> 3;
  field.wire = tag & 7;
  if (field.wire == kVarint) {
    field.value = reader.Varint();
  } else if (field.wire == kRun) {
    field.bytes = reader.Bytes(reader.Varint());
  } else if (field.wire == kFixed32 || field.wire == kFixed64) {
    field.value = reader.Fixed(field.wire == kFixed32 ? 4 : 8);
  } else {
    throw Error(ErrorCode::kDataLoss, std::string(kName) + ": a field has no known form");
  }
  return field;
}

std::string TextOf(ByteSpan bytes, const std::string& what) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!IsValidUtf8(text)) {
    throw Error(ErrorCode::kInvalidArgument, what + " is no UTF-8 text");
  }
  return text;
}

ordered_json NumberOf(uint64_t bits, bool is_float) {
  if (!is_float) return static_cast<int64_t>(bits);
  const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
  return std::isfinite(value) ? ordered_json(value) : ordered_json();
}

// The values of a bytes list (kind 1), a float list (2) or an integer list (3).
ordered_json ListOf(uint64_t kind, ByteSpan list, const std::string& feature) {
  ordered_json values = ordered_json::array();
  ByteReader reader(list, kName);
  while (!reader.is_done()) {
    const Field field = NextField(reader);
    if (field.number != 1) continue;
    if (kind == 1) {
      if (field.wire != kRun) {
        throw Error(ErrorCode::kDataLoss, std::string(kName) + ": a text has another form");
      }
      values.push_back(TextOf(field.bytes, "feature " + Quoted(feature)));
    } else if (field.wire == kRun) {  // packed numbers
      ByteReader numbers(field.bytes, kName);
      while (!numbers.is_done()) {
        values.push_back(NumberOf(kind == 2 ? numbers.Fixed(4) : numbers.Varint(), kind == 2));
      }
    } else {
      values.push_back(NumberOf(field.value, kind == 2));
    }
  }
  return values;
}

// The columns of a row by name, in the order of their first feature.
class Columns {
 public:
  // A later value replaces an earlier one.
  void Set(const std::string& name, ordered_json value) {
    const auto [place, is_new] = places_.try_emplace(name, values_.size());
    if (is_new) {
      values_.emplace_back(name, std::move(value));
    } else {
      values_[place->second].second = std::move(value);
    }
  }

  ordered_json Row() && {
    ordered_json row = ordered_json::object();
    // Appends to the vector below the ordered map, whose own insertion searches all names.
    auto& object = row.get_ref<ordered_json::object_t&>();
    object.reserve(values_.size());
    for (auto& [name, value] : values_) object.emplace_back(name, std::move(value));
    return row;
  }

 private:
  std::vector<std::pair<std::string, ordered_json>> values_;
  std::map<std::string, size_t> places_;  // in values_
};

void AddFeature(ByteSpan entry, Columns* columns) {
  std::string name;
  ByteSpan feature;
  ByteReader reader(entry, kName);
  while (!reader.is_done()) {
    const Field field = NextField(reader);
    if (field.wire != kRun) continue;
    if (field.number == 1) name = TextOf(field.bytes, "the name of a feature");
    if (field.number == 2) feature = field.bytes;
  }
  ByteReader lists(feature, kName);
  while (!lists.is_done()) {
    const Field list = NextField(lists);
    if (list.wire != kRun || list.number < 1 || list.number > 3) continue;
    ordered_json values = ListOf(list.number, list.bytes, name);
    columns->Set(name, values.size() == 1 ? std::move(values[0]) : std::move(values));
  }
}

}  // namespace

ordered_json ParseTensorExample(ByteSpan bytes) {
  Columns columns;
  ByteReader example(bytes, kName);
  while (!example.is_done()) {
    const Field features = NextField(example);
    if (features.number != 1 || features.wire != kRun) {
      throw Error(ErrorCode::kDataLoss, std::string(kName) + ": has an unknown field");
    }
    ByteReader entries(features.bytes, kName);
    while (!entries.is_done()) {
      const Field entry = NextField(entries);
      if (entry.number == 1 && entry.wire == kRun) AddFeature(entry.bytes, &columns);
    }
  }
  return std::move(columns).Row();
}

}  // namespace tandem::training
