#pragma once

#include <cstdint>
#include <deque>

namespace tandem::training {

// Reaction to a step whose loss or gradient is NaN or infinite. Its update is never applied.
enum class OnNan {
  kAbort,     // ends the run with an error
  kRollback,  // restores the last checkpoint; the data continues after this step's
  kSkip,      // continues with the next step
};

// MaxText's skip_step_on_spikes.
struct SpikeOptions {
  bool enabled = false;
  int64_t window = 128;  // number of earlier steps to compare with
  double factor = 6;     // standard deviations above their mean
};

// Detects spikes: steps whose loss or gradient norm exceeds mean + factor * standard deviation
// (Bessel's) of the earlier steps in the window. Needs half a window of steps, and at least 2.
// Every step enters the window, spikes too, because a lasting change is a new level.
class SpikeGuard {
 public:
  struct State {
    std::deque<double> losses;
    std::deque<double> norms;
  };

  explicit SpikeGuard(const SpikeOptions& options) : options_(options) {}

  // Whether to skip this step's update. Both values must be finite.
  bool IsSpike(double loss, double grad_norm);

  const State& state() const { return state_; }
  void Restore(State state) { state_ = std::move(state); }

 private:
  SpikeOptions options_;
  State state_;
};

}  // namespace tandem::training
