// Bytes of a client's connection, read by RequestParser and ChunkedDecoder. Requests do not depend
// on how the bytes are cut or whether bodies are kept. Paths are safe; nothing is read after a
// refusal.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/request_parser.h"

namespace tandem::server {
namespace {

struct Reading {
  std::vector<Request> requests;
  int refusal = 0;
};

HttpOptions SmallLimits() {
  HttpOptions options;
  options.max_request_line_bytes = 200;
  options.max_header_bytes = 600;
  options.max_headers = 12;
  options.max_body_bytes = 300;
  return options;
}

void Require(bool truth) {
  if (!truth) std::abort();
}

void CheckPath(const std::string& path) {
  Require(path == "*" || path.starts_with('/'));
  Require(path.find("//") == std::string::npos);
  Require((path + "/").find("/../") == std::string::npos);
  for (const char c : path) Require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
}

enum class Bodies { kKept, kDropped };

// `pieces` gives the lengths of the cuts, one per byte, repeated. Empty: no cuts.
Reading Read(std::string_view bytes, std::string_view pieces, Bodies bodies) {
  const HttpOptions options = SmallLimits();
  RequestParser parser(options);
  Reading reading;
  size_t n_pieces = 0;
  while (!bytes.empty()) {
    size_t n = bytes.size();
    if (!pieces.empty()) {
      const auto length = static_cast<unsigned char>(pieces[n_pieces++ % pieces.size()]);
      n = std::min(n, size_t{1} + length % 64);
    }
    parser.Append(bytes.substr(0, n));
    bytes.remove_prefix(n);
    for (bool more = true; more;) {
      RequestParser::Result result = parser.Next();
      if (Request* request = std::get_if<Request>(&result)) {
        Require(reading.refusal == 0);
        Require(request->body.size() <= SmallLimits().max_body_bytes);
        Require(request->headers.size() <= SmallLimits().max_headers);
        CheckPath(request->path);
        reading.requests.push_back(std::move(*request));
      } else if (const Refusal* refusal = std::get_if<Refusal>(&result)) {
        Require(reading.refusal == 0 && refusal->status >= 400 && refusal->status < 500);
        reading.refusal = refusal->status;
      } else if (std::holds_alternative<RequestParser::HeadReady>(result)) {
        Require(reading.refusal == 0);
        CheckPath(parser.head().path);
        if (bodies == Bodies::kDropped) parser.DropBody();
      } else {
        more = false;
      }
    }
    if (reading.refusal != 0) Require(parser.buffered_bytes() == 0);
  }
  return reading;
}

void RequireSame(const Reading& a, const Reading& b, bool with_bodies) {
  Require(a.refusal == b.refusal && a.requests.size() == b.requests.size());
  for (size_t i = 0; i < a.requests.size(); ++i) {
    const Request& left = a.requests[i];
    const Request& right = b.requests[i];
    Require(left.method == right.method && left.path == right.path && left.id == right.id);
    Require(left.query == right.query && left.headers == right.headers);
    Require(left.keep_alive == right.keep_alive && left.http_1_0 == right.http_1_0);
    if (with_bodies) Require(left.body == right.body);
  }
}

}  // namespace
}  // namespace tandem::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::server;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Reading whole = Read(bytes, {}, Bodies::kKept);
  RequireSame(whole, Read(bytes, bytes, Bodies::kKept), true);
  RequireSame(whole, Read(bytes, std::string_view("\0", 1), Bodies::kKept), true);
  RequireSame(whole, Read(bytes, bytes, Bodies::kDropped), false);
  return 0;
}
