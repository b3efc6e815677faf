#include "engine/kv/state_cache.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

size_t StateCacheBytes(int64_t floats_per_state, int64_t n_states) {
  TANDEM_CHECK(floats_per_state >= 0 && n_states >= 0);
  const char* what = "states of recurrent layers in bytes";
  const int64_t floats = CheckedMul(floats_per_state, n_states, what);
  return static_cast<size_t>(CheckedMul<int64_t>(floats, sizeof(float), what));
}

}  // namespace

StateCache::StateCache(int64_t floats_per_state, int64_t n_states)
    : floats_per_state_(floats_per_state),
      n_states_(n_states),
      bytes_(StateCacheBytes(floats_per_state, n_states)) {}

float* StateCache::At(StateId id) {
  TANDEM_CHECK(static_cast<int64_t>(id.value) < n_states_);
  return bytes_.as<float>() + static_cast<int64_t>(id.value) * floats_per_state_;
}

void StateCache::Copy(StateId from, StateId to) {
  TANDEM_CHECK(from != to);
  std::copy_n(At(from), floats_per_state_, At(to));
}

}  // namespace tandem::engine
