// A multipart form, read by MultipartParser: a content type, a zero byte, and the body. Parts do
// not depend on how the bytes are cut, and begin and end in turn. They hold no more bytes than came
// in and stay within the limits; a form without a fault is complete.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/syntax/multipart_parser.h"

namespace tandem::server {
namespace {

void Require(bool truth) {
  if (!truth) std::abort();
}

struct Part {
  std::string name;
  std::optional<std::string> filename;
  std::string bytes;
  bool operator==(const Part&) const = default;
};

struct Reading {
  std::vector<Part> parts;
  std::optional<std::string> fault;
  bool operator==(const Reading&) const = default;
};

// `pieces` gives the lengths of the cuts, one per byte, repeated. Empty: no cuts.
Reading Read(std::string_view boundary, std::string_view body, std::string_view pieces) {
  Reading reading;
  bool is_open = false;
  MultipartParser parser(boundary, {[&](PartHead head) {
                                      Require(!is_open);
                                      is_open = true;
                                      reading.parts.push_back({head.name, head.filename, ""});
                                    },
                                    [&](std::string_view bytes) {
                                      Require(is_open && !bytes.empty());
                                      reading.parts.back().bytes += bytes;
                                    },
                                    [&] {
                                      Require(is_open);
                                      is_open = false;
                                    }});
  const size_t n_body = body.size();
  for (size_t i = 0; !body.empty(); ++i) {
    size_t n = body.size();
    if (!pieces.empty()) {
      const auto length = static_cast<unsigned char>(pieces[i % pieces.size()]);
      n = std::min(n, size_t{1} + length % 64);
    }
    parser.Feed(body.substr(0, n));
    body.remove_prefix(n);
  }
  parser.Finish();
  reading.fault = parser.fault();
  Require(reading.fault || !is_open);
  Require(reading.parts.size() <= MultipartParser::kMaxParts);
  size_t n_parts = 0;
  for (const Part& part : reading.parts) n_parts += part.bytes.size();
  Require(n_parts <= n_body);
  return reading;
}

}  // namespace
}  // namespace tandem::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem::server;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t end = bytes.find('\0');
  if (end == std::string_view::npos) return 0;
  const FormType type = ParseFormType(bytes.substr(0, end));
  const std::string boundary = type.boundary.value_or("abc");
  Require(!boundary.empty() && boundary.size() <= 70);
  const std::string_view body = bytes.substr(end + 1);
  const Reading whole = Read(boundary, body, {});
  Require(whole == Read(boundary, body, body));
  Require(whole == Read(boundary, body, std::string_view("\0", 1)));
  return 0;
}
