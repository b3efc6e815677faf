#include "server/http/syntax/multipart_parser.h"

#include <algorithm>
#include <utility>

#include "engine/base/ascii.h"
#include "server/http/syntax/header_params.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxBoundaryBytes = 70;
// White space that a gateway may append to a boundary line.
constexpr size_t kMaxTailBytes = 256;

bool IsBoundary(std::string_view text) {
  return !text.empty() && text.size() <= kMaxBoundaryBytes && text.back() != ' ' &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The header fields of a part that this parser uses.
struct HeadLines {
  std::optional<std::string> disposition;
  std::optional<std::string> encoding;
};

// Returns nullopt if a line is not a header field, or if one of the two fields is repeated.
std::optional<HeadLines> SplitHead(std::string_view head) {
  HeadLines lines;
  while (!head.empty()) {
    const size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end + 2);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return std::nullopt;
    // A lone CR or LF is ambiguous. Other control characters are removed from names later.
    if (line.find_first_of("\r\n") != std::string_view::npos) return std::nullopt;
    const std::string name = LowerCase(line.substr(0, colon));
    std::optional<std::string>* wanted = name == "content-disposition"         ? &lines.disposition
                                         : name == "content-transfer-encoding" ? &lines.encoding
                                                                               : nullptr;
    if (wanted == nullptr) continue;
    if (*wanted) return std::nullopt;
    *wanted = std::string(Trimmed(line.substr(colon + 1)));
  }
  return lines;
}

}  // namespace

FormType ParseFormType(std::string_view content_type) {
  FormType type;
  const std::string_view value = Trimmed(content_type.substr(0, content_type.find(';')));
  type.is_form_data = LowerCase(value) == "multipart/form-data";
  const std::optional<HeaderParams> parsed = ParseHeaderParams(content_type);
  const std::string* boundary = parsed ? parsed->Find("boundary") : nullptr;
  if (boundary != nullptr && IsBoundary(*boundary)) type.boundary = *boundary;
  return type;
}

MultipartParser::MultipartParser(std::string_view boundary, Events events)
    : delimiter_("\r\n--" + std::string(boundary)), events_(std::move(events)) {}

void MultipartParser::Emit(std::string_view bytes) {
  if (is_in_part_ && !bytes.empty()) events_.on_data(bytes);
}

void MultipartParser::EndPart() {
  if (is_in_part_) events_.on_part_end();
  is_in_part_ = false;
}

void MultipartParser::Feed(std::string_view bytes) {
  size_t at = 0;
  while (at < bytes.size() && !fault_ && state_ != State::kEpilogue) {
    switch (state_) {
      case State::kPreamble:
      case State::kData:
        at = Scan(bytes, at);
        break;
      case State::kAfterDelimiter:
        if (AfterDelimiter(bytes[at])) ++at;
        break;
      case State::kHead:
        TakeHead(bytes[at++]);
        break;
      case State::kEpilogue:
        break;
    }
  }
}

// Emits data and stops after a delimiter. CR occurs only at the start of the delimiter. So a failed
// prefix is entirely data, and the next prefix can start only at the mismatch.
size_t MultipartParser::Scan(std::string_view bytes, size_t at) {
  const size_t begin = at;
  while (at < bytes.size()) {
    if (matched_ == 0) {
      at = std::min(bytes.find('\r', at), bytes.size());
      if (at == bytes.size()) break;
    }
    if (bytes[at] == delimiter_[matched_]) {
      ++at;
      if (++matched_ < delimiter_.size()) continue;
      Emit(bytes.substr(begin, at - (matched_ - held_) - begin));
      matched_ = held_ = 0;
      tail_.clear();
      state_ = State::kAfterDelimiter;
      return at;
    }
    Emit(std::string_view(delimiter_).substr(0, held_));
    matched_ = held_ = 0;
  }
  Emit(bytes.substr(begin, at - (matched_ - held_) - begin));
  held_ = matched_;
  return at;
}

// White space and a line end start a part. Two hyphens, then white space and a line end or the end
// of the body, end the form. Otherwise the boundary was the start of a longer line of data.
bool MultipartParser::MayFollowDelimiter(char c) const {
  if (tail_.size() == kMaxTailBytes) return false;
  if (!tail_.empty() && tail_.back() == '\r') return c == '\n';
  if (tail_ == "-") return c == '-';
  return c == ' ' || c == '\t' || c == '\r' || (tail_.empty() && c == '-');
}

// Returns false if the caller must process the byte again.
bool MultipartParser::AfterDelimiter(char c) {
  if (!MayFollowDelimiter(c)) {
    Emit(delimiter_);
    Emit(tail_);
    state_ = is_in_part_ ? State::kData : State::kPreamble;
    return false;
  }
  tail_.push_back(c);
  if (c == '\n') OnDelimiter();
  return true;
}

void MultipartParser::OnDelimiter() {
  EndPart();
  if (tail_.starts_with("--")) {
    state_ = State::kEpilogue;
    return;
  }
  if (++n_parts_ > kMaxParts) {
    fault_ = "the form has more than " + std::to_string(kMaxParts) + " parts";
    return;
  }
  head_.clear();
  state_ = State::kHead;
}

void MultipartParser::TakeHead(char c) {
  head_.push_back(c);
  if (head_ == "\r\n" || head_.ends_with("\r\n\r\n")) return OnHead();
  if (head_.size() >= kMaxHeadBytes) {
    fault_ = "the head of a part is longer than " + std::to_string(kMaxHeadBytes) + " bytes";
  }
}

void MultipartParser::OnHead() {
  head_.resize(head_.size() - 2);  // without the empty line
  const std::optional<HeadLines> lines = SplitHead(head_);
  std::optional<HeaderParams> disposition;
  if (lines && lines->disposition) disposition = ParseHeaderParams(*lines->disposition);
  const std::string* name = disposition ? disposition->Find("name") : nullptr;
  if (name == nullptr || disposition->value != "form-data") {
    fault_ = "part " + std::to_string(n_parts_) +
             " of the form needs 'content-disposition: form-data' with a name";
    return;
  }
  const std::string encoding = LowerCase(lines->encoding.value_or("binary"));
  if (encoding != "binary" && encoding != "8bit" && encoding != "7bit") {
    fault_ = "part " + std::to_string(n_parts_) +
             " of the form has a Content-Transfer-Encoding; send its bytes unencoded";
    return;
  }
  state_ = State::kData;
  is_in_part_ = true;
  events_.on_part({*name, disposition->FindExtended("filename")});
}

void MultipartParser::Finish() {
  if (fault_ || state_ == State::kEpilogue) return;
  if (state_ == State::kAfterDelimiter && tail_.starts_with("--")) {
    EndPart();
    state_ = State::kEpilogue;
    return;
  }
  fault_ = "the form ends without its closing boundary";
}

}  // namespace tandem::server
