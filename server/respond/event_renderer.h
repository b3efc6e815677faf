#pragma once

#include <cstddef>
#include <functional>

#include "engine/engine.h"

namespace tandem::server {

// Turns the events of one HTTP request into its answer. One thread at a time.
class EventRenderer {
 public:
  virtual ~EventRenderer() = default;
  // See GenerationReply::Begin.
  virtual void Begin(std::function<void()> cancel, std::function<void(bool)> set_paused) = 0;
  virtual void On(size_t prompt_idx, engine::GenerationEvent event) = 0;
  // Whether a silent stream gets pings from SendPing instead of comment lines. Constant.
  virtual bool has_pings() const { return false; }
  virtual void SendPing() {}
};

}  // namespace tandem::server
