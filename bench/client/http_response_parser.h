#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::bench {

// Parses one HTTP/1.1 response from pieces of any size. A body ends by Content-Length, chunked
// encoding or the end of the connection. One object per response, one thread.
class HttpResponseParser {
 public:
  // Appends body bytes to `body`. Returns how many of `bytes` belong to this response; all of them
  // unless done(). Throws kDataLoss if they are not HTTP.
  size_t Feed(std::string_view bytes, std::string& body);

  // Reports that the peer closed. Returns whether the response is complete, as it now is without a
  // length.
  bool EndOfConnection();

  bool has_begun() const { return has_begun_; }
  bool has_head() const { return state_ > State::kHead; }
  bool done() const { return state_ == State::kDone; }

  // Fields of the head. REQUIRES: has_head().
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
    kChunkEnd,  // line break after a chunk
    kTrailer,
    kDone,
  };

  void ParseHead();
  void ParseHeader(std::string_view name, std::string_view value);
  // Moves bytes up to and including the next LF into line_; returns whether the line is complete.
  bool TakeLine(std::string_view& bytes, size_t limit);

  State state_ = State::kHead;
  std::string line_;  // the whole head, a chunk size or a trailer
  uint64_t left_ = 0;
  int status_ = 0;
  bool has_begun_ = false;
  bool keep_alive_ = true;
  bool has_length_ = false;
  bool is_chunked_ = false;
  bool is_event_stream_ = false;
};

}  // namespace tandem::bench
