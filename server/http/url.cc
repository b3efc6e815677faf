#include "server/http/url.h"

namespace tandem::server {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsSafePath(std::string_view path) {
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\') return false;
  }
  size_t begin = 1;
  while (begin < path.size()) {
    size_t end = path.find('/', begin);
    if (end == std::string_view::npos) end = path.size();
    const std::string_view segment = path.substr(begin, end - begin);
    if (segment.empty() || segment == "." || segment == "..") return false;
    begin = end + 1;
  }
  return true;
}

}  // namespace

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

std::optional<Target> ParseTarget(std::string_view target) {
  if (target == "*") return Target{"*", {}};
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with(scheme)) {
      const size_t slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
      break;
    }
  }
  if (!target.starts_with('/')) return std::nullopt;
  target = target.substr(0, target.find('#'));

  const size_t question = target.find('?');
  const std::string_view raw_query =
      question == std::string_view::npos ? std::string_view() : target.substr(question + 1);
  std::optional<std::string> path = PercentDecode(target.substr(0, question));
  if (!path || !IsSafePath(*path)) return std::nullopt;

  Target out;
  out.path = std::move(*path);
  size_t begin = 0;
  while (begin < raw_query.size()) {
    size_t end = raw_query.find('&', begin);
    if (end == std::string_view::npos) end = raw_query.size();
    const std::string_view field = raw_query.substr(begin, end - begin);
    begin = end + 1;
    if (field.empty()) continue;
    const size_t equals = field.find('=');
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    std::optional<std::string> name = PercentDecode(field.substr(0, equals));
    std::optional<std::string> decoded = PercentDecode(value);
    // The query is ignored where no parameter is defined, so a broken field is not an error here.
    if (name && decoded) out.query.emplace_back(std::move(*name), std::move(*decoded));
  }
  return out;
}

}  // namespace tandem::server
