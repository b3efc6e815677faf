#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tandem::engine {

// Mean seconds of recent steps, by their rows. Rows that were not measured yet count like the
// nearest fewer ones that were, so that longer guesses are tried. They decide the speed only.
class StepTimes {
 public:
  static constexpr int64_t kMostRows = 64;

  // Ignores steps of more rows.
  void Observe(int64_t rows, double seconds) {
    if (rows < 1 || rows > kMostRows) return;
    double& mean = seconds_[static_cast<size_t>(rows)];
    mean = mean == 0 ? seconds : mean + kWeight * (seconds - mean);
  }

  // 0: not known. REQUIRES: rows >= 0.
  double At(int64_t rows) const {
    int64_t r = std::min(rows, kMostRows);
    while (r > 0 && seconds_[static_cast<size_t>(r)] == 0) --r;
    return seconds_[static_cast<size_t>(r)];
  }

 private:
  static constexpr double kWeight = 0.1;  // of the latest step
  std::array<double, kMostRows + 1> seconds_{};
};

// The probability that a guess is right when those before it were, from what was computed lately.
class AcceptanceRate {
 public:
  // The first `accepted` of `drafted` guesses were right. REQUIRES: drafted >= 1.
  void Observe(int64_t drafted, int64_t accepted) {
    // Guesses after the first wrong one say nothing.
    for (int64_t i = 0; i < std::min(drafted, accepted + 1); ++i) {
      rate_ += kWeight * ((i < accepted ? 1.0 : 0.0) - rate_);
    }
  }
  double rate() const { return rate_; }

 private:
  static constexpr double kWeight = 0.08;
  double rate_ = 0.7;  // before any guess
};

// Chooses how many tokens a draft model guesses for one sequence: the number with the most expected
// tokens per second. While that is none, it guesses one token now and then, to notice a change.
class GuessLength {
 public:
  static constexpr int64_t kFirst = 4;        // while no time is known
  static constexpr int64_t kProbeEvery = 48;  // tokens

  void Observe(int64_t drafted, int64_t accepted) { rate_.Observe(drafted, accepted); }
  double rate() const { return rate_.rate(); }

  // At most `most`. `target` times the steps that check guesses, `draft` a pass of the draft model,
  // both by rows; `n_sequences` run, and each is assumed to guess as many.
  int64_t Next(int64_t most, int64_t n_sequences, const StepTimes& target, const StepTimes& draft) {
    if (target.At(n_sequences) == 0 || draft.At(n_sequences) == 0) return std::min(most, kFirst);
    int64_t best = 0;
    double best_speed = 0;
    double tokens = 1;  // expected of one step
    double all_right = 1;
    for (int64_t n = 0; n <= most; ++n) {
      const double seconds =
          target.At(n_sequences * (1 + n)) + static_cast<double>(n) * draft.At(n_sequences);
      const double speed = tokens / seconds;
      if (speed > best_speed) {
        best = n;
        best_speed = speed;
      }
      all_right *= rate_.rate();
      tokens += all_right;
    }
    if (best > 0) {
      without_ = 0;
      return best;
    }
    if (++without_ < kProbeEvery) return 0;
    without_ = 0;
    return std::min<int64_t>(most, 1);
  }

 private:
  AcceptanceRate rate_;
  int64_t without_ = 0;  // decisions against guessing since the last guess
};

}  // namespace tandem::engine
