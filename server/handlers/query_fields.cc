#include "server/handlers/query_fields.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <string>

#include "server/wire/field_reader.h"

namespace tandem::server {

using Json = nlohmann::ordered_json;

int64_t QueryInt(const Request& request, const char* name, int64_t fallback, int64_t min,
                 int64_t max) {
  const std::string* text = request.FindQuery(name);
  if (text == nullptr) return fallback;
  int64_t value = 0;
  const auto [end, fault] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (fault != std::errc() || end != text->data() + text->size() || value < min || value > max) {
    throw BadValue(name, std::string(name) + " must be an integer in [" + std::to_string(min) +
                             ", " + std::to_string(max) + "], got " +
                             ShortForm(Json(text->substr(0, 60))));
  }
  return value;
}

Order QueryOrder(const Request& request, Order fallback) {
  const std::string* text = request.FindQuery("order");
  if (text == nullptr) return fallback;
  if (*text == "asc") return Order::kOldestFirst;
  if (*text == "desc") return Order::kNewestFirst;
  throw BadValue("order",
                 "order must be 'asc' or 'desc', got " + ShortForm(Json(text->substr(0, 60))));
}

}  // namespace tandem::server
