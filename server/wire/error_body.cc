#include "server/wire/error_body.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/disk_full.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxMessageBytes = 2000;
constexpr size_t kMaxParamBytes = 200;
constexpr size_t kMaxBodyBytes = 4096;

struct Mapping {
  int status;
  std::string_view default_code;
};

Mapping MappingOf(const Error& error) {
  switch (error.code()) {
    case ErrorCode::kInvalidArgument:
      if (error.reason() == "unsupported_media_type") return {415, {}};
      if (error.reason() == "request_too_large") return {413, {}};
      if (error.reason() == "range_not_satisfiable") return {416, {}};
      return {400, "invalid_value"};
    case ErrorCode::kUnsupported:
      return {400, "unsupported_parameter"};
    case ErrorCode::kFailedPrecondition:
      return {400, "invalid_value"};
    case ErrorCode::kUnauthenticated:
      return {401, "invalid_api_key"};
    case ErrorCode::kPermissionDenied:
      return {403, "insufficient_permissions"};
    case ErrorCode::kNotFound:
      return {404, "path_not_found"};
    case ErrorCode::kAlreadyExists:
      return {409, "already_exists"};
    case ErrorCode::kResourceExhausted:
      return {429, "rate_limit_exceeded"};
    case ErrorCode::kUnavailable:
      if (error.reason() == kDiskFullReason) return {507, {}};
      return {503, "server_overloaded"};
    case ErrorCode::kDeadlineExceeded:
    case ErrorCode::kCancelled:
      return {503, "server_overloaded"};
    case ErrorCode::kIo:
      if (error.reason() == kDiskFullReason) return {507, {}};
      break;
    case ErrorCode::kDataLoss:
    case ErrorCode::kInternal:
      break;
  }
  return {500, "internal_error"};
}

std::string_view TypeOf(int status) {
  switch (status) {
    case 403:
      return "permission_error";
    case 409:
      return "conflict_error";
    case 429:
      return "rate_limit_error";
    default:
      return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// Anthropic's names. 402 and others that this server never sends are left out.
std::string_view AnthropicTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 529:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

std::string Dump(const nlohmann::ordered_json& body) {
  // Cutting can split a character, and a path can hold any bytes: the dump replaces invalid UTF-8.
  return body.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

nlohmann::ordered_json StringOrNull(std::string_view text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

std::string GenericMessage(std::string_view request_id) {
  return "internal error; the request id is " + std::string(request_id);
}

}  // namespace

ErrorReply MakeErrorReply(int status, std::string_view code, std::string_view message,
                          std::string_view param) {
  ErrorReply reply;
  reply.status = status;
  reply.code = code;
  size_t n_message = std::min(message.size(), kMaxMessageBytes);
  do {
    nlohmann::ordered_json error;
    reply.message = message.substr(0, n_message);
    error["message"] = reply.message;
    error["type"] = TypeOf(status);
    error["param"] = StringOrNull(param.substr(0, kMaxParamBytes));
    error["code"] = StringOrNull(code);
    nlohmann::ordered_json body;
    body["error"] = std::move(error);
    reply.body = Dump(body);
    n_message /= 2;
    // Escaping can turn one byte into six.
  } while (reply.body.size() > kMaxBodyBytes && n_message > 0);
  if (status == 401) reply.headers.emplace_back("www-authenticate", "Bearer");
  return reply;
}

ErrorReply MakeErrorReply(const Error& error, std::string_view request_id) {
  const Mapping mapping = MappingOf(error);
  if (mapping.status == 500) {
    return MakeErrorReply(500, mapping.default_code, GenericMessage(request_id));
  }
  // The message of a kIo names a path of the server.
  if (error.code() == ErrorCode::kIo) {
    return MakeErrorReply(mapping.status, error.reason(),
                          "the disk of the server is full; its log names the file");
  }
  const std::string_view code = error.reason().empty() ? mapping.default_code : error.reason();
  return MakeErrorReply(mapping.status, code, error.what(), error.param());
}

ErrorReply InAnthropicShape(ErrorReply reply, std::string_view request_id) {
  const bool is_overload = reply.code == "server_overloaded" || reply.code == "out_of_memory";
  if (reply.status == 503 && is_overload) reply.status = 529;
  nlohmann::ordered_json error;
  error["type"] = AnthropicTypeOf(reply.status);
  error["message"] = reply.message;
  if (reply.code == kThreadUnsupported) {
    error["details"]["error_code"] = kThreadUnsupported;
    error["details"]["unsupported"].push_back("thread");
  }
  nlohmann::ordered_json body;
  body["type"] = "error";
  body["error"] = std::move(error);
  body["request_id"] = request_id;
  reply.body = Dump(body);
  return reply;
}

ErrorReply InOllamaShape(ErrorReply reply) {
  nlohmann::ordered_json body;
  body["error"] = reply.message;
  reply.body = Dump(body);
  return reply;
}

}  // namespace tandem::server
