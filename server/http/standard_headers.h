#pragma once

#include <string>

#include "server/http/options.h"
#include "server/http/request.h"

namespace tandem::server {

// Returns a new random `req_…` id.
std::string NewRequestId();

// Whether a page of another origin sent the request and HttpOptions::cors_origin does not permit
// it. CORS prevents such a page from reading the answer, not from sending the request.
bool IsFromForeignPage(const HttpOptions& options, const Request& request);

// Adds the headers of every answer: x-request-id, server, CORS, retry-after on 429 and 503,
// x-should-retry on 409, openai-processing-ms on /v1. Existing headers stay.
void AddStandardHeaders(const HttpOptions& options, const Request& request, Response& response);

// The answer to OPTIONS on a known route, including a CORS preflight.
Response PreflightAnswer(const std::string& allow);

// Status line and headers in wire format. `body_bytes` < 0 means chunked. `add_length` is false for
// HTTP/1.0 streams, which end with the connection.
std::string SerializeHead(const Response& response, long long body_bytes, bool add_length,
                          bool keep_alive);

}  // namespace tandem::server
