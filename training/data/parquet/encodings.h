#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "training/data/parquet/place.h"

// Encodings of values within a page. The readers consume a span from the front and compare every
// length with the remaining bytes before use. They throw kDataLoss.
namespace tandem::training {

// Takes the bytes of a page from the front.
class PageBytes {
 public:
  PageBytes(std::span<const std::byte> bytes, const ParquetPlace& place)
      : left_(bytes), place_(&place) {}

  std::span<const std::byte> Take(uint64_t n, const char* what);
  uint32_t Length(const char* what);  // 4 bytes
  template <class T>
  T Value(const char* what) {
    T value;
    std::memcpy(&value, Take(sizeof(T), what).data(), sizeof(T));
    return value;
  }
  std::span<const std::byte> rest() const { return left_; }

 private:
  std::span<const std::byte> left_;
  const ParquetPlace* place_;
};

// Decodes a mix of runs of one value and bit-packed groups of eight: levels, dictionary indices and
// booleans.
class HybridReader {
 public:
  // `place` must outlive the reader. Throws for a width above 32.
  HybridReader(std::span<const std::byte> bytes, int bit_width, const ParquetPlace& place,
               const char* what);

  // Calls on_run(value, n) for runs and single values until `count` values are read. Throws for a
  // value above `max_value`.
  template <class OnRun>
  void Read(uint64_t count, uint32_t max_value, OnRun&& on_run) {
    while (count > 0) {
      if (run_left_ == 0 && packed_left_ == 0) NextRun();
      if (run_left_ > 0) {
        const uint64_t n = run_left_ < count ? run_left_ : count;
        if (run_value_ > max_value) FailValue(run_value_, max_value);
        on_run(run_value_, n);
        run_left_ -= n;
        count -= n;
        continue;
      }
      for (; packed_left_ > 0 && count > 0; --packed_left_, --count) {
        const uint32_t value = NextPacked();
        if (value > max_value) FailValue(value, max_value);
        on_run(value, uint64_t{1});
      }
    }
  }

 private:
  void NextRun();
  uint32_t NextPacked() {
    while (n_bits_ < bit_width_) {
      bits_ |= std::to_integer<uint64_t>(packed_[packed_at_++]) << n_bits_;
      n_bits_ += 8;
    }
    const auto value = static_cast<uint32_t>(bits_ & mask_);
    bits_ >>= bit_width_;
    n_bits_ -= bit_width_;
    return value;
  }
  [[noreturn]] void Fail(const std::string& problem) const;
  [[noreturn]] void FailValue(uint32_t value, uint32_t max_value) const;

  std::span<const std::byte> left_;
  const ParquetPlace& place_;
  const char* what_;
  int bit_width_;
  uint64_t mask_ = 0;
  uint64_t run_left_ = 0;
  uint32_t run_value_ = 0;
  std::span<const std::byte> packed_;
  size_t packed_at_ = 0;
  uint64_t packed_left_ = 0;  // values
  uint64_t bits_ = 0;
  int n_bits_ = 0;
};

// Number of bits for values up to `max_value`; 0 for 0.
int BitWidth(uint32_t max_value);

}  // namespace tandem::training
