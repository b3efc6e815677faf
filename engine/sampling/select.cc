#include "engine/sampling/select.h"

#include <algorithm>

namespace tandem::engine {
namespace {

// Values are looked at in runs of this many: one vector comparison tells whether a run holds
// anything of interest, and for a peaked distribution hardly any does.
constexpr size_t kRun = 64;

// Ordered comparisons, so a NaN never wins. The lanes are explicit because the compiler may not
// reorder a maximum by itself.
float RunMax(const float* values, size_t n) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) {
      lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
  }
  for (; i < n; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
  float best = lanes[0];
  for (size_t j = 1; j < kLanes; ++j) best = lanes[j] > best ? lanes[j] : best;
  return best;
}

}  // namespace

Candidate Best(std::span<const float> values) {
  constexpr size_t kBlock = 4096;
  float best = -std::numeric_limits<float>::infinity();
  size_t best_begin = values.size();
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const float block_best = RunMax(&values[begin], std::min(kBlock, values.size() - begin));
    if (block_best > best) {
      best = block_best;
      best_begin = begin;
    }
  }
  if (best_begin == values.size()) return {best, -1};
  size_t i = best_begin;
  while (values[i] != best) ++i;
  return {best, static_cast<TokenId>(i)};
}

Candidate KthBest(std::span<const float> values, int64_t k, std::vector<Candidate>& buffer) {
  // Keeps up to 2k candidates; whenever they are that many, the worse half goes and the bar rises.
  // A later entry equal to the bar is never among the best: its id is higher.
  const auto keep = static_cast<size_t>(k);
  const size_t limit = std::max<size_t>(2 * keep, 256);
  buffer.clear();
  float bar = -std::numeric_limits<float>::infinity();
  const auto shrink = [&] {
    std::nth_element(buffer.begin(), buffer.begin() + static_cast<std::ptrdiff_t>(keep) - 1,
                     buffer.end(), IsBetter);
    buffer.resize(keep);
    bar = buffer.back().value;
  };
  for (size_t begin = 0; begin < values.size(); begin += kRun) {
    const size_t end = std::min(begin + kRun, values.size());
    if (!(RunMax(&values[begin], end - begin) > bar)) continue;
    for (size_t i = begin; i < end; ++i) {
      if (!(values[i] > bar)) continue;
      buffer.push_back({values[i], static_cast<TokenId>(i)});
      if (buffer.size() >= limit) shrink();
    }
  }
  if (buffer.size() > keep) shrink();
  if (buffer.empty()) return {bar, -1};
  // max_element finds what nothing is worse than, since IsBetter puts better ones first.
  return *std::max_element(buffer.begin(), buffer.end(), IsBetter);
}

void Gather(std::span<const float> values, const Candidate& last, float at_least,
            std::vector<Candidate>& out) {
  const float floor =
      std::max({last.value, at_least, std::numeric_limits<float>::lowest()});  // never -inf
  size_t n_out = 0;
  for (size_t begin = 0; begin < values.size(); begin += kRun) {
    const size_t end = std::min(begin + kRun, values.size());
    if (!(RunMax(&values[begin], end - begin) >= floor)) continue;
    if (out.size() < n_out + kRun) out.resize(std::max(2 * out.size(), n_out + kRun));
    // Always written, counted if wanted: in a flat distribution a branch could not be predicted.
    for (size_t i = begin; i < end; ++i) {
      const Candidate candidate{values[i], static_cast<TokenId>(i)};
      out[n_out] = candidate;
      const bool in_cut =
          (values[i] > last.value) | ((values[i] == last.value) & (candidate.id <= last.id));
      n_out += static_cast<size_t>((values[i] >= floor) & in_cut);
    }
  }
  out.resize(n_out);
}

}  // namespace tandem::engine
