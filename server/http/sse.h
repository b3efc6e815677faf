#pragma once

#include <string>
#include <string_view>

namespace tandem::server {

// Frames of a server-sent event stream. A line feed in `data` starts another `data:` line, because
// it would otherwise end the field. In comments and event names a line break becomes a space.
std::string SseData(std::string_view data);
std::string SseNamed(std::string_view event, std::string_view data);
std::string SseComment(std::string_view text);

// A JSON value as a line of NDJSON. Every character that Python's splitlines takes for the end of a
// line is escaped within strings, and a space between members.
std::string JsonLine(std::string_view json);

}  // namespace tandem::server
