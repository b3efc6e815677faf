#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::training {

// Zeroed memory at a fixed address whose pages exist only from their first write until Drop. A
// shared anonymous mapping: a limit of the process's data (RLIMIT_DATA) counts pages of other kinds
// alone, so the reserved range may exceed it. Throws kUnavailable when no addresses are left.
class PagedMemory {
 public:
  PagedMemory() = default;
  explicit PagedMemory(int64_t bytes);
  ~PagedMemory();
  PagedMemory(PagedMemory&& other) noexcept;
  PagedMemory& operator=(PagedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  // Zeroes bytes [begin, end). Whole pages go back to the system. Any thread, while nobody else
  // uses these bytes.
  void Drop(int64_t begin, int64_t end);

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace tandem::training
