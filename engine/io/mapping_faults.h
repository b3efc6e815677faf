#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::engine {

// Reading a page of a mapped file that the file has lost raises SIGBUS, which ends the process. The
// loss is a truncation in place or a failing disk. After SurviveMappingFaults, such a fault inside
// a watched range reads zeros from there to the end of the range instead, and the watch says so.
// Every reader of a watched range must then ask is_damaged before it trusts what it read.

// Watches one range of addresses while it lives. Any thread.
class MappingWatch {
 public:
  // REQUIRES: `range` begins on a page and covers whole pages; it stays mapped while the watch
  // lives. Throws kResourceExhausted when kMaxWatches are alive.
  explicit MappingWatch(std::span<const std::byte> range);
  ~MappingWatch();
  MappingWatch(const MappingWatch&) = delete;
  MappingWatch& operator=(const MappingWatch&) = delete;

  static constexpr size_t kMaxWatches = 32768;

  // Whether a page of the range could not be read. Never becomes false again.
  bool is_damaged() const { return slot_.damaged.load(std::memory_order_relaxed); }

  // The signal handler reads these without a lock.
  struct Slot {
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: no range
    std::atomic<bool> damaged{false};
  };

 private:
  static Slot& Take();

  Slot& slot_;
};

// Installs the handler of SIGBUS, once per process. Faults outside watched ranges keep the action
// that was there before. A process that does not call this keeps that action for every fault, so
// training and conversion never compute with zeros. A program that is started by exec begins
// without the handler.
void SurviveMappingFaults();

}  // namespace tandem::engine
