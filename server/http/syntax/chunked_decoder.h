#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::server {

// Decodes `Transfer-Encoding: chunked` byte by byte as it arrives. It is strict where leniency has
// allowed request smuggling: CRLF only, hexadecimal digits only, and only an extension between size
// and CRLF. Extensions and trailers are bounded and dropped.
class ChunkedDecoder {
 public:
  enum class Status { kNeedMore, kDone, kBad, kTooLarge };

  explicit ChunkedDecoder(size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}

  // Consumes bytes from the front of `bytes` and appends body bytes to `body` (null: drops them).
  // After kDone the rest of `bytes` belongs to the next request.
  Status Consume(std::string_view& bytes, std::string* body);

 private:
  enum class State {
    kSizeFirst,
    kSize,
    kExtension,
    kSizeLf,
    kData,
    kDataCr,
    kDataLf,
    kTrailerStart,
    kTrailer,
    kTrailerLf,
    kEndLf,
  };
  static constexpr size_t kMaxExtensionBytes = 256;
  static constexpr size_t kMaxTrailerBytes = 8 << 10;

  size_t max_body_bytes_;
  State state_ = State::kSizeFirst;
  uint64_t chunk_bytes_ = 0;  // remaining bytes of the current chunk
  uint64_t body_bytes_ = 0;   // announced so far
  size_t size_digits_ = 0;
  size_t extension_bytes_ = 0;
  size_t trailer_bytes_ = 0;
};

}  // namespace tandem::server
