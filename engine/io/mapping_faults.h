#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tandem::engine {

// Reading a mapped page that the file has lost raises SIGBUS, which ends the process. Causes are
// truncation in place and failing disks. After SurviveMappingFaults, a fault in a watched range
// instead reads zeros from there to the end of the range and marks the watch damaged. Every reader
// of a watched range must check is_damaged before it uses the bytes. A watch that is made before
// SurviveMappingFaults has no effect and costs nothing.

// Watches one range of addresses during its lifetime. Any thread.
class MappingWatch {
 public:
  // REQUIRES: `range` begins on a page, covers whole pages and stays mapped during the watch's
  // lifetime. Throws kUnavailable when kMaxWatches have an effect.
  explicit MappingWatch(std::span<const std::byte> range);
  ~MappingWatch();
  MappingWatch(const MappingWatch&) = delete;
  MappingWatch& operator=(const MappingWatch&) = delete;

  static constexpr size_t kMaxWatches = 32768;

  // Whether a page of the range could not be read. Never becomes false again.
  bool is_damaged() const {
    return slot_ != nullptr && slot_->damaged.load(std::memory_order_relaxed);
  }

  // The signal handler reads these without a lock.
  struct Slot {
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: no range
    std::atomic<bool> damaged{false};
  };

 private:
  static Slot* Take();

  Slot* slot_;  // null: the handler was not installed
};

// Installs the SIGBUS handler, once per process, before the files that it shall cover are opened.
// Faults outside watched ranges keep the earlier
// action. A process without this call keeps it for every fault, so training and conversion never
// compute with zeros. exec does not inherit the handler.
void SurviveMappingFaults();

}  // namespace tandem::engine
