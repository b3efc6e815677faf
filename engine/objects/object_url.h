#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::engine {

enum class StoreKind { kS3, kGcs };

// `s3://BUCKET/KEY` or `gs://BUCKET/KEY`. The key is not encoded; it may be empty or a prefix.
struct ObjectUrl {
  StoreKind kind = StoreKind::kS3;
  std::string bucket;
  std::string key;

  std::string Text() const;
  // The URL of an object below this one, with exactly one slash between them.
  ObjectUrl operator/(std::string_view name) const;
};

// Whether the text begins with `s3://` or `gs://`.
bool IsObjectUrl(std::string_view text);
// Returns nullopt unless IsObjectUrl(text). Throws kInvalidArgument for a bad bucket or key.
std::optional<ObjectUrl> ParseObjectUrl(std::string_view text);

// The key with a slash at its end, so that it names all objects below it; empty for an empty key.
std::string AsPrefix(std::string_view key);

}  // namespace tandem::engine
