#include "engine/hub/options.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>

#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/io/atomic_write.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTokenBytes = 4096;

std::string Get(const Environment& environment, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = environment(name); value != nullptr && *value != '\0') return value;
  }
  return {};
}

bool IsTrue(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text == "1" || text == "ON" || text == "YES" || text == "TRUE";
}

fs::path ExpandHome(const std::string& path, const Environment& environment) {
  if (path != "~" && !path.starts_with("~/")) return path;
  return fs::path(Get(environment, {"HOME"})) / path.substr(std::min<size_t>(2, path.size()));
}

fs::path HuggingFaceHome(const Environment& environment) {
  if (const std::string home = Get(environment, {"HF_HOME"}); !home.empty()) {
    return ExpandHome(home, environment);
  }
  if (const std::string xdg = Get(environment, {"XDG_CACHE_HOME"}); !xdg.empty()) {
    return ExpandHome(xdg, environment) / "huggingface";
  }
  const std::string home = Get(environment, {"HOME"});
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "huggingface";
}

std::string Trimmed(const std::string& text) {
  constexpr const char* kSpaces = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

// A token becomes a header field, so it must not contain spaces or control characters.
std::string CheckedToken(const std::string& text, const std::string& source) {
  std::string token = Trimmed(text);
  const bool is_visible =
      std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (!is_visible || token.size() > kMaxTokenBytes) {
    throw Error(ErrorCode::kInvalidArgument, source +
                                                 " does not contain a valid token: expected one "
                                                 "word of visible ASCII characters, at most " +
                                                 std::to_string(kMaxTokenBytes) + " bytes");
  }
  return token;
}

std::string ReadToken(const Environment& environment, const fs::path& home) {
  if (IsTrue(Get(environment, {"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) return {};
  const std::string token = Get(environment, {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"});
  if (!token.empty()) return CheckedToken(token, "HF_TOKEN");
  const std::string named = Get(environment, {"HF_TOKEN_PATH"});
  if (named.empty() && home.empty()) return {};
  const fs::path path = named.empty() ? home / "token" : ExpandHome(named, environment);
  std::error_code absent;
  if (!fs::exists(path, absent)) return {};
  return CheckedToken(ReadWholeFile(path, 2 * kMaxTokenBytes), path.string());
}

std::string CheckedEndpointText(std::string text) {
  while (text.ends_with('/')) text.pop_back();
  const std::optional<Url> url = ParseUrl(text);
  // Paths are appended to the endpoint, so it must not have a query or a fragment.
  if (!url || !url->user_info.empty() || text.find_first_of("?#") != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                "HF_ENDPOINT must be an http or https URL without user name, query and fragment");
  }
  return text;
}

// Accepts `host:port` for an http proxy, like curl. Messages never show the value: it may hold a
// password.
std::string CheckedProxy(std::string text, const char* name) {
  if (text.empty()) return text;
  if (text.find("://") == std::string::npos) text = "http://" + text;
  const std::optional<Url> url = ParseUrl(text);
  if (!url || url->is_https) {
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) +
                    " must be http://[user:password@]host:port; other kinds of "
                    "proxy are not supported");
  }
  return text;
}

}  // namespace

HubOptions HubOptionsFromEnvironment(const Environment& environment) {
  HubOptions options;
  const fs::path home = HuggingFaceHome(environment);
  const std::string cache = Get(environment, {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"});
  if (!cache.empty()) {
    options.cache_dir = ExpandHome(cache, environment);
  } else if (!home.empty()) {
    options.cache_dir = home / "hub";
  } else {
    throw Error(ErrorCode::kInvalidArgument,
                "no folder for downloaded models: set HF_HUB_CACHE, HF_HOME or HOME");
  }
  const std::string endpoint = Get(environment, {"HF_ENDPOINT"});
  options.endpoint = CheckedEndpointText(endpoint.empty() ? options.endpoint : endpoint);
  options.token = ReadToken(environment, home);
  options.offline = IsTrue(Get(environment, {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
  options.https_proxy = CheckedProxy(
      Get(environment, {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}), "HTTPS_PROXY");
  options.http_proxy = CheckedProxy(
      Get(environment, {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}), "HTTP_PROXY");
  options.no_proxy = Get(environment, {"no_proxy", "NO_PROXY"});
  if (const std::string text = Get(environment, {"HF_HUB_DOWNLOAD_TIMEOUT"}); !text.empty()) {
    int seconds = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (fault != std::errc() || end != text.data() + text.size() || seconds < 1 || seconds > 3600) {
      throw Error(ErrorCode::kInvalidArgument,
                  "HF_HUB_DOWNLOAD_TIMEOUT must be an integer number of seconds in [1, 3600]");
    }
    options.idle_timeout = std::chrono::seconds(seconds);
  }
  return options;
}

HubOptions HubOptionsFromEnvironment() {
  return HubOptionsFromEnvironment([](const char* name) { return std::getenv(name); });
}

}  // namespace tandem::engine
