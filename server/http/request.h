#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/http/body_budget.h"
#include "server/http/body_sink.h"

namespace tandem::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// Replaces the value of `name`, or adds it.
void SetHeader(Headers& headers, std::string_view name, std::string value);

// A place in a bounded queue, held while a request is prepared. One thread at a time.
class Reservation {
 public:
  // Called once, when the place is released. It must call `take` before another thread can see the
  // place as free.
  using GiveUp = std::function<void(const std::function<void()>& take)>;

  explicit Reservation(GiveUp give_up) : give_up_(std::move(give_up)) {}
  ~Reservation() {
    if (give_up_) give_up_([] {});
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Exchanges the place for the effect of `take`, which may throw. If the place is already used,
  // only calls `take`.
  void Redeem(const std::function<void()>& take) {
    if (give_up_) {
      std::exchange(give_up_, nullptr)(take);
    } else {
      take();
    }
  }

 private:
  GiveUp give_up_;
};

// One complete request; a plain value. Header names are lower case. The path is percent-decoded
// once, and has no empty, `.` or `..` segments and no control characters.
struct Request {
  std::string id;      // the x-request-id of the answer
  std::string method;  // as sent; HEAD stays HEAD although the GET handler serves it
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
  Headers headers;
  std::string body;
  std::shared_ptr<BodyShare> body_share;  // the budget's share for `body`; null: a small body
  // The sink that took the body, for routes with open_body; null: the body is in `body`.
  std::shared_ptr<BodySink> body_sink;
  std::string remote;                              // "127.0.0.1:41234", for logs
  std::map<std::string, std::string> path_params;  // set by the router
  std::chrono::steady_clock::time_point received;
  bool http_1_0 = false;
  bool keep_alive = true;
  uint64_t client = 0;                     // the caller, from HttpPolicy::admit; 0: none
  bool sees_all_records = false;           // an administrator, from HttpPolicy::admit
  bool is_batch_line = false;              // of /v1/batches: runs behind other requests
  std::shared_ptr<Reservation> admission;  // from HttpPolicy::admit; null: none

  // The first value of the header or query parameter, or null.
  const std::string* FindHeader(std::string_view lower_case_name) const;
  const std::string* FindQuery(std::string_view name) const;
};

// A complete answer.
struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
  // Of an error: the body holds them too. The log shows the code; ApiStyle rewrites the body.
  std::string error_code = {};
  std::string error_message = {};
};

// Differences of the routes of another API from OpenAI's.
struct ApiStyle {
  // Gives an error, of whatever origin, the status and body of this API.
  void (*rewrite_error)(Response& error, const std::string& request_id);
  std::string_view error_event;  // the SSE event that ends a failed stream; no `[DONE]` follows
  std::string_view request_id_header;  // a further name for x-request-id in answers
  bool streams_lines = false;  // streams are NDJSON: the error is their last line, without event
};

}  // namespace tandem::server
