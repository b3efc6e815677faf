#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::bench {

// The bytes of one HTTP/1.1 response, in pieces of any size. Knows the three ways in which a body
// ends: Content-Length, chunked encoding, the end of the connection. One object per response, one
// thread.
class HttpResponseParser {
 public:
  // Appends the body bytes among `bytes` to `body` and returns how many bytes belonged to this
  // response: fewer than given only once done(). Throws kDataLoss for what is not HTTP.
  size_t Feed(std::string_view bytes, std::string& body);

  // The peer has closed: true when the response is whole, which without a length it now is.
  bool EndOfConnection();

  bool has_begun() const { return has_begun_; }
  bool has_head() const { return state_ > State::kHead; }
  bool done() const { return state_ == State::kDone; }

  // Of the response's head. REQUIRES: has_head().
  int status() const { return status_; }
  bool keep_alive() const { return keep_alive_; }
  bool is_event_stream() const { return is_event_stream_; }

 private:
  enum class State {
    kHead,
    kLengthBody,
    kOpenBody,  // until the connection ends
    kChunkSize,
    kChunkData,
    kChunkEnd,  // the line break after a chunk's bytes
    kTrailer,
    kDone,
  };

  void ParseHead();
  void ParseHeader(std::string_view name, std::string_view value);
  // Moves bytes up to and including the next LF into line_; true when the line is whole.
  bool TakeLine(std::string_view& bytes, size_t limit);

  State state_ = State::kHead;
  std::string line_;  // of the head (all of it), a chunk size or a trailer
  uint64_t left_ = 0;
  int status_ = 0;
  bool has_begun_ = false;
  bool keep_alive_ = true;
  bool has_length_ = false;
  bool is_chunked_ = false;
  bool is_event_stream_ = false;
};

}  // namespace tandem::bench
