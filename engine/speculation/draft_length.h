#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::engine {

// Adapts the length of one sequence's drafts to what the model accepted. A draft that was accepted
// whole doubles the next one; a wrong one shortens it. After repeated failures the sequence pauses
// for up to kLongestPause tokens. The length decides the speed only, never a token.
class DraftLength {
 public:
  static constexpr int64_t kFirst = 4;
  static constexpr int64_t kLongest = 16;
  static constexpr int64_t kLongestPause = 64;

  // Tokens of the next draft; 0: none now.
  int64_t Next() {
    if (pause_left_ > 0) {
      --pause_left_;
      return 0;
    }
    return length_;
  }

  // `accepted` of `drafted` tokens were right. REQUIRES: drafted >= 1.
  void Observe(int64_t drafted, int64_t accepted) {
    if (accepted == drafted) {
      // A short draft says nothing about a longer one that was not tried.
      length_ = std::min(kLongest, std::max(length_, 2 * drafted));
      pause_ = 0;
    } else if (accepted > 0) {
      length_ = accepted + 1;
      pause_ = 0;
    } else if (length_ > 1) {
      length_ /= 2;
    } else {
      pause_ = std::min(kLongestPause, std::max<int64_t>(2, 2 * pause_));
      pause_left_ = pause_;
    }
  }

 private:
  int64_t length_ = kFirst;
  int64_t pause_ = 0;  // tokens, of the last pause since an accepted draft
  int64_t pause_left_ = 0;
};

}  // namespace tandem::engine
