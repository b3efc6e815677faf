#include "engine/sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/sampling/philox.h"

// How a draw works
//
// top_k, top_p and min_p each keep a prefix of the same order (IsBetter), so together they keep the
// shortest of the three prefixes. The last element describes a prefix, and selection finds it
// without sorting. The draw then walks the kept tokens in order of id until it reaches the random
// share of their mass.

namespace tandem::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kBan = -100;
constexpr float kRestrict = 100;
constexpr size_t kMassBlock = 1024;

// exp(x) for x <= 0, about 2 ulp, in plain arithmetic so that loops over it vectorise.
// Cephes' expf: x = n ln 2 + r, and a polynomial in r on [-ln2/2, ln2/2].
inline float ExpNonPositive(float x) {
  // Below -87 (and for NaN) the result is 0. A mask, because a conditional would keep the compiler
  // from vectorising: comparisons might trap.
  const int32_t keep = -static_cast<int32_t>(x > -87.0f);
  const float clamped = std::bit_cast<float>(std::bit_cast<int32_t>(x) & keep);
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer.
  const float shifted = clamped * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float e = p * (r * r) + r + 1.0f;
  const float scale = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return std::bit_cast<float>(std::bit_cast<int32_t>(e * scale) & keep);
}

// exp((v - best) / temperature) of a run of logits.
void Weights(const float* values, size_t n, float best, float inverse_temperature, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = ExpNonPositive((values[i] - best) * inverse_temperature);
}

// The sum of a block in 16 lanes; in a single running sum every addition would wait for the
// previous one.
double LaneSum(const float* weights, size_t n) {
  constexpr size_t kLanes = 16;
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += weights[i + j];
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (; i < n; ++i) sum += static_cast<double>(weights[i]);
  return sum;
}

// The mass of at most kMassBlock logits.
double BlockMass(const float* values, size_t n, float best, float inverse_temperature) {
  float weights[kMassBlock];
  Weights(values, n, best, inverse_temperature, weights);
  return LaneSum(weights, n);
}

// Computes the masses of all blocks of the row; returns their sum.
double RowMass(std::span<const float> row, float best, float inverse_temperature,
               std::vector<double>& block_masses) {
  block_masses.clear();
  double total = 0;
  for (size_t begin = 0; begin < row.size(); begin += kMassBlock) {
    const size_t n = std::min(kMassBlock, row.size() - begin);
    block_masses.push_back(BlockMass(&row[begin], n, best, inverse_temperature));
    total += block_masses.back();
  }
  return total;
}

// Sums weights by blocks; stores the block sums.
double BlockwiseSum(const std::vector<float>& weights, std::vector<double>& block_masses) {
  block_masses.clear();
  double total = 0;
  for (size_t begin = 0; begin < weights.size(); begin += kMassBlock) {
    block_masses.push_back(LaneSum(&weights[begin], std::min(kMassBlock, weights.size() - begin)));
    total += block_masses.back();
  }
  return total;
}

// The first element of `order` (best first) at which the cumulative mass reaches `target_mass`.
// Halves the range that holds it, so the work is linear. Rearranges `order`.
Candidate SelectByMass(std::span<Candidate> order, double target_mass, float best,
                       float inverse_temperature) {
  size_t low = 0;
  size_t high = order.size();
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const auto begin = order.begin() + static_cast<std::ptrdiff_t>(low);
    const auto split = order.begin() + static_cast<std::ptrdiff_t>(middle);
    std::nth_element(begin, split, order.begin() + static_cast<std::ptrdiff_t>(high), IsBetter);
    double probability_mass = 0;
    for (auto it = begin; it != split; ++it) {
      probability_mass +=
          static_cast<double>(ExpNonPositive((it->value - best) * inverse_temperature));
    }
    if (probability_mass >= target_mass) {
      high = middle;
    } else {
      target_mass -= probability_mass;
      low = middle;
    }
  }
  return order[low];
}

// The end of the nucleus: the last element of the shortest prefix of the candidates whose mass
// reaches `target_mass`. Sums the mass of equal slices of the value range first, then searches only
// the slice with the end.
Candidate NucleusEnd(std::span<const Candidate> candidates, std::span<const float> weights,
                     double target_mass, float best, float inverse_temperature,
                     std::vector<Candidate>& buffer) {
  constexpr size_t kSlices = 512;
  float lowest = best;
  for (const Candidate& c : candidates) lowest = c.value < lowest ? c.value : lowest;
  const float range = best - lowest;
  const float scale = range > 0 ? static_cast<float>(kSlices - 1) / range : 0;
  const auto slice_of = [&](const Candidate& c) {
    return std::min(kSlices - 1, static_cast<size_t>((best - c.value) * scale));
  };
  double masses[kSlices] = {};
  for (size_t i = 0; i < candidates.size(); ++i) {
    masses[slice_of(candidates[i])] += static_cast<double>(weights[i]);
  }
  // The end lies in the first slice that reaches the target. Rounding may put it just beyond the
  // last slice with mass; the last element is then the end.
  size_t slice = 0;
  size_t last_with_mass = 0;
  for (size_t i = 0; i < kSlices; ++i) last_with_mass = masses[i] > 0 ? i : last_with_mass;
  while (slice < last_with_mass && masses[slice] < target_mass) {
    target_mass -= masses[slice++];
  }
  buffer.clear();
  for (const Candidate& c : candidates) {
    if (slice_of(c) == slice) buffer.push_back(c);
  }
  return SelectByMass(buffer, target_mass, best, inverse_temperature);
}

// The block that holds the share `left` of the mass; reduces `left` to the share within the block.
size_t FindBlock(const std::vector<double>& block_masses, double& left) {
  size_t block = 0;
  while (block + 1 < block_masses.size() && left >= block_masses[block]) {
    left -= block_masses[block++];
  }
  return block;
}

// The first index from `begin` at which the cumulative weight exceeds `left`; -1 when all weights
// are 0. Rounding may leave a small rest beyond the last weight; the last possible index is then
// the result.
template <class WeightAt>
int64_t Walk(size_t begin, size_t end, double left, const WeightAt& weight_at) {
  int64_t last = -1;
  for (size_t i = begin; i < end; ++i) {
    const float weight = weight_at(i);
    if (!(weight > 0)) continue;
    last = static_cast<int64_t>(i);
    left -= static_cast<double>(weight);
    if (left < 0) break;
  }
  return last;
}

// Draws from the whole row; walks only the block that holds the share.
TokenId DrawFromRow(std::span<const float> row, float best, float inverse_temperature, double u,
                    SamplerScratch& scratch) {
  double left = u * RowMass(row, best, inverse_temperature, scratch.block_masses);
  const size_t block = FindBlock(scratch.block_masses, left);
  const int64_t index = Walk(block * kMassBlock, row.size(), left, [&](size_t i) {
    return ExpNonPositive((row[i] - best) * inverse_temperature);
  });
  return index >= 0 ? static_cast<TokenId>(index) : Best(row).id;
}

// Draws an index by the given weights.
int64_t DrawIndex(const std::vector<float>& weights, double u, SamplerScratch& scratch) {
  double left = u * BlockwiseSum(weights, scratch.block_masses);
  const size_t block = FindBlock(scratch.block_masses, left);
  return Walk(block * kMassBlock, weights.size(), left, [&](size_t i) { return weights[i]; });
}

void ApplyMask(std::span<const uint32_t> mask, std::vector<float>& row) {
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == ~uint32_t{0}) continue;
    const size_t begin = word * 32;
    if (begin >= row.size()) break;
    const size_t n = std::min<size_t>(32, row.size() - begin);
    float* const values = &row[begin];
    if (mask[word] == 0) {
      std::fill_n(values, n, kMinusInfinity);
      continue;
    }
    // Without branches, so that it compiles to vector instructions.
    for (size_t i = 0; i < n; ++i) {
      values[i] = (mask[word] >> i & 1) != 0 ? values[i] : kMinusInfinity;
    }
  }
}

// Lists the allowed tokens, ascending. Returns false if they are too many to be worth a list.
bool ListAllowed(std::span<const uint32_t> mask, size_t vocab_size, std::vector<TokenId>& ids) {
  constexpr size_t kMostListed = 1024;
  ids.clear();
  for (size_t word = 0; word < mask.size() && word * 32 < vocab_size; ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const size_t id = word * 32 + static_cast<size_t>(std::countr_zero(bits));
      if (id < vocab_size) ids.push_back(static_cast<TokenId>(id));
    }
    if (ids.size() > kMostListed) return false;
  }
  return true;
}

}  // namespace

Sampler::Sampler(SamplingParams params, int choice, std::span<const TokenId> prompt)
    : params_(std::move(params)),
      choice_(choice),
      counts_tokens_(params_.presence_penalty != 0 || params_.frequency_penalty != 0 ||
                     params_.repetition_penalty != 1),
      restricts_(std::any_of(params_.logit_bias.begin(), params_.logit_bias.end(),
                             [](const auto& entry) { return entry.second >= kRestrict; })) {
  if (params_.repetition_penalty == 1) return;
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  seen_.reserve(ids.size());
  for (const TokenId id : ids) seen_.push_back({id, 0});
}

void Sampler::Accept(TokenId token) {
  if (!counts_tokens_) return;
  const auto where = std::lower_bound(seen_.begin(), seen_.end(), token,
                                      [](const Seen& seen, TokenId id) { return seen.id < id; });
  if (where != seen_.end() && where->id == token) {
    ++where->generated;
  } else {
    seen_.insert(where, {token, 1});
  }
}

// Applies bias, penalties and bans to the entries of a row, which holds the logits.
// `entry(id)` points to the token's; null: the row does not have the token.
template <class Entry>
void Sampler::AdjustEntries(std::span<const float> logits, std::span<const TokenId> banned,
                            std::vector<float>& row, const Entry& entry) const {
  if (restricts_) std::fill(row.begin(), row.end(), kMinusInfinity);
  for (const auto& [id, bias] : params_.logit_bias) {
    float* const value = entry(id);
    if (value == nullptr) continue;
    if (bias >= kRestrict) {
      *value = logits[static_cast<size_t>(id)];
    } else {
      *value = bias <= kBan ? kMinusInfinity : *value + bias;
    }
  }
  for (const Seen& seen : seen_) {
    float* const value = entry(seen.id);
    if (value == nullptr) continue;
    // CTRL (Keskar et al., 2019): moves the value towards minus infinity on either side of zero.
    *value = *value > 0 ? *value / params_.repetition_penalty : *value * params_.repetition_penalty;
    if (seen.generated == 0) continue;
    *value -= params_.presence_penalty;
    *value -= params_.frequency_penalty * static_cast<float>(seen.generated);
  }
  for (const TokenId id : banned) {
    if (float* const value = entry(id)) *value = kMinusInfinity;
  }
}

// The row after bias, penalties and bans: a copy if any of them applies, otherwise the logits.
std::span<const float> Sampler::Adjust(std::span<const float> logits,
                                       std::span<const TokenId> banned,
                                       std::span<const uint32_t> mask,
                                       SamplerScratch& scratch) const {
  if (params_.logit_bias.empty() && seen_.empty() && banned.empty() && mask.empty()) return logits;
  std::vector<float>& row = scratch.row;
  row.assign(logits.begin(), logits.end());
  AdjustEntries(logits, banned, row, [&](TokenId id) { return &row[static_cast<size_t>(id)]; });
  ApplyMask(mask, row);
  return row;
}

// Likewise the row of the listed tokens alone.
std::span<const float> Sampler::AdjustListed(std::span<const float> logits,
                                             std::span<const TokenId> banned,
                                             SamplerScratch& scratch) const {
  const std::vector<TokenId>& ids = scratch.allowed;
  std::vector<float>& row = scratch.row;
  row.clear();
  for (const TokenId id : ids) row.push_back(logits[static_cast<size_t>(id)]);
  AdjustEntries(logits, banned, row, [&](TokenId id) -> float* {
    const auto where = std::lower_bound(ids.begin(), ids.end(), id);
    return where != ids.end() && *where == id ? &row[static_cast<size_t>(where - ids.begin())]
                                              : nullptr;
  });
  return row;
}

// A mask that allows few tokens makes the draw cheaper than a free one: it reads only these.
TokenId Sampler::Sample(std::span<const float> logits, int64_t position,
                        std::span<const TokenId> banned, SamplerScratch& scratch,
                        std::span<const uint32_t> mask) const {
  if (mask.empty() || !ListAllowed(mask, logits.size(), scratch.allowed)) {
    return Draw(Adjust(logits, banned, mask, scratch), position, scratch);
  }
  if (scratch.allowed.empty()) return -1;
  const TokenId index = Draw(AdjustListed(logits, banned, scratch), position, scratch);
  return index < 0 ? -1 : scratch.allowed[static_cast<size_t>(index)];
}

TokenId Sampler::Draw(std::span<const float> row, int64_t position, SamplerScratch& scratch) const {
  if (params_.greedy()) return Best(row).id;
  const ScannedRow scanned = Scan(row, scratch.run_maxima);
  const Candidate best = scanned.best;
  if (best.id < 0 || best.value == std::numeric_limits<float>::infinity()) return best.id;

  const float inverse_temperature = 1 / params_.temperature;
  const double u = UniformDraw(params_.seed, choice_, position);
  const bool has_top_k = params_.top_k > 0 && params_.top_k < static_cast<int64_t>(row.size());
  const bool has_top_p = params_.top_p < 1;
  if (!has_top_k && !has_top_p && params_.min_p <= 0) {
    return DrawFromRow(row, best.value, inverse_temperature, u, scratch);
  }

  Candidate prefix_end = kNoCut;
  if (has_top_k) prefix_end = KthBest(scanned, params_.top_k, scratch.buffer);

  // Tokens below this weight cannot matter: together they weigh less than the mass that top_p
  // drops. (0.99 covers the rounding of the sums.)
  float smallest_weight = params_.min_p > 0 ? params_.min_p : 0;
  double total_mass = 0;
  if (has_top_p && !has_top_k) {
    total_mass = RowMass(row, best.value, inverse_temperature, scratch.block_masses);
    const double spare = (1 - static_cast<double>(params_.top_p)) * total_mass;
    smallest_weight = std::max(smallest_weight,
                               static_cast<float>(0.99 * spare / static_cast<double>(row.size())));
  }
  // With top_k, the kept mass counts all k tokens, so none may be dropped before.
  const float at_least = has_top_k || smallest_weight <= 0
                             ? kMinusInfinity
                             : best.value +
                                   std::log(smallest_weight) * params_.temperature * 1.0001f -
                                   1e-5f * (1 + std::abs(best.value));
  std::vector<Candidate>& candidates = scratch.candidates;
  std::vector<float>& weights = scratch.weights;
  // Gathers the entries of at least `value` and their weights; returns the sum of weights.
  const auto gather = [&](float value) {
    Gather(scanned, prefix_end, value, candidates);
    weights.resize(candidates.size());
    for (size_t i = 0; i < candidates.size(); ++i) {
      weights[i] = (candidates[i].value - best.value) * inverse_temperature;
    }
    for (float& weight : weights) weight = ExpNonPositive(weight);
    return BlockwiseSum(weights, scratch.block_masses);
  };
  // In a peaked row the nucleus ends far above the smallest weight that could matter. If the
  // entries above a higher bar have enough mass, they contain the end, and the rest is never
  // gathered.
  double gathered_mass = -1;
  if (has_top_p && !has_top_k) {
    for (const float reach : {8.0f, 12.0f}) {
      const float bar = best.value - reach * params_.temperature;
      if (!(bar > at_least)) break;
      gathered_mass = gather(bar);
      if (gathered_mass >= static_cast<double>(params_.top_p) * total_mass) break;
      gathered_mass = -1;
    }
  }
  if (gathered_mass < 0) gathered_mass = gather(at_least);
  if (has_top_p) {
    if (has_top_k) total_mass = gathered_mass;
    prefix_end = NucleusEnd(candidates, weights, static_cast<double>(params_.top_p) * total_mass,
                            best.value, inverse_temperature, scratch.buffer);
  }

  // A product instead of a branch, which would be unpredictable where about half of the tokens are
  // kept.
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    const bool in_cut =
        (c.value > prefix_end.value) | ((c.value == prefix_end.value) & (c.id <= prefix_end.id));
    weights[i] *= static_cast<float>(in_cut & (weights[i] >= params_.min_p));
  }
  const int64_t index = DrawIndex(weights, u, scratch);
  return index >= 0 ? candidates[static_cast<size_t>(index)].id : best.id;
}

}  // namespace tandem::engine
