#pragma once

#include <cstdint>
#include <deque>

namespace tandem::training {

// What becomes of a step whose loss or gradient is NaN or infinite. The weights are never touched.
enum class OnNan {
  kAbort,     // the run ends with an error
  kRollback,  // back to the last checkpoint; the data goes on behind this step's
  kSkip,      // the next step
};

// MaxText's skip_step_on_spikes.
struct SpikeOptions {
  bool enabled = false;
  int64_t window = 128;  // steps that are compared with
  double factor = 6;     // standard deviations above their mean
};

// Says which steps are spikes: those whose loss or gradient norm exceeds mean + factor * standard
// deviation (Bessel's) of the steps before, once half a window of them is known. Every step enters
// the window, a spike too: what lasts is a new level and no spike.
class SpikeGuard {
 public:
  struct State {
    std::deque<double> losses;
    std::deque<double> norms;
  };

  explicit SpikeGuard(const SpikeOptions& options) : options_(options) {}

  // Whether this step's update is to be left out. Both values are finite.
  bool IsSpike(double loss, double grad_norm);

  const State& state() const { return state_; }
  void Restore(State state) { state_ = std::move(state); }

 private:
  SpikeOptions options_;
  State state_;
};

}  // namespace tandem::training
