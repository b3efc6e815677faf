#include "engine/objects/object_options.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/base/ascii.h"
#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/io/atomic_write.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxKeyText = 4096;
constexpr size_t kMaxProfileBytes = size_t{1} << 20;
constexpr std::chrono::milliseconds kObjectIdleTimeout{60'000};
constexpr const char* kAmazonDomain = ".amazonaws.com";

std::string Variable(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = environment(name); value != nullptr && *value != '\0') return value;
  }
  return {};
}

std::string_view TrimmedText(std::string_view text) {
  constexpr const char* kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// Part of a header field or of a signature: one word.
std::string CheckedWord(const std::string& text, const std::string& source) {
  const bool is_visible =
      std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!is_visible || text.size() > kMaxKeyText) {
    throw Error(ErrorCode::kInvalidArgument,
                source + " must be one word of visible ASCII characters, at most " +
                    std::to_string(kMaxKeyText) + " bytes");
  }
  return text;
}

using Profile = std::map<std::string, std::string>;

// The section of AWS's own files. Without the file or the section: empty.
Profile ReadProfile(const fs::path& path, const std::string& section) {
  Profile profile;
  std::error_code absent;
  if (path.empty() || !fs::exists(path, absent)) return profile;
  const std::string text = ReadWholeFile(path, kMaxProfileBytes);
  bool is_inside = false;
  std::string group;  // of nested settings: "s3." below the line `s3 =`
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view raw = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    const std::string_view line = TrimmedText(raw);
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      is_inside = line.back() == ']' && TrimmedText(line.substr(1, line.size() - 2)) == section;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_inside || equals == std::string_view::npos) continue;
    const std::string name(TrimmedText(line.substr(0, equals)));
    const std::string value(TrimmedText(line.substr(equals + 1)));
    // Indented lines belong to the last line without a value.
    const bool is_nested = raw.front() == ' ' || raw.front() == '\t';
    if (!is_nested) group = value.empty() ? name + "." : "";
    if (is_nested && group.empty()) continue;
    profile[is_nested ? group + name : name] = value;
  }
  return profile;
}

// The settings of the profile from both files of AWS's tools. The credentials file wins.
Profile ReadProfiles(const Environment& environment) {
  const std::string name = Variable(environment, {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"});
  const std::string home = Variable(environment, {"HOME"});
  const auto path_of = [&](const char* variable, const char* file) {
    const std::string named = Variable(environment, {variable});
    if (!named.empty()) return fs::path(named);
    return home.empty() ? fs::path() : fs::path(home) / ".aws" / file;
  };
  const fs::path credentials = path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  const fs::path config = path_of("AWS_CONFIG_FILE", "config");
  Profile profile = ReadProfile(credentials, name.empty() ? "default" : name);
  const bool is_default = name.empty() || name == "default";
  profile.merge(ReadProfile(config, is_default ? "default" : "profile " + name));
  if (profile.empty() && !name.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "AWS_PROFILE names the profile '" + name +
                                                 "', but neither " + credentials.string() +
                                                 " nor " + config.string() + " has it");
  }
  return profile;
}

std::string Setting(const Profile& profile, const std::string& name) {
  const auto found = profile.find(name);
  return found == profile.end() ? std::string() : found->second;
}

ObjectKeys CheckedKeys(ObjectKeys keys, const std::string& source) {
  if (keys.access_key_id.empty() != keys.secret_access_key.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                source +
                    ": the access key and the secret key must be set together; one of them "
                    "is missing");
  }
  CheckedWord(keys.access_key_id, source + ": the access key");
  CheckedWord(keys.secret_access_key, source + ": the secret key");
  CheckedWord(keys.session_token, source + ": the session token");
  return keys;
}

ObjectKeys EnvironmentKeys(const Environment& environment) {
  return CheckedKeys({Variable(environment, {"AWS_ACCESS_KEY_ID"}),
                      Variable(environment, {"AWS_SECRET_ACCESS_KEY"}),
                      Variable(environment, {"AWS_SESSION_TOKEN"})},
                     "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
}

std::string UnsupportedSource(const Profile& profile, const Environment& environment) {
  for (const char* name : {"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"}) {
    if (!Variable(environment, {name}).empty()) return name;
  }
  for (const char* name : {"role_arn", "credential_process", "sso_session", "sso_start_url",
                           "credential_source", "source_profile"}) {
    if (!Setting(profile, name).empty()) return std::string(name) + " of the AWS profile";
  }
  return {};
}

std::string CheckedUrl(std::string text, const std::string& source) {
  while (text.ends_with('/')) text.pop_back();
  const std::optional<Url> url = ParseUrl(text);
  // Bucket and key are appended, so it must not have a path, a query or a fragment.
  if (!url || !url->user_info.empty() || url->target != "/" ||
      text.find_first_of("?#") != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                source + " must be http://HOST[:PORT] or https://HOST[:PORT]");
  }
  return text;
}

std::string CheckedRegion(const std::string& region) {
  const bool is_plain = std::all_of(region.begin(), region.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (!is_plain || region.size() > 64) {
    throw Error(ErrorCode::kInvalidArgument,
                "AWS_REGION must be the name of a region, such as eu-central-1");
  }
  return region;
}

std::optional<bool> SignsBodies(const Profile& profile) {
  std::string text = LowerCase(Setting(profile, "s3.payload_signing_enabled"));
  if (text.empty()) return std::nullopt;
  if (text == "true" || text == "false") return text == "true";
  throw Error(ErrorCode::kInvalidArgument,
              "payload_signing_enabled of the AWS profile must be true or false");
}

void ReadAmazon(const Environment& environment, const std::string& bucket, ObjectOptions& options) {
  options.keys = EnvironmentKeys(environment);
  const Profile profile = ReadProfiles(environment);
  if (options.keys.empty()) {
    options.keys = CheckedKeys(
        {Setting(profile, "aws_access_key_id"), Setting(profile, "aws_secret_access_key"),
         Setting(profile, "aws_session_token")},
        "the AWS profile");
  }
  if (options.keys.empty()) options.unsupported_source = UnsupportedSource(profile, environment);
  options.signs_bodies = SignsBodies(profile);
  std::string region = Variable(environment, {"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) region = Setting(profile, "region");
  if (!region.empty()) options.region = CheckedRegion(region);
  std::string endpoint = Variable(environment, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (endpoint.empty()) endpoint = Setting(profile, "endpoint_url");
  if (!endpoint.empty()) {
    options.http.endpoint = CheckedUrl(endpoint, "AWS_ENDPOINT_URL");
    return;
  }
  // A dot or an underscore in the bucket's name does not match Amazon's certificates.
  options.bucket_in_host = bucket.find_first_of("._") == std::string::npos;
  options.http.endpoint = std::string("https://") + (options.bucket_in_host ? bucket + "." : "") +
                          "s3." + options.region + kAmazonDomain;
}

void ReadGoogle(const Environment& environment, ObjectOptions& options) {
  options.keys = CheckedKeys({Variable(environment, {"GS_ACCESS_KEY_ID"}),
                              Variable(environment, {"GS_SECRET_ACCESS_KEY"}),
                              {}},
                             "GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY");
  if (options.keys.empty()) options.keys = EnvironmentKeys(environment);
  if (options.keys.empty() && !Variable(environment, {"GOOGLE_APPLICATION_CREDENTIALS"}).empty()) {
    options.unsupported_source = "GOOGLE_APPLICATION_CREDENTIALS";
  }
  options.region = "auto";
  const std::string endpoint = Variable(environment, {"STORAGE_EMULATOR_HOST"});
  options.http.endpoint = endpoint.empty() ? "https://storage.googleapis.com"
                                           : CheckedUrl(endpoint, "STORAGE_EMULATOR_HOST");
}

}  // namespace

ObjectOptions ObjectOptionsFromEnvironment(const ObjectUrl& url, const Environment& environment) {
  ObjectOptions options;
  // The cache, the proxies and the offline mode are those of downloads from the hub.
  options.http = HubOptionsFromEnvironment(environment);
  options.http.token.clear();
  options.http.idle_timeout = std::max(options.http.idle_timeout, kObjectIdleTimeout);
  if (url.kind == StoreKind::kS3) {
    ReadAmazon(environment, url.bucket, options);
  } else {
    ReadGoogle(environment, options);
  }
  return options;
}

ObjectOptions ObjectOptionsFromEnvironment(const ObjectUrl& url) {
  return ObjectOptionsFromEnvironment(url, [](const char* name) { return std::getenv(name); });
}

}  // namespace tandem::engine
