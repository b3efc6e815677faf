#pragma once

#include <cstdint>

#include "engine/base/aligned_buffer.h"
#include "engine/base/ids.h"

namespace tandem::engine {

using StateId = Id<struct StateTag>;

// The bytes of the states of recurrent layers: [slot][floats_per_state] f32. Initially zero (an
// untouched page costs nothing). Only the engine thread's step writes them.
class StateCache {
 public:
  // `floats_per_state` is 0 for models without state; then the cache is empty.
  StateCache(int64_t floats_per_state, int64_t n_states);

  float* At(StateId id);
  void Copy(StateId from, StateId to);
  int64_t n_states() const { return n_states_; }
  int64_t bytes() const { return static_cast<int64_t>(bytes_.size()); }
  // Zeroes every state and returns the memory to the system until states are written again.
  void Discard() { bytes_.Discard(); }

 private:
  int64_t floats_per_state_;
  int64_t n_states_;
  AlignedBuffer bytes_;
};

}  // namespace tandem::engine
