#include "engine/sampling/select.h"

#include <algorithm>

namespace tandem::engine {
namespace {

// Ordered comparisons, so a NaN never wins. Lanes are explicit because the compiler may not reorder
// a maximum.
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
  // A tree; a chain of comparisons would wait for each previous one.
  for (size_t half = kLanes / 2; half > 0; half /= 2) {
    for (size_t j = 0; j < half; ++j) {
      lanes[j] = lanes[j + half] > lanes[j] ? lanes[j + half] : lanes[j];
    }
  }
  return lanes[0];
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

ScannedRow Scan(std::span<const float> values, std::vector<float>& run_maxima) {
  const size_t n_runs = (values.size() + kScanRun - 1) / kScanRun;
  run_maxima.resize(n_runs);
  float best = -std::numeric_limits<float>::infinity();
  size_t best_run = n_runs;
  for (size_t run = 0; run < n_runs; ++run) {
    const size_t begin = run * kScanRun;
    const float maximum = RunMax(&values[begin], std::min(kScanRun, values.size() - begin));
    run_maxima[run] = maximum;
    best_run = maximum > best ? run : best_run;
    best = maximum > best ? maximum : best;
  }
  if (best_run == n_runs) return {values, run_maxima, {best, -1}};
  size_t i = best_run * kScanRun;
  while (values[i] != best) ++i;
  return {values, run_maxima, {best, static_cast<TokenId>(i)}};
}

Candidate KthBest(const ScannedRow& row, int64_t k, std::vector<Candidate>& buffer) {
  // Keeps up to 2k candidates; at 2k it drops the worse half and raises the bar. A later entry
  // equal to the bar is never among the best: its id is higher.
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
  for (size_t run = 0; run < row.run_maxima.size(); ++run) {
    if (!(row.run_maxima[run] > bar)) continue;
    const size_t end = std::min((run + 1) * kScanRun, row.values.size());
    for (size_t i = run * kScanRun; i < end; ++i) {
      if (!(row.values[i] > bar)) continue;
      buffer.push_back({row.values[i], static_cast<TokenId>(i)});
      if (buffer.size() >= limit) shrink();
    }
  }
  if (buffer.size() > keep) shrink();
  if (buffer.empty()) return {bar, -1};
  // max_element returns the worst candidate, since IsBetter orders better ones first.
  return *std::max_element(buffer.begin(), buffer.end(), IsBetter);
}

void Gather(const ScannedRow& row, const Candidate& last, float at_least,
            std::vector<Candidate>& out) {
  const std::span<const float> values = row.values;
  const float floor =
      std::max({last.value, at_least, std::numeric_limits<float>::lowest()});  // never -inf
  size_t n_out = 0;
  for (size_t run = 0; run < row.run_maxima.size(); ++run) {
    if (!(row.run_maxima[run] >= floor)) continue;
    const size_t begin = run * kScanRun;
    const size_t end = std::min(begin + kScanRun, values.size());
    if (out.size() < n_out + kScanRun) out.resize(std::max(2 * out.size(), n_out + kScanRun));
    // Written always, counted if it qualifies: in a flat distribution a branch would be
    // unpredictable.
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
