#pragma once

#include <utility>

#include "server/http/request.h"
#include "server/wire/error_body.h"

namespace tandem::server {

// An error as a complete answer.
inline Response ToResponse(ErrorReply reply) {
  Response response;
  response.status = reply.status;
  response.body = std::move(reply.body);
  response.headers = std::move(reply.headers);
  response.error_code = std::move(reply.code);
  return response;
}

}  // namespace tandem::server
