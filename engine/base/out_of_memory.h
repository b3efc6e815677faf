#pragma once

#include <new>

namespace tandem {

// Runs `action` and returns false when it throws std::bad_alloc. The action must then leave its
// data unchanged, or in a state that the caller can clean up. For destructors, threads and
// callbacks, which must not throw.
template <class Action>
bool HasMemoryFor(Action&& action) {
  try {
    action();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace tandem
