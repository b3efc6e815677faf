#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem::server {

// An error as it goes to a client (CONTRACT §4): the only place that knows which status, type and
// code an ErrorCode means. The body always has all four keys; `param` and `code` are strings or
// null.
struct ErrorReply {
  int status = 500;
  std::string code;  // the body's; empty for null
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
};

// For faults found before any handler runs. Type follows from the status; empty code: null.
ErrorReply MakeErrorReply(int status, std::string_view code, std::string_view message,
                          std::string_view param = {});
// Faults that are ours (kInternal, kDataLoss, kIo) get a generic message naming the request.
ErrorReply MakeErrorReply(const Error& error, std::string_view request_id);
// Whatever was thrown: Error as above, everything else as an internal error. The caller logs it.
ErrorReply MakeErrorReply(std::exception_ptr exception, std::string_view request_id);

// For the log: what was thrown, in full.
std::string DescribeException(std::exception_ptr exception);

}  // namespace tandem::server
