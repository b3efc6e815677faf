#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/http/response_writer.h"
#include "server/respond/reply_shape.h"

namespace tandem::server {

class EventRenderer;

// Turns the events of one HTTP request (one engine request per prompt) into one JSON body or an
// event stream. Sinks run on the engine thread and only queue. Everything else runs on the answer
// thread, so only the queue needs a lock.
class GenerationReply : public std::enable_shared_from_this<GenerationReply> {
 public:
  static std::shared_ptr<GenerationReply> Create(ReplyShape shape, ResponseWriter writer);
  static std::shared_ptr<GenerationReply> Create(std::unique_ptr<EventRenderer> renderer,
                                                 ResponseWriter writer);
  ~GenerationReply();
  GenerationReply(const GenerationReply&) = delete;
  GenerationReply& operator=(const GenerationReply&) = delete;

  // The sink for Engine::Submit of prompt `prompt_idx`. It keeps the reply alive.
  engine::EventSink Sink(size_t prompt_idx);

  // Call once, after every prompt was admitted. Before that nothing is sent, so a refusal still has
  // its own status. `cancel` and `set_paused` act on all of the engine requests.
  void Begin(std::function<void()> cancel, std::function<void(bool paused)> set_paused);

 private:
  GenerationReply(std::unique_ptr<EventRenderer> renderer, ResponseWriter writer);

  void Queue(size_t prompt_idx, engine::GenerationEvent event);
  void Drain();

  const ResponseWriter writer_;
  std::unique_ptr<EventRenderer> renderer_;

  std::mutex mutex_;  // guards the rest
  bool begun_ = false;
  std::vector<std::pair<size_t, engine::GenerationEvent>> events_;
};

// Returns a new random id with the prefix ("chatcmpl-").
std::string NewObjectId(const std::string& prefix);

}  // namespace tandem::server
