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

std::string JsonLine(std::string_view json) {
  // U+0085, U+2028 and U+2029 occur within strings only. Control characters are escaped there.
  static constexpr std::string_view kBreaks[][2] = {
      {"\xc2\x85", "\\u0085"}, {"\xe2\x80\xa8", "\\u2028"}, {"\xe2\x80\xa9", "\\u2029"}};
  std::string line;
  line.reserve(json.size() + 1);
  while (!json.empty()) {
    std::string_view text = json.substr(0, 1);
    std::string_view written = text == "\n" || text == "\r" ? std::string_view(" ") : text;
    for (const auto& [character, escape] : kBreaks) {
      if (!json.starts_with(character)) continue;
      text = character;
      written = escape;
    }
    line += written;
    json.remove_prefix(text.size());
  }
  line.push_back('\n');
  return line;
}

}  // namespace tandem::server
