#include "server/http/syntax/chunked_decoder.h"

#include <algorithm>

#include "engine/base/ascii.h"

namespace tandem::server {
ChunkedDecoder::Status ChunkedDecoder::Consume(std::string_view& bytes, std::string* body) {
  while (!bytes.empty()) {
    if (state_ == State::kData) {
      const size_t n = std::min<size_t>(bytes.size(), chunk_bytes_);
      if (body != nullptr) body->append(bytes.substr(0, n));
      bytes.remove_prefix(n);
      chunk_bytes_ -= n;
      if (chunk_bytes_ == 0) state_ = State::kDataCr;
      continue;
    }

    const char c = bytes.front();
    bytes.remove_prefix(1);
    switch (state_) {
      case State::kSizeFirst:
        chunk_bytes_ = 0;
        size_digits_ = 0;
        extension_bytes_ = 0;
        if (HexDigit(c) < 0) return Status::kBad;
        state_ = State::kSize;
        [[fallthrough]];
      case State::kSize:
        if (const int digit = HexDigit(c); digit >= 0) {
          // 15 digits cannot overflow, and no limit allows more.
          if (++size_digits_ > 15) return Status::kBad;
          chunk_bytes_ = chunk_bytes_ * 16 + static_cast<uint64_t>(digit);
        } else if (c == ';') {
          state_ = State::kExtension;
        } else if (c == '\r') {
          state_ = State::kSizeLf;
        } else {
          return Status::kBad;
        }
        break;
      case State::kExtension:
        if (c == '\r') {
          state_ = State::kSizeLf;
        } else if (c == '\n' || ++extension_bytes_ > kMaxExtensionBytes) {
          return Status::kBad;
        }
        break;
      case State::kSizeLf:
        if (c != '\n') return Status::kBad;
        if (chunk_bytes_ == 0) {
          state_ = State::kTrailerStart;
        } else {
          if (chunk_bytes_ > max_body_bytes_ - body_bytes_) return Status::kTooLarge;
          body_bytes_ += chunk_bytes_;
          state_ = State::kData;
        }
        break;
      case State::kDataCr:
        if (c != '\r') return Status::kBad;
        state_ = State::kDataLf;
        break;
      case State::kDataLf:
        if (c != '\n') return Status::kBad;
        state_ = State::kSizeFirst;
        break;
      case State::kTrailerStart:
        if (c == '\r') {
          state_ = State::kEndLf;
          break;
        }
        state_ = State::kTrailer;
        [[fallthrough]];
      case State::kTrailer:
        if (c == '\r') {
          state_ = State::kTrailerLf;
        } else if (c == '\n' || ++trailer_bytes_ > kMaxTrailerBytes) {
          return Status::kBad;
        }
        break;
      case State::kTrailerLf:
        if (c != '\n') return Status::kBad;
        state_ = State::kTrailerStart;
        break;
      case State::kEndLf:
        return c == '\n' ? Status::kDone : Status::kBad;
      case State::kData:
        break;
    }
  }
  return Status::kNeedMore;
}

}  // namespace tandem::server
