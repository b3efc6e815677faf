#pragma once

#include <cstddef>

namespace tandem::training {

// Told what an Executor computes next, in its thread. Positions count the program's nodes, the head
// included, and then its backward steps. A weight that a position uses must hold its values from
// Before to After.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // `training`: a backward pass follows.
  virtual void Begin(bool training) = 0;
  virtual void Before(size_t first, size_t end) = 0;
  virtual void After(size_t first, size_t end) = 0;
  virtual void End() = 0;
};

}  // namespace tandem::training
