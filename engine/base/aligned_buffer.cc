#include "engine/base/aligned_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "engine/base/check.h"

namespace tandem {
namespace {

// Smaller buffers would waste more of a mapping than they gain.
constexpr size_t kMapThresholdBytes = 4u << 20;

[[noreturn]] void ThrowOutOfMemory(size_t bytes) {
  throw Error(ErrorCode::kUnavailable,
              "out of memory: could not allocate " + std::to_string(bytes) + " bytes")
      .WithReason("out_of_memory");
}

}  // namespace

void AlignedBuffer::Release::operator()(std::byte* bytes) const {
  if (mapped_bytes > 0) {
    munmap(bytes, mapped_bytes);
  } else {
    std::free(bytes);
  }
}

void AlignedBuffer::Discard() {
  const size_t mapped = data_.get_deleter().mapped_bytes;
  // madvise fails for locked pages only; then zeroing remains.
  if (mapped > 0 && madvise(data_.get(), mapped, MADV_DONTNEED) == 0) return;
  if (size_ > 0) std::memset(data_.get(), 0, size_);
}

AlignedBuffer::AlignedBuffer(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes > static_cast<size_t>(PTRDIFF_MAX) - 4096) ThrowOutOfMemory(bytes);
  if (bytes >= kMapThresholdBytes) {
    const size_t mapped = RoundUp<size_t>(bytes, 4096);
    void* at = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) ThrowOutOfMemory(bytes);
    // Advice only: the buffer works without huge pages.
    madvise(at, mapped, MADV_HUGEPAGE);
    data_ = {static_cast<std::byte*>(at), Release{mapped}};
    return;
  }
  const size_t rounded = RoundUp<size_t>(bytes, 64);
  void* at = std::aligned_alloc(64, rounded);
  if (at == nullptr) ThrowOutOfMemory(bytes);
  std::memset(at, 0, rounded);
  data_ = {static_cast<std::byte*>(at), Release{}};
}

}  // namespace tandem
