#include "server/http/sse.h"

namespace tandem::server {
namespace {

// Appends `text` as one line: line breaks become spaces.
void AppendLine(std::string& out, std::string_view text) {
  const size_t begin = out.size();
  out.append(text);
  for (const char line_break : {'\n', '\r'}) {
    for (size_t at = out.find(line_break, begin); at != std::string::npos;
         at = out.find(line_break, at + 1)) {
      out[at] = ' ';
    }
  }
  out.push_back('\n');
}

void AppendData(std::string& out, std::string_view data) {
  for (;;) {
    const size_t end = data.find('\n');
    out.append("data: ");
    AppendLine(out, data.substr(0, end));
    if (end == std::string_view::npos) break;
    data.remove_prefix(end + 1);
  }
  out.push_back('\n');
}

}  // namespace

std::string SseData(std::string_view data) {
  std::string out;
  out.reserve(data.size() + 8);
  AppendData(out, data);
  return out;
}

std::string SseNamed(std::string_view event, std::string_view data) {
  std::string out = "event: ";
  AppendLine(out, event);
  AppendData(out, data);
  return out;
}

std::string SseComment(std::string_view text) {
  std::string out = ": ";
  AppendLine(out, text);
  out.push_back('\n');
  return out;
}

}  // namespace tandem::server
