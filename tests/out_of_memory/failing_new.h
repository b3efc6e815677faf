#pragma once

#include <cstdint>

namespace tandem::tests {

// Makes one allocation by operator new fail, the k-th (from 1) that any thread asks for while this
// lives. One at a time. This program replaces operator new for that.
class FailAllocation {
 public:
  explicit FailAllocation(int64_t k);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;

  // The k-th allocation has been asked for, and has failed.
  bool has_failed() const;
};

// Allocations of this thread neither count nor fail: those of a test that watches others.
class SpareThisThread {
 public:
  SpareThisThread();
  ~SpareThisThread();
  SpareThisThread(const SpareThisThread&) = delete;
  SpareThisThread& operator=(const SpareThisThread&) = delete;
};

}  // namespace tandem::tests
