#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::server {

// The boundary in a content type. `is_form_data` is false for any other type. `boundary` is absent
// if missing, malformed or longer than the 70 bytes of RFC 2046.
struct FormType {
  bool is_form_data = false;
  std::optional<std::string> boundary;
};
FormType ParseFormType(std::string_view content_type);

// The header fields of one part of a form.
struct PartHead {
  std::string name;
  std::optional<std::string> filename;  // as sent by the client: never use it as a path
};

// Parses a multipart/form-data body (RFC 7578) incrementally, in pieces of any size. It holds at
// most one part's head and a possible prefix of a boundary. Bytes of parts are passed on as views
// of the input. Knows no sockets and no files.
class MultipartParser {
 public:
  struct Events {
    std::function<void(PartHead head)> on_part;
    std::function<void(std::string_view bytes)> on_data;  // bytes of the current part
    std::function<void()> on_part_end;
  };
  // A form beyond these bounds is a fault.
  static constexpr size_t kMaxParts = 64;
  static constexpr size_t kMaxHeadBytes = 8 << 10;

  // REQUIRES: `boundary` comes from ParseFormType.
  MultipartParser(std::string_view boundary, Events events);

  void Feed(std::string_view bytes);
  // Marks the end of the body. A form without its closing boundary is a fault.
  void Finish();
  // The fault of the body, as a sentence for its sender. After a fault the parser ignores input.
  const std::optional<std::string>& fault() const { return fault_; }

 private:
  enum class State { kPreamble, kData, kAfterDelimiter, kHead, kEpilogue };

  size_t Scan(std::string_view bytes, size_t at);
  bool AfterDelimiter(char c);
  bool MayFollowDelimiter(char c) const;
  void OnDelimiter();
  void TakeHead(char c);
  void OnHead();
  void Emit(std::string_view bytes);
  void EndPart();

  const std::string delimiter_;  // CR LF, two hyphens, the boundary
  const Events events_;
  State state_ = State::kPreamble;
  // matched_: length of the delimiter prefix that the last bytes form. held_: the part of it that
  // came in earlier Feed calls and was not emitted. Both start as if after a CRLF.
  size_t matched_ = 2;
  size_t held_ = 2;
  std::string tail_;  // bytes after a delimiter, until they confirm or refute it
  std::string head_;
  size_t n_parts_ = 0;
  bool is_in_part_ = false;
  std::optional<std::string> fault_;
};

}  // namespace tandem::server
