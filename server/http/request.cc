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

const std::string* Request::FindHeader(std::string_view lower_case_name) const {
  return FindFirst(headers, lower_case_name);
}

const std::string* Request::FindQuery(std::string_view name) const {
  return FindFirst(query, name);
}

}  // namespace tandem::server
