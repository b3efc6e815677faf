#include "server/http/standard_headers.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <mutex>
#include <random>
#include <string_view>

#include "engine/base/ascii.h"

namespace tandem::server {
namespace {

const std::string* FindHeader(const Response& response, std::string_view name) {
  for (const auto& [key, value] : response.headers) {
    if (key == name) return &value;
  }
  return nullptr;
}

void AddMissing(Response& response, std::string_view name, std::string value) {
  if (FindHeader(response, name) == nullptr) {
    response.headers.emplace_back(name, std::move(value));
  }
}

// The Date header (RFC 9110).
std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 40> text{};
  const size_t n = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return std::string(text.data(), n);
}

// Schemes under which installed programs show their own pages: Obsidian and other Electron
// programs, Tauri, VS Code. No web page can have such an origin, and Ollama permits them too.
constexpr std::array<std::string_view, 4> kProgramSchemes = {"app", "tauri", "vscode-file",
                                                             "vscode-webview"};

// Pages of programs and pages served from this machine may use an open server; others may not.
bool IsLocalOrigin(std::string_view origin) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  if (std::ranges::find(kProgramSchemes, origin.substr(0, scheme)) != kProgramSchemes.end()) {
    return true;
  }
  std::string_view host = origin.substr(scheme + 3);
  if (host.starts_with('[')) {
    const size_t end = host.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view after = host.substr(end + 1);
    return host.substr(0, end + 1) == "[::1]" && (after.empty() || after.starts_with(':'));
  }
  host = host.substr(0, host.find(':'));
  return host == "localhost" || host == "127.0.0.1";
}

// Browsers send an Origin with a POST to the page's own server too. The scheme is not compared:
// behind a TLS proxy the page has https and this server sees http.
bool IsSameHost(std::string_view origin, const Request& request) {
  const std::string* host = request.FindHeader("host");
  const size_t scheme = origin.find("://");
  if (host == nullptr || host->empty() || scheme == std::string_view::npos) return false;
  return LowerCase(origin.substr(scheme + 3)) == LowerCase(*host);
}

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 206:
      return "Partial Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 416:
      return "Range Not Satisfiable";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    case 507:
      return "Insufficient Storage";
    case 529:
      return "Overloaded";
    default:
      return "Status";
  }
}

// Replaces control characters, so that a client's value cannot start another header.
void AppendHeader(std::string& out, std::string_view name, std::string_view value) {
  out.append(name);
  out.append(": ");
  for (const char c : value) {
    out.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c);
  }
  out.append("\r\n");
}

}  // namespace

std::string NewRequestId() {
  static constexpr std::string_view kAlphabet =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static std::mutex mutex;  // guards generator
  static std::mt19937_64 generator = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string id = "req_";
  const std::lock_guard lock(mutex);
  for (int i = 0; i < 24; ++i) id.push_back(kAlphabet[generator() % kAlphabet.size()]);
  return id;
}

bool IsFromForeignPage(const HttpOptions& options, const Request& request) {
  const std::string* origin = request.FindHeader("origin");
  if (origin == nullptr || IsSameHost(*origin, request)) return false;
  if (!options.cors_origin.empty()) {
    return options.cors_origin != "*" && *origin != options.cors_origin;
  }
  return !options.requires_key && !IsLocalOrigin(*origin);
}

void AddStandardHeaders(const HttpOptions& options, const Request& request, Response& response) {
  AddMissing(response, "x-request-id", request.id);
  AddMissing(response, "server", "tandem");
  AddMissing(response, "date", HttpDate());
  if (request.path.starts_with("/v1/")) {
    const auto elapsed = std::chrono::steady_clock::now() - request.received;
    AddMissing(
        response, "openai-processing-ms",
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(elapsed).count()));
  }
  if (response.status == 429 || response.status == 503 || response.status == 529) {
    AddMissing(response, "retry-after", "1");
    AddMissing(response, "retry-after-ms", *FindHeader(response, "retry-after") + "000");
  }
  if (response.status == 409) AddMissing(response, "x-should-retry", "false");

  std::string origin;
  if (!options.cors_origin.empty()) {
    origin = options.cors_origin;
  } else if (options.requires_key) {
    origin = "*";
  } else {
    const std::string* asked = request.FindHeader("origin");
    if (asked != nullptr && IsLocalOrigin(*asked)) origin = *asked;
    AddMissing(response, "vary", "Origin");
  }
  if (!origin.empty()) {
    AddMissing(response, "access-control-allow-origin", origin);
    AddMissing(response, "access-control-expose-headers",
               "x-request-id, openai-processing-ms, retry-after, x-ignored-params, x-prefix-key");
  }
}

Response PreflightAnswer(const std::string& allow) {
  Response response;
  response.status = 204;
  response.headers = {
      {"allow", allow},
      {"access-control-allow-methods", "GET, POST, PUT, DELETE, OPTIONS"},
      // Wildcards within a header name are not allowed, so the SDK's headers are listed one by one.
      {"access-control-allow-headers",
       "authorization, content-type, user-agent, x-request-id, x-requested-with, openai-beta, "
       "openai-organization, openai-project, "
       "x-stainless-arch, x-stainless-async, x-stainless-custom-poll-interval, "
       "x-stainless-helper-method, x-stainless-lang, x-stainless-os, x-stainless-package-version, "
       "x-stainless-poll-helper, x-stainless-read-timeout, x-stainless-retry-count, "
       "x-stainless-runtime, x-stainless-runtime-version, x-stainless-timeout, x-api-key, "
       "anthropic-version, anthropic-beta, anthropic-dangerous-direct-browser-access"},
      {"access-control-max-age", "600"},
  };
  return response;
}

std::string SerializeHead(const Response& response, long long body_bytes, bool add_length,
                          bool keep_alive) {
  std::string out = "HTTP/1.1 " + std::to_string(response.status) + " ";
  out.append(ReasonPhrase(response.status));
  out.append("\r\n");
  if (response.status != 204 && response.status != 304) {
    AppendHeader(out, "content-type", response.content_type);
    if (body_bytes >= 0) {
      AppendHeader(out, "content-length", std::to_string(body_bytes));
    } else if (add_length) {
      AppendHeader(out, "transfer-encoding", "chunked");
    }
  }
  for (const auto& [name, value] : response.headers) AppendHeader(out, name, value);
  if (!keep_alive) AppendHeader(out, "connection", "close");
  out.append("\r\n");
  return out;
}

}  // namespace tandem::server
