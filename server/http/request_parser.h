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

// A request that cannot be answered by a handler. The connection closes after it: what follows on
// the wire is never looked at.
struct Refusal {
  int status = 400;
  std::string code;  // null in the body when empty
  std::string message;
};

// Turns the bytes of one connection into requests, however they are cut. Knows no sockets and no
// clock. Beast parses the header block; the checks around it are what RFC 9112 asks of a server
// that wants no two readings of one message.
class RequestParser {
 public:
  // How long the body of a request may be; asked where its length is not known, or so great that it
  // matters.
  using BodyLimit = std::function<size_t(const Request& head)>;

  // Without a budget only the limit of each body counts.
  explicit RequestParser(const HttpOptions& options, BodyLimit body_limit = {},
                         std::shared_ptr<BodyBudget> budget = nullptr)
      : options_(options), body_limit_(std::move(body_limit)), budget_(std::move(budget)) {}

  struct NeedMore {};
  // A head has been accepted and its body is still on the way: the chance to refuse the request
  // before its body takes memory. Once per request, and not if the body came with the head.
  struct HeadReady {
    bool awaits_continue = false;  // the client sends no body before `100 Continue`
  };
  using Result = std::variant<NeedMore, HeadReady, Request, Refusal>;

  void Append(std::string_view bytes) {
    if (phase_ != Phase::kRefused) input_.append(bytes);
  }
  // Call until it answers NeedMore. After a Refusal the parser stays silent.
  Result Next();

  enum class Phase { kIdle, kHead, kBody, kRefused };
  Phase phase() const { return phase_; }
  // Of the request being read, or of the one just refused (as far as it could be read).
  const Request& head() const { return request_; }
  // The body of the current request is read to its end and thrown away.
  void DropBody();
  // The budget had no room for the body of the current request, or of the one that Next returned
  // last: it was dropped.
  bool is_over_budget() const { return is_over_budget_; }
  // Bytes of the current body still to arrive; 0 for a chunked body.
  size_t announced_bytes() const { return chunked_ ? 0 : remaining_bytes_; }
  // Or goes there. REQUIRES: the answer was HeadReady, and no call of Next since.
  void SendBodyTo(std::shared_ptr<BodySink> sink) { request_.body_sink = std::move(sink); }
  // The sink has enough for now: Next answers NeedMore until SinkHasRoom.
  bool is_sink_full() const { return is_sink_full_; }
  void SinkHasRoom() { is_sink_full_ = false; }
  // Reads nothing more: what follows on the wire is not a request any more.
  void Stop();
  size_t buffered_bytes() const { return input_.size() - consumed_; }

 private:
  Result Refuse(Refusal refusal);
  // Looks for the end of the head, line by line; nullopt while it is not there.
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

  const HttpOptions options_;
  const BodyLimit body_limit_;
  const std::shared_ptr<BodyBudget> budget_;
  Phase phase_ = Phase::kIdle;
  std::string input_;
  size_t consumed_ = 0;    // bytes of input_ that are done with
  size_t scanned_ = 0;     // bytes of the current head already looked at
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
  size_t remaining_bytes_ = 0;  // of a body with a length
  std::optional<ChunkedDecoder> chunked_;
};

}  // namespace tandem::server
