#include "training/optim/guards.h"

#include <algorithm>
#include <cmath>

namespace tandem::training {
namespace {

bool IsAbove(const std::deque<double>& before, double value, double factor) {
  const auto n = static_cast<double>(before.size());
  double mean = 0;
  for (const double x : before) mean += x / n;
  double squares = 0;
  for (const double x : before) squares += (x - mean) * (x - mean);
  return value > mean + factor * std::sqrt(squares / (n - 1));
}

void Push(std::deque<double>* window, double value, int64_t size) {
  window->push_back(value);
  while (static_cast<int64_t>(window->size()) > size) window->pop_front();
}

}  // namespace

bool SpikeGuard::IsSpike(double loss, double grad_norm) {
  if (!options_.enabled) return false;
  const auto known = static_cast<int64_t>(std::min(state_.losses.size(), state_.norms.size()));
  const bool spike = known >= std::max<int64_t>(2, options_.window / 2) &&
                     (IsAbove(state_.losses, loss, options_.factor) ||
                      IsAbove(state_.norms, grad_norm, options_.factor));
  Push(&state_.losses, loss, options_.window);
  Push(&state_.norms, grad_norm, options_.window);
  return spike;
}

}  // namespace tandem::training
