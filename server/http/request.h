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

// Replaces the value of a name, or adds it.
void SetHeader(Headers& headers, std::string_view name, std::string value);

// A place kept for a request while it is being prepared. One thread at a time.
class Reservation {
 public:
  // Called once, when the place is given up; has to call what it is given before anyone else can
  // see that the place is free.
  using GiveUp = std::function<void(const std::function<void()>& take)>;

  explicit Reservation(GiveUp give_up) : give_up_(std::move(give_up)) {}
  ~Reservation() {
    if (give_up_) give_up_([] {});
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  // Exchanges the place for what `take` takes, which may throw. Only `take` if that was done.
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

// One complete request, as a plain value. Names of headers are lower case; the path is
// percent-decoded once and has no empty, `.` or `..` segments and no control characters.
struct Request {
  std::string id;      // what x-request-id answers
  std::string method;  // as sent; HEAD stays HEAD although the GET handler serves it
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
  Headers headers;
  std::string body;
  std::shared_ptr<BodyShare> body_share;  // counts `body` while the request lives; null: small
  // Has taken the body, as the route wants it; null: the body came with the head and is `body`.
  std::shared_ptr<BodySink> body_sink;
  std::string remote;                              // "127.0.0.1:41234", for logs
  std::map<std::string, std::string> path_params;  // filled in by the router
  std::chrono::steady_clock::time_point received;
  bool http_1_0 = false;
  bool keep_alive = true;
  uint64_t client = 0;  // whose request it is, as HttpPolicy::admit says; 0: nobody's
  std::shared_ptr<Reservation> admission;  // as HttpPolicy::admit says; null: none

  // The first value, or null.
  const std::string* FindHeader(std::string_view lower_case_name) const;
  const std::string* FindQuery(std::string_view name) const;
};

// A complete answer.
struct Response {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  Headers headers;
  std::string error_code = {};  // of an error, for the log; not sent apart from the body
};

}  // namespace tandem::server
