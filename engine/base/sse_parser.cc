#include "engine/base/sse_parser.h"

#include "engine/base/error.h"

namespace tandem {

void SseParser::Feed(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (skip_lf_) {
      skip_lf_ = false;
      if (bytes.front() == '\n') {
        bytes.remove_prefix(1);
        continue;
      }
    }
    // Two memchr calls are several times as fast as find_first_of.
    size_t end = bytes.find('\n');
    const size_t cr = bytes.substr(0, end).find('\r');
    if (cr != std::string_view::npos) end = cr;
    if (end == std::string_view::npos) {
      CheckSize(partial_.size() + bytes.size());
      partial_.append(bytes);
      return;
    }
    skip_lf_ = bytes[end] == '\r';
    if (partial_.empty()) {
      Line(bytes.substr(0, end), sink);
    } else {
      partial_.append(bytes.substr(0, end));
      Line(partial_, sink);
      partial_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
}

void SseParser::CheckSize(size_t n_bytes) const {
  if (n_bytes <= max_bytes_) return;
  throw Error(ErrorCode::kDataLoss, "the event stream has an event of more than " +
                                        std::to_string(max_bytes_) + " bytes");
}

void SseParser::Line(std::string_view line, const Sink& sink) {
  if (is_first_line_) {
    is_first_line_ = false;
    if (line.starts_with("\xef\xbb\xbf")) line.remove_prefix(3);
  }
  if (line.empty()) {
    if (has_data_) {
      data_.pop_back();  // the LF after the last line
      sink({type_.empty() ? std::string_view("message") : std::string_view(type_), data_});
    }
    data_.clear();
    type_.clear();
    has_data_ = false;
    return;
  }
  const size_t colon = line.find(':');
  if (colon == 0) return;  // a comment
  const std::string_view field = line.substr(0, colon);
  std::string_view value;
  if (colon != std::string_view::npos) value = line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (field == "data") {
    CheckSize(data_.size() + value.size());
    data_.append(value);
    data_.push_back('\n');
    has_data_ = true;
  } else if (field == "event") {
    type_ = value;
  }  // id and retry are unused
}

}  // namespace tandem
