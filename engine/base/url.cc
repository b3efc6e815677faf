#include "engine/base/url.h"

#include <algorithm>

#include "engine/base/ascii.h"

namespace tandem {
namespace {

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

constexpr size_t kMaxUrlBytes = size_t{16} << 10;

bool IsUnreserved(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_' || c == '~';
}

uint16_t DefaultPort(bool is_https) { return is_https ? 443 : 80; }

// Parses "host", "host:port" or "[::1]:port". Returns false for anything else.
bool ParseAuthority(std::string_view text, Url& url) {
  std::string_view host;
  std::string_view rest;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    host = text.substr(1, end - 1);
    rest = text.substr(end + 1);
    if (host.find_first_not_of("0123456789abcdefABCDEF:.") != std::string_view::npos) return false;
  } else {
    const size_t colon = std::min(text.find(':'), text.size());
    host = text.substr(0, colon);
    rest = text.substr(colon);
    if (!std::all_of(host.begin(), host.end(), IsUnreserved)) return false;
  }
  if (host.empty() || host.size() > 255) return false;
  for (const char c : host) {
    url.host.push_back(c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c);
  }
  url.port = DefaultPort(url.is_https);
  if (rest.empty() || rest == ":") return true;
  if (rest.front() != ':' || rest.size() > 6) return false;
  uint32_t port = 0;
  for (const char c : rest.substr(1)) {
    if (c < '0' || c > '9') return false;
    port = port * 10 + static_cast<uint32_t>(c - '0');
  }
  if (port == 0 || port > 65535) return false;
  url.port = static_cast<uint16_t>(port);
  return true;
}

}  // namespace

std::string PercentEncode(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (IsUnreserved(c)) {
      out.push_back(c);
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    out += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

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

std::optional<RequestTarget> ParseRequestTarget(std::string_view target) {
  if (target == "*") return RequestTarget{"*", {}};
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

  RequestTarget out;
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
    // Skips a broken field: requests without defined parameters ignore the query.
    if (name && decoded) out.query.emplace_back(std::move(*name), std::move(*decoded));
  }
  return out;
}

std::string Url::Authority() const {
  std::string out = host.find(':') == std::string::npos ? host : '[' + host + ']';
  if (port != DefaultPort(is_https)) out += ':' + std::to_string(port);
  return out;
}

std::string Url::Origin() const { return (is_https ? "https://" : "http://") + Authority(); }

std::string Url::Display() const { return Origin() + target.substr(0, target.find('?')); }

std::optional<Url> ParseUrl(std::string_view text) {
  if (text.size() > kMaxUrlBytes) return std::nullopt;
  const bool is_visible = std::all_of(text.begin(), text.end(),
                                      [](char c) { return c > 0x20 && c < 0x7f && c != '\\'; });
  if (!is_visible) return std::nullopt;
  text = text.substr(0, text.find('#'));

  Url url;
  const size_t scheme_end = text.find("://");
  if (scheme_end == std::string_view::npos) return std::nullopt;
  std::string scheme(text.substr(0, scheme_end));
  for (char& c : scheme) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (scheme != "http" && scheme != "https") return std::nullopt;
  url.is_https = scheme == "https";

  text.remove_prefix(scheme_end + 3);
  const size_t path = std::min(text.find_first_of("/?"), text.size());
  std::string_view authority = text.substr(0, path);
  if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
    url.user_info = authority.substr(0, at);
    authority.remove_prefix(at + 1);
  }
  if (!ParseAuthority(authority, url)) return std::nullopt;
  url.target = text.substr(path);
  if (!url.target.starts_with('/')) url.target.insert(0, "/");
  return url;
}

std::optional<Url> ResolveUrl(const Url& base, std::string_view reference) {
  const size_t scheme_end = reference.find("://");
  if (scheme_end != std::string_view::npos && reference.find_first_of("/?#") > scheme_end) {
    return ParseUrl(reference);
  }
  if (reference.starts_with("//")) {
    return ParseUrl((base.is_https ? "https:" : "http:") + std::string(reference));
  }
  std::string target;
  const std::string path = base.target.substr(0, base.target.find('?'));
  if (reference.starts_with('/')) {
    target = reference;
  } else if (reference.starts_with('?') || reference.empty()) {
    target = path + std::string(reference);
  } else {
    target = path.substr(0, path.rfind('/') + 1) + std::string(reference);
  }
  return ParseUrl(base.Origin() + target);
}

bool IsSameOrigin(const Url& a, const Url& b) {
  return a.is_https == b.is_https && a.host == b.host && a.port == b.port;
}

}  // namespace tandem
