#include "tests/out_of_memory/failing_new.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <thread>

namespace {

std::atomic<int64_t> allocations_left{0};  // until one fails; 0: none fails
thread_local bool is_spared = false;

bool Fails() {
  if (is_spared || allocations_left.load(std::memory_order_relaxed) <= 0) return false;
  return allocations_left.fetch_sub(1) == 1;
}

void* Allocate(size_t bytes) {
  void* memory = Fails() ? nullptr : std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* Allocate(size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  void* memory = Fails() ? nullptr : std::aligned_alloc(align, (bytes + align) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// The nothrow forms and the array forms call these.
void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t alignment) { return Allocate(bytes, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tandem::tests {

FailAllocation::FailAllocation(int64_t k) { ::allocations_left = k; }
FailAllocation::~FailAllocation() { ::allocations_left = 0; }
bool FailAllocation::has_failed() const { return ::allocations_left <= 0; }
int64_t FailAllocation::allocations_left() const {
  return std::max<int64_t>(0, ::allocations_left - 1);
}

SpareThisThread::SpareThisThread() { is_spared = true; }
SpareThisThread::~SpareThisThread() { is_spared = false; }

namespace {

TEST(FailAllocationTest, TheKthAllocationFailsAndNoOther) {
  const FailAllocation failure(2);
  ::operator delete(::operator new(8));
  EXPECT_EQ(failure.allocations_left(), 0);
  EXPECT_THROW(::operator delete(::operator new(8)), std::bad_alloc);
  EXPECT_TRUE(failure.has_failed());
  ::operator delete(::operator new(8));
}

TEST(FailAllocationTest, ASparedThreadNeitherCountsNorFails) {
  const FailAllocation failure(1);
  {
    const SpareThisThread spared;
    ::operator delete(::operator new(8));
  }
  EXPECT_FALSE(failure.has_failed());
}

}  // namespace
}  // namespace tandem::tests
