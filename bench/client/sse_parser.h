#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tandem::bench {

// Parses a `text/event-stream` body from pieces of any size, per the HTML standard. Lines end with
// LF, CR or CRLF, comments are skipped, and an event's `data` lines are joined with LF. An event
// without data is dropped.
class SseParser {
 public:
  struct Event {
    std::string_view type;  // default "message"; valid during the call
    std::string_view data;
  };
  using Sink = std::function<void(const Event&)>;

  void Feed(std::string_view bytes, const Sink& sink);

 private:
  void Line(std::string_view line, const Sink& sink);

  std::string partial_;  // an incomplete line
  std::string data_;
  std::string type_;
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended with CR, so a following LF belongs to it
  bool is_first_line_ = true;
};

}  // namespace tandem::bench
