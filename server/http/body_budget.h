#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace tandem::server {

// Bounds the total memory of all request bodies of one server. Thread-safe.
class BodyBudget {
 public:
  // Bodies up to this size are not counted, so that large bodies cannot shut out ordinary requests.
  static constexpr size_t kFreeBytes = 16 << 10;
  static constexpr size_t kBurstBytes = 8 << 20;

  explicit BodyBudget(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  size_t used_bytes() const { return used_bytes_; }
  bool HasRoomFor(size_t bytes) const;
  // Whether at least kBurstBytes were freed since this function last returned true.
  bool TakeBurst();

 private:
  friend class BodyShare;
  bool TryTake(size_t bytes);
  void GiveBack(size_t bytes);

  const size_t limit_bytes_;
  std::atomic<size_t> used_bytes_{0};
  std::atomic<size_t> given_back_bytes_{0};  // since TakeBurst last returned true
};

// The part of the budget that one body uses, until destruction. One thread at a time.
class BodyShare {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget) : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->GiveBack(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // Raises the share to a body of `bytes` in total. False without a change if the budget has no
  // room.
  bool GrowTo(size_t bytes);

 private:
  const std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace tandem::server
