#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace tandem::server {

struct Request;

// Receives the body of one request while it arrives, for routes whose bodies must not be held in
// memory. After the last byte the handler runs, with the sink in Request::body_sink. A sink
// destroyed earlier belongs to a client that left: it discards its data. (Tests have the second
// implementation.)
class BodySink {
 public:
  virtual ~BodySink() = default;
  // Takes the next bytes, in order. Runs on the io thread: it must not block or throw, and keeps a
  // fault for the handler. Returns false if it is full; the connection then stops reading until
  // `has_room` is called.
  virtual bool Write(std::string_view bytes) = 0;
};

// Opens a sink. Runs on the io thread, after the request's head has passed the gate. Any thread may
// call `has_room` after a Write that returned false. An exception refuses the request, and its body
// is read and dropped.
using OpenBody =
    std::function<std::shared_ptr<BodySink>(const Request& head, std::function<void()> has_room)>;

}  // namespace tandem::server
