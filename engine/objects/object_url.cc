#include "engine/objects/object_url.h"

#include <algorithm>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kS3Scheme = "s3://";
constexpr std::string_view kGcsScheme = "gs://";
constexpr size_t kMaxKeyBytes = 1024;  // of S3 and of Google Cloud Storage

// Buckets become a host name or a part of a path. Underscores occur in old buckets and at Google.
bool IsBucketName(std::string_view text) {
  if (text.size() < 3 || text.size() > 222 || text.find("..") != std::string_view::npos) {
    return false;
  }
  const auto is_end = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  const auto is_inner = [&](char c) { return is_end(c) || c == '-' || c == '.' || c == '_'; };
  return is_end(text.front()) && is_end(text.back()) &&
         std::all_of(text.begin(), text.end(), is_inner);
}

}  // namespace

std::string ObjectUrl::Text() const {
  return std::string(kind == StoreKind::kS3 ? kS3Scheme : kGcsScheme) + bucket + "/" + key;
}

ObjectUrl ObjectUrl::operator/(std::string_view name) const {
  return {kind, bucket, AsPrefix(key) + std::string(name)};
}

bool IsObjectUrl(std::string_view text) {
  return text.starts_with(kS3Scheme) || text.starts_with(kGcsScheme);
}

std::optional<ObjectUrl> ParseObjectUrl(std::string_view text) {
  if (!IsObjectUrl(text)) return std::nullopt;
  ObjectUrl url;
  url.kind = text.starts_with(kS3Scheme) ? StoreKind::kS3 : StoreKind::kGcs;
  const std::string_view rest = text.substr(kS3Scheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.bucket = rest.substr(0, slash);
  if (slash < rest.size()) url.key = rest.substr(slash + 1);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument, Quoted(text) + ": " + why);
  };
  if (!IsBucketName(url.bucket)) {
    refuse("the bucket's name needs 3 to 222 lower-case letters, digits, '-', '.' or '_'");
  }
  if (url.key.size() > kMaxKeyBytes) {
    refuse("the key has " + std::to_string(url.key.size()) +
           " bytes; the limit of object stores "
           "is " +
           std::to_string(kMaxKeyBytes));
  }
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7f;
  };
  if (std::any_of(url.key.begin(), url.key.end(), is_control)) {
    refuse("the key has a control character");
  }
  // Two slashes in a row are a typing error; proxies and servers would also merge them.
  if (url.key.starts_with('/') || url.key.find("//") != std::string::npos) {
    refuse("the key has an empty part; remove the doubled slash");
  }
  return url;
}

std::string AsPrefix(std::string_view key) {
  std::string prefix(key);
  if (!prefix.empty() && !prefix.ends_with('/')) prefix.push_back('/');
  return prefix;
}

}  // namespace tandem::engine
