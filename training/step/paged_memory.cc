#include "training/step/paged_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem::training {
namespace {

int64_t PageBytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

}  // namespace

PagedMemory::PagedMemory(int64_t bytes) : size_(bytes) {
  TANDEM_CHECK(bytes >= 0);
  if (bytes == 0) return;
  void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    throw Error(ErrorCode::kUnavailable,
                "out of memory: could not reserve " + std::to_string(bytes) + " bytes")
        .WithReason("out_of_memory");
  }
  data_ = static_cast<std::byte*>(at);
}

PagedMemory::~PagedMemory() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
}

PagedMemory::PagedMemory(PagedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PagedMemory& PagedMemory::operator=(PagedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void PagedMemory::Drop(int64_t begin, int64_t end) {
  TANDEM_CHECK(0 <= begin && begin <= end && end <= size_);
  const auto zero = [this](int64_t from, int64_t to) {
    if (from < to) std::memset(data_ + from, 0, static_cast<size_t>(to - from));
  };
  const int64_t first = std::min(end, RoundUp(begin, PageBytes()));
  const int64_t last = std::max(first, end / PageBytes() * PageBytes());
  zero(begin, first);
  zero(last, end);
  if (first == last) return;
  if (madvise(data_ + first, static_cast<size_t>(last - first), MADV_REMOVE) != 0) {
    zero(first, last);  // a system without it: the memory stays
  }
}

}  // namespace tandem::training
