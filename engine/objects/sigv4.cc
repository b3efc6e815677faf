#include "engine/objects/sigv4.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/url.h"
#include "engine/io/sha256.h"

namespace tandem::engine {
namespace {

constexpr size_t kHmacBlockBytes = 64;
constexpr std::string_view kAlgorithm = "AWS4-HMAC-SHA256";

std::string Sha256Hex(std::string_view text) {
  return ToHex(Sha256Of(std::as_bytes(std::span(text.data(), text.size()))));
}

// RFC 2104.
Sha256Digest HmacSha256(std::span<const uint8_t> key, std::string_view text) {
  std::array<uint8_t, kHmacBlockBytes> block{};
  if (key.size() > block.size()) {
    const Sha256Digest short_key = Sha256Of(std::as_bytes(key));
    std::copy(short_key.begin(), short_key.end(), block.begin());
  } else {
    std::copy(key.begin(), key.end(), block.begin());
  }
  const auto hash = [&](uint8_t pad, std::span<const std::byte> message) {
    std::array<uint8_t, kHmacBlockBytes> padded = block;
    for (uint8_t& byte : padded) byte = static_cast<uint8_t>(byte ^ pad);
    Sha256 sha;
    sha.Update(std::as_bytes(std::span(padded)));
    sha.Update(message);
    return sha.Finish();
  };
  const Sha256Digest inner = hash(0x36, std::as_bytes(std::span(text.data(), text.size())));
  return hash(0x5c, std::as_bytes(std::span(inner)));
}

// Without spaces at the ends, and with one space in place of several.
std::string TrimmedValue(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out.push_back(c);
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

using Fields = std::vector<std::pair<std::string, std::string>>;

Fields Sorted(Fields fields) {
  std::stable_sort(fields.begin(), fields.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return fields;
}

std::string SignedNames(const Fields& sorted) {
  std::string names;
  for (const auto& [name, value] : sorted) {
    if (!names.empty()) names.push_back(';');
    names += name;
  }
  return names;
}

}  // namespace

std::string CanonicalQuery(const std::vector<std::pair<std::string, std::string>>& query) {
  Fields encoded;
  for (const auto& [name, value] : query) {
    encoded.emplace_back(PercentEncode(name), PercentEncode(value));
  }
  std::sort(encoded.begin(), encoded.end());
  std::string out;
  for (const auto& [name, value] : encoded) {
    if (!out.empty()) out.push_back('&');
    out += name + "=" + value;
  }
  return out;
}

std::string CanonicalRequest(const SigV4Request& request) {
  const Fields fields = Sorted(request.fields);
  std::string out = request.method + "\n" + request.path + "\n" + CanonicalQuery(request.query);
  out.push_back('\n');
  for (const auto& [name, value] : fields) out += name + ":" + TrimmedValue(value) + "\n";
  return out + "\n" + SignedNames(fields) + "\n" + request.payload_sha256;
}

std::string SigV4Authorization(const SigV4Request& request, const ObjectKeys& keys,
                               const SigV4Scope& scope) {
  const std::string date = scope.time.substr(0, 8);
  const std::string scope_text = date + "/" + scope.region + "/" + scope.service + "/aws4_request";
  const std::string to_sign = std::string(kAlgorithm) + "\n" + scope.time + "\n" + scope_text +
                              "\n" + Sha256Hex(CanonicalRequest(request));
  const std::string secret = "AWS4" + keys.secret_access_key;
  Sha256Digest key =
      HmacSha256({reinterpret_cast<const uint8_t*>(secret.data()), secret.size()}, date);
  for (const std::string_view part :
       {std::string_view(scope.region), std::string_view(scope.service),
        std::string_view("aws4_request")}) {
    key = HmacSha256(key, part);
  }
  return std::string(kAlgorithm) + " Credential=" + keys.access_key_id + "/" + scope_text +
         ",SignedHeaders=" + SignedNames(Sorted(request.fields)) +
         ",Signature=" + ToHex(HmacSha256(key, to_sign));
}

std::string EncodedKey(std::string_view key) {
  std::string path;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('/', begin), key.size());
    path += PercentEncode(key.substr(begin, end - begin));
    if (end == key.size()) break;
    path.push_back('/');
    begin = end + 1;
  }
  return path;
}

}  // namespace tandem::engine
