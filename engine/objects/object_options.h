#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/hub/options.h"
#include "engine/objects/object_url.h"
#include "engine/objects/sigv4.h"

namespace tandem::engine {

// How to reach an object store.
struct ObjectOptions {
  // Endpoint, cache, proxies, timeouts, number of connections and limits of retrying. Its token is
  // empty: requests are signed.
  HubOptions http;
  std::string region = "us-east-1";
  ObjectKeys keys;  // empty: anonymous requests
  // Why `keys` is empty: a source of credentials that is set but not supported. For messages.
  std::string unsupported_source;
  // https://BUCKET.HOST/KEY; otherwise https://HOST/BUCKET/KEY.
  bool bucket_in_host = false;
  // Whether signatures cover the bodies too. Unset: unless TLS protects them or the server is on
  // this machine.
  std::optional<bool> signs_bodies;

  uint64_t segment_bytes = uint64_t{8} << 20;  // of one ranged read
  uint64_t part_bytes = uint64_t{8} << 20;     // of a multipart upload; grows for huge files
};

// Options for the store and bucket of `url`, from the variables and files of the stores' own tools:
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE, AWS_REGION,
// AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_SHARED_CREDENTIALS_FILE and
// AWS_CONFIG_FILE. For gs://: GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY (HMAC keys; otherwise the
// AWS keys), and STORAGE_EMULATOR_HOST. Of the profile's nested `s3` settings,
// payload_signing_enabled counts. Throws kInvalidArgument naming the variable or file, without its
// value where that is secret.
ObjectOptions ObjectOptionsFromEnvironment(const ObjectUrl& url, const Environment& environment);
ObjectOptions ObjectOptionsFromEnvironment(const ObjectUrl& url);

}  // namespace tandem::engine
