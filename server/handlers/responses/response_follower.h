#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "server/http/response_writer.h"
#include "server/responses/background_response.h"

namespace tandem::server {

// Streams the events of a background response: first those that exist, then the new ones. A client
// that reads slowly pauses its own stream only. Runs on the answer thread; each turn sends one
// page.
class ResponseFollower : public std::enable_shared_from_this<ResponseFollower> {
 public:
  // Begins with event number `from`.
  static void Start(std::shared_ptr<BackgroundResponse> response, size_t from,
                    ResponseWriter writer);

 private:
  ResponseFollower(std::shared_ptr<BackgroundResponse> response, size_t from,
                   ResponseWriter writer);
  void PostTurn();
  void Turn();

  const std::shared_ptr<BackgroundResponse> response_;
  size_t next_;
  const ResponseWriter writer_;
  std::optional<EventStream> stream_;  // before the first turn
  std::shared_ptr<std::function<void()>> on_change_;
  std::atomic<bool> is_paused_{false};
  bool is_done_ = false;
};

}  // namespace tandem::server
