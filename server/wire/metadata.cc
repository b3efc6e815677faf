#include "server/wire/metadata.h"

#include <nlohmann/json.hpp>

namespace tandem::server {
namespace {

constexpr size_t kMaxPairs = 16;
constexpr size_t kMaxKeyBytes = 64;
constexpr size_t kMaxValueBytes = 512;

}  // namespace

std::vector<std::pair<std::string, std::string>> ParseMetadata(FieldReader& reader) {
  std::vector<std::pair<std::string, std::string>> out;
  const nlohmann::ordered_json* object = reader.Object("metadata");
  if (object == nullptr) return out;
  if (object->size() > kMaxPairs) {
    throw BadValue("metadata",
                   "metadata must have at most 16 pairs, got " + std::to_string(object->size()));
  }
  for (const auto& [key, value] : object->items()) {
    if (!value.is_string()) throw WrongType("metadata." + key, "a string", value);
    const auto& text = value.get_ref<const std::string&>();
    if (key.size() > kMaxKeyBytes || text.size() > kMaxValueBytes) {
      throw BadValue("metadata",
                     "metadata keys must have at most 64 characters, and values at most 512");
    }
    out.emplace_back(key, text);
  }
  return out;
}

}  // namespace tandem::server
