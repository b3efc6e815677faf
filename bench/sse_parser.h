#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace tandem::bench {

// The events of a `text/event-stream` body, in pieces of any size, as the HTML standard reads them:
// lines end with LF, CR or CRLF, comments are skipped, the `data` lines of an event are joined with
// LF, an event without data is none.
class SseParser {
 public:
  struct Event {
    std::string_view type;  // "message" unless the stream names another; valid during the call
    std::string_view data;
  };
  using Sink = std::function<void(const Event&)>;

  void Feed(std::string_view bytes, const Sink& sink);

 private:
  void Line(std::string_view line, const Sink& sink);

  std::string partial_;  // a line that has not ended
  std::string data_;
  std::string type_;
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended with CR: a LF now belongs to it
  bool is_first_line_ = true;
};

}  // namespace tandem::bench
