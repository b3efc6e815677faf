#include "training/data/parquet/encodings.h"

#include <algorithm>
#include <bit>

namespace tandem::training {

static_assert(std::endian::native == std::endian::little, "the format's numbers are little endian");

std::span<const std::byte> PageBytes::Take(uint64_t n, const char* what) {
  if (n > left_.size()) {
    place_->Broken("a page ends within " + std::string(what) + ": " + std::to_string(n) +
                   " bytes are declared, " + std::to_string(left_.size()) + " are left");
  }
  const auto part = left_.first(static_cast<size_t>(n));
  left_ = left_.subspan(part.size());
  return part;
}

uint32_t PageBytes::Length(const char* what) { return Value<uint32_t>(what); }

HybridReader::HybridReader(std::span<const std::byte> bytes, int bit_width,
                           const ParquetPlace& place, const char* what)
    : left_(bytes), place_(place), what_(what), bit_width_(bit_width) {
  if (bit_width < 0 || bit_width > 32) {
    Fail("have a declared width of " + std::to_string(bit_width) + " bits");
  }
  mask_ = (uint64_t{1} << bit_width) - 1;
}

void HybridReader::Fail(const std::string& problem) const {
  place_.Broken("a page's " + std::string(what_) + " " + problem);
}

void HybridReader::FailValue(uint32_t value, uint32_t max_value) const {
  Fail("hold " + std::to_string(value) + ", beyond " + std::to_string(max_value));
}

void HybridReader::NextRun() {
  uint64_t header = 0;
  for (int shift = 0;; shift += 7) {
    if (left_.empty()) Fail("end early");
    const auto byte = std::to_integer<uint8_t>(left_.front());
    left_ = left_.subspan(1);
    header |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
    if (shift == 28) Fail("have a run of more than 2^32 values");
  }
  const uint64_t n = header >> 1;
  if (n == 0) Fail("have an empty run");
  if ((header & 1) != 0) {
    // Groups of eight. Some writers truncate the last group after its used values.
    const auto width = static_cast<uint64_t>(bit_width_);
    const uint64_t bytes = std::min<uint64_t>(n * width, left_.size());
    packed_left_ = width == 0 ? n * 8 : bytes * 8 / width;
    if (packed_left_ == 0) Fail("end early");
    packed_ = left_.first(static_cast<size_t>(bytes));
    packed_at_ = 0;
    bits_ = 0;
    n_bits_ = 0;
    left_ = left_.subspan(packed_.size());
    return;
  }
  const auto value_bytes = static_cast<size_t>((bit_width_ + 7) / 8);
  if (value_bytes > left_.size()) Fail("end early");
  run_value_ = 0;
  for (size_t i = 0; i < value_bytes; ++i) {
    run_value_ |= std::to_integer<uint32_t>(left_[i]) << (8 * i);
  }
  left_ = left_.subspan(value_bytes);
  run_left_ = n;
}

int BitWidth(uint32_t max_value) { return static_cast<int>(std::bit_width(max_value)); }

}  // namespace tandem::training
