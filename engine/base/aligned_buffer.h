#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace tandem {

// Owns 64-byte aligned, zeroed bytes. Large buffers are anonymous mappings that ask for huge pages,
// so untouched pages cost nothing. Throws kUnavailable when memory runs out.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);
  // Leaves `other` empty.
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::move(other.data_)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  std::span<std::byte> span() { return {data_.get(), size_}; }

  // Zeroes the bytes. A mapped buffer also returns its memory to the system until the next write.
  void Discard();

  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Release {
    // No initialiser: g++ 12 rejects it within AlignedBuffer. unique_ptr zeroes the member.
    size_t mapped_bytes;
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte[], Release> data_;
  size_t size_ = 0;
};

}  // namespace tandem
