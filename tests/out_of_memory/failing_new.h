#pragma once

#include <cstdint>

namespace tandem::tests {

// Makes the k-th allocation (from 1) by operator new of any thread fail during its lifetime. One
// object at a time. This program replaces operator new for that.
class FailAllocation {
 public:
  explicit FailAllocation(int64_t k);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;

  // True after the k-th allocation was requested and failed.
  bool has_failed() const;
  // How many more allocations succeed before the k-th; 0 after it has failed.
  int64_t allocations_left() const;
};

// Allocations of this thread neither count nor fail: for a test that observes other threads.
class SpareThisThread {
 public:
  SpareThisThread();
  ~SpareThisThread();
  SpareThisThread(const SpareThisThread&) = delete;
  SpareThisThread& operator=(const SpareThisThread&) = delete;
};

}  // namespace tandem::tests
