#pragma once

#include <string>
#include <string_view>

#include "server/batches/batch.h"
#include "server/http/request.h"

namespace tandem::server {

// The result files of a batch, line by line. The lines have no line end.

// Whether the server was busy or a limit of the key was reached, so that the line runs again later.
bool IsTemporaryRefusal(const Response& response);

// The answer of a line. REQUIRES: the body is JSON.
std::string AnswerLine(std::string_view custom_id, std::string_view request_id,
                       const Response& response);
// A line that has no answer.
std::string ErrorLine(std::string_view custom_id, std::string_view code, std::string_view message);

// The tokens in the `usage` of an answer; none for an answer without.
BatchUsage UsageOf(std::string_view body);

}  // namespace tandem::server
