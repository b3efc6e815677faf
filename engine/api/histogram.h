#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

// Counts of values in fixed buckets. A plain value: copy it to read it on another thread.
class Histogram {
 public:
  // `bounds` ascend. Bucket i counts the values in (bounds[i-1], bounds[i]], the last bucket all
  // larger ones. Borrows `bounds`, which must outlive every copy.
  explicit Histogram(std::span<const double> bounds)
      : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Observe(double value) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value);
    ++counts_[static_cast<size_t>(bucket - bounds_.begin())];
    sum_ += value;
  }
  // REQUIRES: the same bounds.
  void Add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    sum_ += other.sum_;
  }

  std::span<const double> bounds() const { return bounds_; }
  std::span<const uint64_t> counts() const { return counts_; }  // one more than bounds
  double sum() const { return sum_; }
  uint64_t total() const {
    uint64_t total = 0;
    for (const uint64_t count : counts_) total += count;
    return total;
  }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

}  // namespace tandem
