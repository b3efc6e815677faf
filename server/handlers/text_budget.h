#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

namespace tandem::server {

// Bounds the text that one request makes the trainer's encoder render and tokenise, and ends the
// encoding when the request is over. Spend is its EncoderOptions::is_cancelled. Thread-safe if
// `is_over` is.
class TextBudget {
 public:
  TextBudget(int64_t n_bytes, std::function<bool()> is_over)
      : left_(n_bytes), is_over_(std::move(is_over)) {}

  // Returns true if the encoding must end.
  bool Spend(int64_t n_bytes) { return (left_ -= n_bytes) < 0 || is_over_(); }
  // Whether more text was spent than the budget held.
  bool is_exceeded() const { return left_ < 0; }

 private:
  std::atomic<int64_t> left_;
  const std::function<bool()> is_over_;
};

}  // namespace tandem::server
