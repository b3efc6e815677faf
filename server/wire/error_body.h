#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::server {

// An error as a client receives it. Only this file maps an ErrorCode to status, type and code. The
// body is OpenAI's, apart from InAnthropicShape and InOllamaShape. It always has all four keys;
// `param` and `code` are strings or null.
struct ErrorReply {
  int status = 500;
  std::string code;     // as in the body; empty: null
  std::string message;  // shortened, as in the body
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// For faults found before any handler runs. The status decides the type; an empty code becomes
// null.
ErrorReply MakeErrorReply(int status, std::string_view code, std::string_view message,
                          std::string_view param = {});
// Server faults (kInternal, kDataLoss, kIo) get a generic message with the request's id.
ErrorReply MakeErrorReply(const Error& error, std::string_view request_id);

// The reason of an error that Anthropic's library recovers from: `thread` was sent.
inline constexpr const char* kThreadUnsupported = "thread_unsupported_request";

// The same error with the status and body of Anthropic's API:
// {"type":"error","error":{"type","message"},"request_id"}. A full queue or memory gets 529.
// kThreadUnsupported has `details` too.
ErrorReply InAnthropicShape(ErrorReply reply, std::string_view request_id);

// The same error with the body of Ollama's API: {"error": message}.
ErrorReply InOllamaShape(ErrorReply reply);

}  // namespace tandem::server
