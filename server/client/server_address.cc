#include "server/client/server_address.h"

#include <algorithm>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/base/url.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxKeyBytes = 4096;

// Refuses a key that could smuggle another header into the request.
std::string CheckedKey(std::string key, const std::string& origin) {
  while (!key.empty() && (key.back() == '\n' || key.back() == '\r' || key.back() == ' ')) {
    key.pop_back();
  }
  const bool is_clean =
      std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7F; });
  if (!is_clean || key.empty()) {
    throw Error(ErrorCode::kInvalidArgument, origin + " must hold one key on one line");
  }
  return key;
}

std::string ReadKey(const fs::path& file) {
  return CheckedKey(engine::ReadWholeFile(file, kMaxKeyBytes), "the key file " + file.string());
}

bool IsLoopback(const std::string& host) {
  // A name such as 127.example.org may belong to any machine.
  const bool is_number = host.find_first_not_of("0123456789.") == std::string::npos;
  return host == "localhost" || host == "::1" || (is_number && host.starts_with("127."));
}

struct CheckedUrl {
  std::string text;
  bool is_loopback;
};

CheckedUrl CheckUrl(const std::string& given) {
  const auto fault = [&](const std::string& why) {
    return Error(ErrorCode::kInvalidArgument, "the server's URL " + Quoted(given) + " " + why);
  };
  std::optional<Url> url = ParseUrl(given);
  if (!url) throw fault("must look like http://127.0.0.1:8080 or https://name");
  if (!url->user_info.empty()) throw fault("must not hold a key: use --key-file or TANDEM_API_KEY");
  std::string path = url->target;
  if (path.find('?') != std::string::npos) throw fault("must not have a query");
  while (path.ends_with('/')) path.pop_back();
  if (path.ends_with("/v1")) path.resize(path.size() - 3);
  return {url->Origin() + path, IsLoopback(url->host)};
}

}  // namespace

ServerAddress ResolveAddress(const AddressWish& wish,
                             const std::function<const char*(const char*)>& environment) {
  const auto variable = [&](const char* name) {
    const char* const value = environment(name);
    return std::string(value == nullptr ? "" : value);
  };
  const auto key_of = [&](const char* name) {
    const std::string value = variable(name);
    return value.empty() ? value : CheckedKey(value, std::string("the variable ") + name);
  };
  std::string wanted = wish.url.empty() ? variable("TANDEM_URL") : wish.url;
  if (wanted.empty()) wanted = kDefaultServerUrl;
  const CheckedUrl url = CheckUrl(wanted);

  ServerAddress address;
  address.url = url.text;
  if (!wish.key_file.empty()) {
    address.api_key = ReadKey(wish.key_file);
    return address;
  }
  address.api_key = key_of("TANDEM_API_KEY");
  address.admin_key = key_of("TANDEM_ADMIN_KEY");
  const fs::path own_key = wish.data_dir.empty() ? fs::path() : wish.data_dir / "admin.key";
  std::error_code ignored;
  if (address.admin_key.empty() && url.is_loopback && !own_key.empty() &&
      fs::is_regular_file(own_key, ignored)) {
    address.admin_key = ReadKey(own_key);
  }
  return address;
}

}  // namespace tandem::server
