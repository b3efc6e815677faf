#include "server/http/request_parser.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "engine/base/ascii.h"
#include "engine/base/url.h"
#include "server/http/net.h"
#include "server/http/syntax/header_text.h"

namespace tandem::server {
namespace {

constexpr size_t kMaxEmptyLines = 8;
// Every route allows a body of this size, so a smaller body needs no route lookup.
constexpr size_t kAnyRoutesBytes = 64 << 10;

// Characters of a host with a port (RFC 3986). AllowedHosts decides whether the host is right. A
// list or a path here would be a message with two interpretations.
bool IsHostValue(std::string_view host) {
  return std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           std::string_view("-._~%!$&'()*+;=:[]").find(c) != std::string_view::npos;
  });
}

bool IsClientRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  });
}

// Digits only: no sign, space or list. nullopt if the number is too long.
std::optional<uint64_t> ParseLength(std::string_view text) {
  if (text.empty() || text.size() > 18) return std::nullopt;
  uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + static_cast<uint64_t>(c - '0');
  }
  return value;
}

Refusal BadRequest(std::string message) {
  return Refusal{400, "invalid_request", std::move(message)};
}

}  // namespace

void RequestParser::Stop() {
  phase_ = Phase::kRefused;
  input_.clear();
  input_.shrink_to_fit();
  consumed_ = 0;
  is_sink_full_ = false;
  FreeBody();
  request_.body_sink.reset();
}

void RequestParser::DropBody() {
  drops_body_ = true;
  FreeBody();
}

// Assigning an empty string would keep the memory.
void RequestParser::FreeBody() {
  std::string().swap(request_.body);
  request_.body_share.reset();
}

size_t RequestParser::MaxBodyBytes() const {
  return body_limit_ ? body_limit_(request_) : options_.max_body_bytes;
}

void RequestParser::TakeBody(std::string_view bytes) {
  if (drops_body_ || bytes.empty()) return;
  if (request_.body_sink) {
    is_sink_full_ = !request_.body_sink->Write(bytes);
  } else if (MakeRoomFor(bytes.size())) {
    request_.body.append(bytes);
  } else {
    is_over_budget_ = true;
    DropBody();
  }
}

// The buffer grows with the received bytes and never beyond the announced length, so an
// announcement alone uses no memory. False if the budget has no room.
bool RequestParser::MakeRoomFor(size_t n_bytes) {
  std::string& body = request_.body;
  const size_t needed = body.size() + n_bytes;
  if (needed <= body.capacity()) return true;
  const size_t most = chunked_ ? max_body_bytes_ : body.size() + remaining_bytes_;
  const size_t capacity = std::max(needed, std::min(most, 2 * body.capacity()));
  if (budget_ && capacity > BodyBudget::kFreeBytes) {
    if (!request_.body_share) request_.body_share = std::make_shared<BodyShare>(budget_);
    if (!request_.body_share->GrowTo(capacity)) return false;
  }
  body.reserve(capacity);
  return true;
}

RequestParser::Result RequestParser::Refuse(Refusal refusal) {
  Stop();
  return refusal;
}

void RequestParser::DropConsumed() {
  if (consumed_ == input_.size()) {
    input_.clear();
    consumed_ = 0;
    // An idle connection must not keep the buffer of a large body.
    if (input_.capacity() > (16 << 10)) input_.shrink_to_fit();
  } else if (consumed_ > (64 << 10)) {
    input_.erase(0, consumed_);
    consumed_ = 0;
  }
}

std::optional<Refusal> RequestParser::ScanHead(size_t* head_bytes) {
  const std::string_view head = std::string_view(input_).substr(consumed_);
  *head_bytes = 0;
  for (; scanned_ < head.size(); ++scanned_) {
    const char c = head[scanned_];
    if (n_lines_ == 0 && scanned_ - line_begin_ >= options_.max_request_line_bytes) {
      return Refusal{414, "uri_too_long",
                     "the request line is longer than " +
                         std::to_string(options_.max_request_line_bytes) + " bytes"};
    }
    if (n_lines_ > 0 && scanned_ - request_line_bytes_ >= options_.max_header_bytes) {
      return Refusal{431, "headers_too_large",
                     "the headers are longer than " + std::to_string(options_.max_header_bytes) +
                         " bytes in all"};
    }
    if (n_lines_ == 0 && scanned_ == line_begin_ && !IsTokenChar(c)) {
      // Another protocol, such as a TLS hello: answer now instead of after the header timeout.
      return BadRequest("this is not an HTTP/1.1 request");
    }
    if (c != '\n') continue;

    if (scanned_ == line_begin_ || head[scanned_ - 1] != '\r') {
      return BadRequest("lines of the request head must end with CR LF");
    }
    const size_t line_bytes = scanned_ - 1 - line_begin_;
    if (n_lines_ == 0) {
      request_line_bytes_ = scanned_ + 1;
      const std::string_view line = head.substr(line_begin_, line_bytes);
      if (!line.ends_with(" HTTP/1.1") && !line.ends_with(" HTTP/1.0")) {
        // A client of another protocol may wait for our answer before it sends more.
        return BadRequest("this is not an HTTP/1.1 request");
      }
    }
    if (line_bytes == 0) {
      *head_bytes = ++scanned_;
      return std::nullopt;
    }
    const char first = head[line_begin_];
    if (n_lines_ > 0 && (first == ' ' || first == '\t')) {
      return BadRequest("header lines may not be folded");
    }
    if (n_lines_ > options_.max_headers) {
      return Refusal{
          431, "headers_too_large",
          "the request has more than " + std::to_string(options_.max_headers) + " headers"};
    }
    ++n_lines_;
    line_begin_ = scanned_ + 1;
  }
  return std::nullopt;
}

std::optional<Refusal> RequestParser::ParseHead(std::string_view head) {
  beast_http::request_parser<beast_http::empty_body> parser;
  parser.header_limit(static_cast<uint32_t>(head.size() + 1));
  // This class limits bodies itself. (Beast 1.74 treats "no limit" as a limit of zero.)
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  boost::system::error_code error;
  parser.put(net::buffer(head.data(), head.size()), error);
  if (error && error != beast_http::error::need_more) {
    return BadRequest("the request head is malformed: " + error.message());
  }
  if (!parser.is_header_done()) return BadRequest("the request head is malformed");

  awaits_continue_ = false;
  drops_body_ = false;
  is_over_budget_ = false;
  chunked_.reset();
  remaining_bytes_ = 0;
  request_.received = std::chrono::steady_clock::now();
  const auto& message = parser.get();
  request_.method = std::string(message.method_string());
  request_.http_1_0 = message.version() == 10;
  request_.keep_alive = parser.keep_alive();
  const auto target_text = message.target();
  std::optional<RequestTarget> target =
      ParseRequestTarget({target_text.data(), target_text.size()});
  if (target) {
    request_.path = std::move(target->path);
    request_.query = std::move(target->query);
  }

  std::optional<std::string> length;
  std::optional<std::string> coding;
  size_t n_hosts = 0;
  std::optional<Refusal> fault;
  for (const auto& field : message) {
    std::string name = LowerCase({field.name_string().data(), field.name_string().size()});
    std::string value(field.value().data(), field.value().size());
    if (name == "content-length") {
      if (length && *length != value) fault = BadRequest("two different Content-Length headers");
      length = value;
    } else if (name == "transfer-encoding") {
      if (coding) fault = BadRequest("two Transfer-Encoding headers");
      coding = LowerCase(value);
    } else if (name == "host") {
      ++n_hosts;
      if (!IsHostValue(value)) fault = BadRequest("the Host header is not a valid host");
    } else if (name == "expect") {
      if (LowerCase(value) != "100-continue") {
        if (!fault)
          fault = Refusal{417, "invalid_request", "the Expect header must be '100-continue'"};
      } else {
        awaits_continue_ = !request_.http_1_0;
      }
    } else if (name == "x-request-id" && request_.id.empty() && IsClientRequestId(value)) {
      request_.id = value;
    }
    request_.headers.emplace_back(std::move(name), std::move(value));
  }
  if (length && coding) {
    return BadRequest("a request may have Content-Length or Transfer-Encoding, not both");
  }
  if (coding && (*coding != "chunked" || request_.http_1_0)) {
    return BadRequest("Transfer-Encoding must be 'chunked', in HTTP/1.1");
  }
  if (n_hosts > 1 || (n_hosts == 0 && !request_.http_1_0)) {
    return BadRequest("an HTTP/1.1 request needs exactly one Host header");
  }
  if (!target) return BadRequest("the path of the request is malformed");
  if (fault) return fault;

  if (length) {
    const std::optional<uint64_t> bytes = ParseLength(*length);
    if (!bytes) return BadRequest("Content-Length must be a plain decimal number");
    max_body_bytes_ = *bytes > std::min(options_.max_body_bytes, kAnyRoutesBytes)
                          ? MaxBodyBytes()
                          : options_.max_body_bytes;
    if (*bytes > max_body_bytes_) {
      return Refusal{
          413, "request_too_large",
          "the body has " + *length + " bytes; the limit is " + std::to_string(max_body_bytes_)};
    }
    remaining_bytes_ = static_cast<size_t>(*bytes);
  } else if (coding) {
    max_body_bytes_ = MaxBodyBytes();
    chunked_.emplace(max_body_bytes_);
  }
  return std::nullopt;
}

// RFC 9112 §2.2: empty lines before the request line are ignored, here up to kMaxEmptyLines.
std::optional<Refusal> RequestParser::SkipEmptyLines() {
  while (input_.size() - consumed_ >= 2 && input_[consumed_] == '\r' &&
         input_[consumed_ + 1] == '\n') {
    consumed_ += 2;
    if (++n_empty_lines_ > kMaxEmptyLines) return BadRequest("this is not an HTTP/1.1 request");
  }
  return std::nullopt;
}

// The end of a chunked body is unknown until it is parsed.
bool RequestParser::HasWholeBody() const {
  return !chunked_ && input_.size() - consumed_ >= remaining_bytes_;
}

RequestParser::Result RequestParser::ReadBody() {
  std::string_view rest = std::string_view(input_).substr(consumed_);
  bool done = false;
  if (chunked_) {
    const size_t before = rest.size();
    std::string piece;
    const ChunkedDecoder::Status status = chunked_->Consume(rest, drops_body_ ? nullptr : &piece);
    consumed_ += before - rest.size();
    if (status != ChunkedDecoder::Status::kBad) TakeBody(piece);
    if (status == ChunkedDecoder::Status::kBad) {
      return Refuse(BadRequest("the chunked body is malformed"));
    }
    if (status == ChunkedDecoder::Status::kTooLarge) {
      return Refuse({413, "request_too_large",
                     "the body is longer than " + std::to_string(max_body_bytes_) + " bytes"});
    }
    done = status == ChunkedDecoder::Status::kDone;
  } else {
    const size_t n = std::min(rest.size(), remaining_bytes_);
    TakeBody(rest.substr(0, n));
    consumed_ += n;
    remaining_bytes_ -= n;
    done = remaining_bytes_ == 0;
  }
  DropConsumed();
  if (!done) return NeedMore{};
  phase_ = Phase::kIdle;
  is_sink_full_ = false;  // a complete body needs no more room
  return std::exchange(request_, Request());
}

RequestParser::Result RequestParser::Next() {
  if (phase_ == Phase::kRefused || is_sink_full_) return NeedMore{};
  if (phase_ == Phase::kBody) return ReadBody();

  if (phase_ == Phase::kIdle) {
    if (std::optional<Refusal> refusal = SkipEmptyLines()) return Refuse(std::move(*refusal));
    if (consumed_ == input_.size()) {
      DropConsumed();
      return NeedMore{};
    }
    if (input_.size() - consumed_ == 1 && input_[consumed_] == '\r') return NeedMore{};
    phase_ = Phase::kHead;
  }
  size_t head_bytes = 0;
  if (std::optional<Refusal> refusal = ScanHead(&head_bytes)) return Refuse(std::move(*refusal));
  if (head_bytes == 0) return NeedMore{};
  const std::string_view head = std::string_view(input_).substr(consumed_, head_bytes);
  if (std::optional<Refusal> refusal = ParseHead(head)) return Refuse(std::move(*refusal));
  consumed_ += head_bytes;
  scanned_ = line_begin_ = n_lines_ = n_empty_lines_ = request_line_bytes_ = 0;
  phase_ = Phase::kBody;
  if (HasWholeBody()) return ReadBody();
  return HeadReady{awaits_continue_ && consumed_ == input_.size()};
}

}  // namespace tandem::server
