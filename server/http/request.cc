#include "server/http/request.h"

namespace tandem::server {
namespace {

const std::string* FindFirst(const Headers& fields, std::string_view name) {
  for (const auto& [key, value] : fields) {
    if (key == name) return &value;
  }
  return nullptr;
}

}  // namespace

void SetHeader(Headers& headers, std::string_view name, std::string value) {
  for (auto& [present, old_value] : headers) {
    if (present != name) continue;
    old_value = std::move(value);
    return;
  }
  headers.emplace_back(name, std::move(value));
}

const std::string* Request::FindHeader(std::string_view lower_case_name) const {
  return FindFirst(headers, lower_case_name);
}

const std::string* Request::FindQuery(std::string_view name) const {
  return FindFirst(query, name);
}

}  // namespace tandem::server
