#pragma once

#include <new>

namespace tandem {

// Runs `action`. False when memory ran out within it: the action must then have left its data as it
// was, or as its caller can clean up. For destructors, threads and callbacks, which must not throw.
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
