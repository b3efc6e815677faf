#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::server {

// The boundary that a content type announces. `is_form_data` false: it is another type's.
// `boundary` absent: missing, malformed or longer than RFC 2046 allows (70 bytes).
struct FormType {
  bool is_form_data = false;
  std::optional<std::string> boundary;
};
FormType ParseFormType(std::string_view content_type);

// What stands before the bytes of one part of a form.
struct PartHead {
  std::string name;
  std::optional<std::string> filename;  // as the client wrote it: never a path to be used
};

// Takes a multipart/form-data body (RFC 7578) apart while it arrives, however it is cut. Holds at
// most the head of one part and what may be the beginning of a boundary; the bytes of parts are
// handed on as views of what came in. Knows no sockets and no files.
class MultipartParser {
 public:
  struct Events {
    std::function<void(PartHead head)> on_part;
    std::function<void(std::string_view bytes)> on_data;  // of the last part begun
    std::function<void()> on_part_end;
  };
  static constexpr size_t kMaxParts = 64;
  static constexpr size_t kMaxHeadBytes = 8 << 10;

  // REQUIRES: a boundary of ParseFormType.
  MultipartParser(std::string_view boundary, Events events);

  void Feed(std::string_view bytes);
  // The body ends here.
  void Finish();
  // What is wrong with the body, as a sentence for its sender; after a fault nothing more is read.
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
  // The beginning of the delimiter that the last bytes are, and how much of it came in earlier
  // calls of Feed and has not been handed on. The body begins as if behind a line's end.
  size_t matched_ = 2;
  size_t held_ = 2;
  std::string tail_;  // behind a delimiter, until it is clear that it was one
  std::string head_;
  size_t n_parts_ = 0;
  bool is_in_part_ = false;
  std::optional<std::string> fault_;
};

}  // namespace tandem::server
