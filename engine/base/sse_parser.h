#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace tandem {

// Parses a `text/event-stream` body from pieces of any size, per the HTML standard. Lines end with
// LF, CR or CRLF, comments are skipped, and an event's `data` lines are joined with LF. An event
// without data is dropped. One thread.
class SseParser {
 public:
  // Feed throws kDataLoss for a line, or an event's data, of more than `max_bytes`.
  explicit SseParser(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  struct Event {
    std::string_view type;  // default "message"; valid during the call
    std::string_view data;
  };
  using Sink = std::function<void(const Event&)>;

  void Feed(std::string_view bytes, const Sink& sink);

 private:
  void Line(std::string_view line, const Sink& sink);
  void CheckSize(size_t n_bytes) const;

  size_t max_bytes_;
  std::string partial_;  // an incomplete line
  std::string data_;
  std::string type_;
  bool has_data_ = false;
  bool skip_lf_ = false;  // the last line ended with CR, so a following LF belongs to it
  bool is_first_line_ = true;
};

}  // namespace tandem
