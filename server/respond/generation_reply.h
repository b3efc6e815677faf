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

class ReplyRenderer;

// Turns the events of one HTTP request (one engine request per prompt) into one JSON body or an
// event stream. Sinks are called on the engine thread and only queue; everything else happens on
// the connection's strand, so no state here needs a lock but the queue.
class GenerationReply : public std::enable_shared_from_this<GenerationReply> {
 public:
  // `cancel_rest` ends what still runs when one prompt has failed.
  static std::shared_ptr<GenerationReply> Create(ReplyShape shape, ResponseWriter writer);
  ~GenerationReply();
  GenerationReply(const GenerationReply&) = delete;
  GenerationReply& operator=(const GenerationReply&) = delete;

  // For Engine::Submit of prompt `prompt_idx`. The sink keeps the reply alive.
  engine::EventSink Sink(size_t prompt_idx);

  // Called once every prompt has been admitted: from now on events are answered. Before it, nothing
  // is sent, so a refusal still has its own status. `cancel` and `set_paused` reach the requests.
  void Begin(std::function<void()> cancel, std::function<void(bool paused)> set_paused);

 private:
  GenerationReply(ReplyShape shape, ResponseWriter writer);

  void Queue(size_t prompt_idx, engine::GenerationEvent event);
  void Drain();

  const ResponseWriter writer_;
  std::unique_ptr<ReplyRenderer> renderer_;

  std::mutex mutex_;  // guards the rest
  bool begun_ = false;
  std::vector<std::pair<size_t, engine::GenerationEvent>> events_;
};

// A new id with the prefix ("chatcmpl-"), unique with overwhelming probability.
std::string NewObjectId(const std::string& prefix);

}  // namespace tandem::server
