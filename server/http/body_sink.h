#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tandem::server {

struct Request;

// Takes the body of one request while it arrives, for routes whose bodies must not be held in
// memory. When the whole body has been written the request is handled, with the sink in
// Request::body_sink; a sink that goes without that was left by its client, and what it holds is to
// be forgotten. (The second implementation is the tests'.)
class BodySink {
 public:
  virtual ~BodySink() = default;
  // The next bytes, in order. Runs on an io thread: it may not wait, and it may not throw; a fault
  // is kept for the handler. False: enough for now. The connection then reads no more until it is
  // told that there is room.
  virtual bool Write(std::string_view bytes) = 0;
};

// Begins to take a body. Runs on an io thread, once the head of the request has passed the gate.
// `has_room` may be called from any thread after a Write that returned false. What it throws
// refuses the request, whose body is then read past.
using OpenBody =
    std::function<std::shared_ptr<BodySink>(const Request& head, std::function<void()> has_room)>;

}  // namespace tandem::server
