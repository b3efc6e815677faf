#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace tandem {

// Kinds of errors, by the possible reaction of a caller. server/wire/error_body.cc maps them to
// HTTP.
enum class ErrorCode {
  kInvalidArgument,
  kUnauthenticated,
  kPermissionDenied,
  kNotFound,
  kAlreadyExists,
  kFailedPrecondition,
  kUnsupported,
  kResourceExhausted,  // a limit of a client (429), or of the memory that a run may use
  kCancelled,
  kDeadlineExceeded,
  kUnavailable,
  kDataLoss,  // a file is truncated, corrupt or lies about itself
  kIo,        // the disk or the file system refused
  kInternal,  // our bug
};

// The one exception type of this project. Messages name the thing, the limit and the value, start
// in lower case, and never contain prompts or keys.
class Error : public std::runtime_error {
 public:
  // A NUL in the message is written as \u0000: what() ends at the first one.
  Error(ErrorCode code, const std::string& message)
      : std::runtime_error(WithoutNuls(message)), code_(code) {}

  // The request field at fault, as OpenAI's `error.param` ("messages[3].content").
  Error&& WithParam(std::string param) && {
    param_ = std::move(param);
    return std::move(*this);
  }
  // A machine-readable reason, as OpenAI's `error.code`; empty means the default of the ErrorCode.
  Error&& WithReason(std::string reason) && {
    reason_ = std::move(reason);
    return std::move(*this);
  }

  ErrorCode code() const { return code_; }
  const std::string& param() const { return param_; }
  const std::string& reason() const { return reason_; }

 private:
  static std::string WithoutNuls(const std::string& message) {
    if (message.find('\0') == std::string::npos) return message;
    std::string out;
    for (const char c : message) {
      if (c == '\0') {
        out += "\\u0000";
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  ErrorCode code_;
  std::string param_;
  std::string reason_;
};

}  // namespace tandem
