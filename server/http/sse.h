#pragma once

#include <string>
#include <string_view>

namespace tandem::server {

// Frames of a server-sent event stream. Line feeds in `data` would end the frame early, so they
// start another `data:` line, as the standard says; a comment or event name loses them.
std::string SseData(std::string_view data);
std::string SseNamed(std::string_view event, std::string_view data);
std::string SseComment(std::string_view text);

}  // namespace tandem::server
