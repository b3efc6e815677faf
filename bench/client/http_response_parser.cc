#include "bench/client/http_response_parser.h"

#include <algorithm>
#include <charconv>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

constexpr size_t kMaxHeadBytes = 64 << 10;
constexpr size_t kMaxLineBytes = 8 << 10;

[[noreturn]] void Malformed(const std::string& what) {
  throw Error(ErrorCode::kDataLoss, "malformed HTTP response: " + what);
}

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return Lower(x) == Lower(y); });
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

// Whether a comma-separated list contains `token`.
bool Lists(std::string_view list, std::string_view token) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    if (EqualsIgnoringCase(Trimmed(list.substr(0, comma)), token)) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

uint64_t ParseNumber(std::string_view text, int base, const char* what) {
  uint64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || fault != std::errc() || end != text.data() + text.size()) {
    Malformed(std::string(what) + " '" + std::string(text.substr(0, 40)) + "'");
  }
  return value;
}

}  // namespace

bool HttpResponseParser::TakeLine(std::string_view& bytes, size_t limit) {
  const size_t end = bytes.find('\n');
  const bool is_whole = end != std::string_view::npos;
  const size_t take = is_whole ? end + 1 : bytes.size();
  if (line_.size() + take > limit)
    Malformed("a line or header longer than " + std::to_string(limit));
  line_.append(bytes.substr(0, take));
  bytes.remove_prefix(take);
  return is_whole;
}

void HttpResponseParser::ParseHeader(std::string_view name, std::string_view value) {
  if (EqualsIgnoringCase(name, "content-length")) {
    left_ = ParseNumber(value, 10, "Content-Length");
    has_length_ = true;
  } else if (EqualsIgnoringCase(name, "transfer-encoding")) {
    is_chunked_ = Lists(value, "chunked");
  } else if (EqualsIgnoringCase(name, "connection")) {
    if (Lists(value, "close")) keep_alive_ = false;
    if (Lists(value, "keep-alive")) keep_alive_ = true;
  } else if (EqualsIgnoringCase(name, "content-type")) {
    is_event_stream_ =
        EqualsIgnoringCase(Trimmed(value.substr(0, value.find(';'))), "text/event-stream");
  }
}

// `line_` holds the head with its closing empty line.
void HttpResponseParser::ParseHead() {
  std::string_view head = line_;
  const std::string_view status_line = Trimmed(head.substr(0, head.find('\n')));
  if (!status_line.starts_with("HTTP/1.") || status_line.size() < 12 || status_line[8] != ' ' ||
      (status_line.size() > 12 && status_line[12] != ' ')) {
    Malformed("status line '" + std::string(status_line.substr(0, 40)) + "'");
  }
  status_ = static_cast<int>(ParseNumber(status_line.substr(9, 3), 10, "status"));
  keep_alive_ = status_line[7] != '0';
  has_length_ = is_chunked_ = is_event_stream_ = false;
  head.remove_prefix(head.find('\n') + 1);
  while (!head.empty()) {
    const size_t end = head.find('\n');
    const std::string_view line = Trimmed(head.substr(0, end));
    head.remove_prefix(end + 1);
    if (line.empty()) continue;  // the closing line
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      Malformed("header '" + std::string(line.substr(0, 40)) + "'");
    }
    ParseHeader(line.substr(0, colon), Trimmed(line.substr(colon + 1)));
  }
  line_.clear();

  if (status_ >= 100 && status_ < 200) return;  // interim response; the real head follows
  if (status_ == 204 || status_ == 304) {
    state_ = State::kDone;
  } else if (is_chunked_) {
    state_ = State::kChunkSize;
  } else if (has_length_) {
    state_ = left_ == 0 ? State::kDone : State::kLengthBody;
  } else {
    keep_alive_ = false;
    state_ = State::kOpenBody;
  }
}

size_t HttpResponseParser::Feed(std::string_view bytes, std::string& body) {
  const size_t given = bytes.size();
  has_begun_ |= given > 0;
  while (!bytes.empty() && state_ != State::kDone) {
    switch (state_) {
      case State::kHead: {
        const size_t line_begin = line_.empty() ? 0 : line_.rfind('\n') + 1;
        if (!TakeLine(bytes, kMaxHeadBytes)) break;
        // `line_begin` is 0 for the first line and for a line that began in an earlier piece. In
        // both cases the text from there is the line that just ended.
        if (Trimmed(std::string_view(line_).substr(line_begin, line_.size() - line_begin - 1))
                .empty()) {
          ParseHead();
        }
        break;
      }
      case State::kLengthBody:
      case State::kChunkData: {
        const auto take = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
        body.append(bytes.substr(0, take));
        bytes.remove_prefix(take);
        left_ -= take;
        if (left_ == 0) {
          state_ = state_ == State::kLengthBody ? State::kDone : State::kChunkEnd;
        }
        break;
      }
      case State::kOpenBody:
        body.append(bytes);
        bytes = {};
        break;
      case State::kChunkSize: {
        if (!TakeLine(bytes, kMaxLineBytes)) break;
        const std::string_view line(line_.data(), line_.size() - 1);
        left_ = ParseNumber(Trimmed(line.substr(0, line.find(';'))), 16, "chunk size");
        state_ = left_ == 0 ? State::kTrailer : State::kChunkData;
        line_.clear();
        break;
      }
      case State::kChunkEnd:
        if (!TakeLine(bytes, kMaxLineBytes)) break;
        if (line_ != "\r\n" && line_ != "\n") Malformed("bytes after the end of a chunk");
        state_ = State::kChunkSize;
        line_.clear();
        break;
      case State::kTrailer:
        if (!TakeLine(bytes, kMaxLineBytes)) break;
        if (line_ == "\r\n" || line_ == "\n") state_ = State::kDone;
        line_.clear();
        break;
      case State::kDone:
        break;
    }
  }
  return given - bytes.size();
}

bool HttpResponseParser::EndOfConnection() {
  if (state_ == State::kOpenBody) state_ = State::kDone;
  return done();
}

}  // namespace tandem::bench
