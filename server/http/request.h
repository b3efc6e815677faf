#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

// Replaces the value of a name, or adds it.
void SetHeader(Headers& headers, std::string_view name, std::string value);

// One complete request, as a plain value. Names of headers are lower case; the path is
// percent-decoded once and has no empty, `.` or `..` segments and no control characters.
struct Request {
  std::string id;      // what x-request-id answers
  std::string method;  // as sent; HEAD stays HEAD although the GET handler serves it
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
  Headers headers;
  std::string body;
  std::string remote;                              // "127.0.0.1:41234", for logs
  std::map<std::string, std::string> path_params;  // filled in by the router
  std::chrono::steady_clock::time_point received;
  bool http_1_0 = false;
  bool keep_alive = true;
  uint64_t client = 0;              // whose request it is, as HttpPolicy::admit says; 0: nobody's
  std::shared_ptr<void> admission;  // what HttpPolicy::admit wants released with the request

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
};

}  // namespace tandem::server
