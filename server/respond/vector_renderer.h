#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/response_writer.h"
#include "server/respond/event_renderer.h"

namespace tandem::server {

// The answer to one request for embeddings, scores or a ranking.
struct VectorAnswer {
  size_t n_prompts = 0;
  std::string request_id;
  // Both run on the answer thread. `take` gets the numbers of each prompt, in any order: its pooled
  // hidden state, or the log-probabilities of its `next_tokens`. `body` runs once after the last
  // and returns the body of the answer.
  std::function<void(size_t prompt_idx, const std::vector<float>& values)> take;
  std::function<std::string()> body;
  // As in ReplyShape; Embed sets both.
  std::function<void(std::string_view reason)> on_prompt_end;
  std::shared_ptr<const void> keeps_alive;
};

// Collects the numbers of all prompts into one JSON body. If one prompt fails, the answer fails.
class VectorRenderer final : public EventRenderer {
 public:
  VectorRenderer(VectorAnswer answer, ResponseWriter writer);

  void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) override;
  void On(size_t prompt_idx, engine::GenerationEvent event) override;

 private:
  void Finish(const engine::RequestFinished& finished);

  VectorAnswer answer_;
  const ResponseWriter writer_;
  size_t n_open_;
  std::function<void()> cancel_;
  bool is_done_ = false;
};

}  // namespace tandem::server
