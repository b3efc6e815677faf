#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::engine {

// Credentials of an object store. Never logged.
struct ObjectKeys {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token;  // empty: permanent keys

  bool empty() const { return access_key_id.empty(); }
};

// A request as AWS Signature Version 4 sees it.
struct SigV4Request {
  std::string method;
  std::string path;                                         // encoded, as it is sent
  std::vector<std::pair<std::string, std::string>> query;   // not encoded
  std::vector<std::pair<std::string, std::string>> fields;  // lower-case names, with `host`
  std::string payload_sha256;                               // lower-case hex
};

struct SigV4Scope {
  std::string time;  // "20130524T000000Z", as in x-amz-date
  std::string region;
  std::string service = "s3";
};

// "name=value&…" in the order that the signature requires; also the query to send.
std::string CanonicalQuery(const std::vector<std::pair<std::string, std::string>>& query);
std::string CanonicalRequest(const SigV4Request& request);
// Value of the Authorization field. All fields of the request are signed.
std::string SigV4Authorization(const SigV4Request& request, const ObjectKeys& keys,
                               const SigV4Scope& scope);

// The path of a URL from a key: encodes every byte that is not allowed there, and keeps slashes.
std::string EncodedKey(std::string_view key);

}  // namespace tandem::engine
