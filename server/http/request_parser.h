#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "server/http/options.h"
#include "server/http/request.h"
#include "server/http/syntax/chunked_decoder.h"

namespace tandem::server {

// The answer to input that no handler can process. The connection closes after it, and further
// input is ignored.
struct Refusal {
  int status = 400;
  std::string code;  // null in the body when empty
  std::string message;
};

// Parses the bytes of one connection into requests, in pieces of any size. Knows no sockets and no
// clock. Beast parses the header block. The checks around it follow RFC 9112, so that no message
// has two interpretations.
class RequestParser {
 public:
  // Maximum body size of a request. Called only if the length is unknown or large.
  using BodyLimit = std::function<size_t(const Request& head)>;

  // Without a budget, only the limit of each body applies. `options` must outlive the parser, which
  // keeps no copy.
  explicit RequestParser(const HttpOptions& options, BodyLimit body_limit = {},
                         std::shared_ptr<BodyBudget> budget = nullptr)
      : options_(options), body_limit_(std::move(body_limit)), budget_(std::move(budget)) {}

  RequestParser(HttpOptions&&, BodyLimit = {}, std::shared_ptr<BodyBudget> = nullptr) = delete;

  struct NeedMore {};
  // The head is accepted and the body is incomplete: the caller can refuse the request before its
  // body uses memory. Once per request, unless the body arrived with the head.
  struct HeadReady {
    bool awaits_continue = false;  // the client waits for `100 Continue`
  };
  using Result = std::variant<NeedMore, HeadReady, Request, Refusal>;

  void Append(std::string_view bytes) {
    if (phase_ != Phase::kRefused) input_.append(bytes);
  }
  // Call until it returns NeedMore. After a Refusal it always returns NeedMore.
  Result Next();

  enum class Phase { kIdle, kHead, kBody, kRefused };
  Phase phase() const { return phase_; }
  // The current request, or the refused one (up to the fault).
  const Request& head() const { return request_; }
  // Reads the current request's body to its end and drops it.
  void DropBody();
  // The budget had no room for the body of the current request, or of the request that Next
  // returned last. That body was dropped.
  bool is_over_budget() const { return is_over_budget_; }
  // Missing bytes of the current body; 0 for a chunked body.
  size_t announced_bytes() const { return chunked_ ? 0 : remaining_bytes_; }
  // Sends the body to a sink. REQUIRES: the last result of Next was HeadReady.
  void SendBodyTo(std::shared_ptr<BodySink> sink) { request_.body_sink = std::move(sink); }
  // True while the sink is full: Next returns NeedMore until SinkHasRoom.
  bool is_sink_full() const { return is_sink_full_; }
  void SinkHasRoom() { is_sink_full_ = false; }
  // Stops parsing: further input is not a request.
  void Stop();
  size_t buffered_bytes() const { return input_.size() - consumed_; }

 private:
  Result Refuse(Refusal refusal);
  // Scans line by line for the end of the head; nullopt while it is incomplete.
  std::optional<Refusal> ScanHead(size_t* head_bytes);
  std::optional<Refusal> ParseHead(std::string_view head);
  std::optional<Refusal> SkipEmptyLines();
  bool HasWholeBody() const;
  Result ReadBody();
  void DropConsumed();

  size_t MaxBodyBytes() const;
  void TakeBody(std::string_view bytes);
  bool MakeRoomFor(size_t n_bytes);
  void FreeBody();

  const HttpOptions& options_;
  const BodyLimit body_limit_;
  const std::shared_ptr<BodyBudget> budget_;
  Phase phase_ = Phase::kIdle;
  std::string input_;
  size_t consumed_ = 0;    // parsed bytes of input_
  size_t scanned_ = 0;     // scanned bytes of the current head
  size_t line_begin_ = 0;  // within the head
  size_t n_lines_ = 0;
  size_t n_empty_lines_ = 0;  // before the request line
  size_t request_line_bytes_ = 0;
  Request request_;
  bool awaits_continue_ = false;
  bool drops_body_ = false;
  bool is_over_budget_ = false;
  bool is_sink_full_ = false;
  size_t max_body_bytes_ = 0;   // of the current request
  size_t remaining_bytes_ = 0;  // of a body with a known length
  std::optional<ChunkedDecoder> chunked_;
};

}  // namespace tandem::server
