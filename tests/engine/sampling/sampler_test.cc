#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "engine/sampling/logprobs.h"
#include "engine/sampling/philox.h"

namespace tandem::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomLogits(std::mt19937_64& random, size_t n, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& value : logits) value = normal(random);
  return logits;
}

// The rules of engine/sampling/README.md, naively: sort everything, keep prefixes. `probabilities`
// has every token that may be drawn. `sharp` is false if a border is too close for single
// precision.
struct Naive {
  std::map<TokenId, double> probabilities;
  bool sharp = true;
};

Naive NaiveDistribution(std::vector<float> row, const SamplingParams& params,
                        const std::vector<TokenId>& prompt, const std::vector<TokenId>& generated,
                        const std::vector<TokenId>& banned) {
  const bool restricts = std::any_of(params.logit_bias.begin(), params.logit_bias.end(),
                                     [](const auto& entry) { return entry.second >= 100; });
  const std::vector<float> raw = row;
  if (restricts) std::fill(row.begin(), row.end(), -kInf);
  for (const auto& [id, bias] : params.logit_bias) {
    const auto i = static_cast<size_t>(id);
    row[i] = bias >= 100 ? raw[i] : bias <= -100 ? -kInf : row[i] + bias;
  }
  std::set<TokenId> all(prompt.begin(), prompt.end());
  all.insert(generated.begin(), generated.end());
  if (params.repetition_penalty != 1) {
    for (const TokenId id : all) {
      float& value = row[static_cast<size_t>(id)];
      value = value > 0 ? value / params.repetition_penalty : value * params.repetition_penalty;
    }
  }
  std::map<TokenId, int> counts;
  for (const TokenId id : generated) ++counts[id];
  for (const auto& [id, count] : counts) {
    row[static_cast<size_t>(id)] -= params.presence_penalty;
    row[static_cast<size_t>(id)] -= params.frequency_penalty * static_cast<float>(count);
  }
  for (const TokenId id : banned) row[static_cast<size_t>(id)] = -kInf;

  std::vector<TokenId> order;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] > -kInf) order.push_back(static_cast<TokenId>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
  });
  Naive naive;
  if (order.empty()) return naive;
  if (params.greedy()) {
    naive.probabilities[order[0]] = 1;
    return naive;
  }
  const auto weight = [&](TokenId id) {
    return std::exp((static_cast<double>(row[static_cast<size_t>(id)]) -
                     static_cast<double>(row[static_cast<size_t>(order[0])])) /
                    static_cast<double>(params.temperature));
  };
  if (params.top_k > 0) {
    order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  }
  double total = 0;
  for (const TokenId id : order) total += weight(id);
  if (params.top_p < 1) {
    const double target = static_cast<double>(params.top_p) * total;
    double sum = 0;
    size_t kept = 0;
    while (kept < order.size() && sum < target) {
      sum += weight(order[kept++]);
      if (std::abs(sum - target) < 1e-5 * total) naive.sharp = false;
    }
    order.resize(kept);
  }
  if (params.min_p > 0) {
    std::erase_if(order, [&](TokenId id) {
      const double w = weight(id);
      if (std::abs(w - static_cast<double>(params.min_p)) < 1e-5) naive.sharp = false;
      return w < static_cast<double>(params.min_p);
    });
  }
  double kept = 0;
  for (const TokenId id : order) kept += weight(id);
  for (const TokenId id : order) naive.probabilities[id] = weight(id) / kept;
  return naive;
}

// The token whose interval of the inverse distribution, in order of ids, contains u; -1 at a
// border.
TokenId NaiveDraw(const Naive& naive, double u) {
  double low = 0;
  for (const auto& [id, probability] : naive.probabilities) {
    const double high = low + probability;
    if (u < high - 1e-5) return u > low + 1e-5 || low == 0 ? id : -1;
    if (u < high + 1e-5 && high < 1 - 1e-5) return -1;
    if (u < high) return id;
    low = high;
  }
  return -1;
}

TEST(Sampler, EqualsTheNaiveImplementation) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 4000; ++seed) {
    std::mt19937_64 random(seed);
    const auto pick = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    const auto uniform = [&] { return std::uniform_real_distribution<float>(0, 1)(random); };
    const auto n = static_cast<size_t>(pick(0, 9) == 0 ? pick(1000, 9000) : pick(1, 400));
    std::vector<float> logits = RandomLogits(random, n, pick(0, 1) == 0 ? 1.0f : 4.0f);
    if (pick(0, 2) == 0) {
      for (float& value : logits) value = std::round(value);  // many ties
    }
    const auto token = [&] { return static_cast<TokenId>(pick(0, static_cast<int>(n) - 1)); };
    SamplingParams params;
    params.seed = random();
    params.temperature = pick(0, 9) == 0 ? 0.0f : 0.1f + 1.9f * uniform();
    if (pick(0, 1) == 0) params.top_k = pick(1, 60);
    if (pick(0, 1) == 0) params.top_p = uniform();
    if (pick(0, 2) == 0) params.min_p = uniform() * 0.3f;
    if (pick(0, 3) == 0) params.presence_penalty = uniform() * 4 - 2;
    if (pick(0, 3) == 0) params.frequency_penalty = uniform() * 4 - 2;
    if (pick(0, 3) == 0) params.repetition_penalty = 0.5f + uniform();
    std::set<TokenId> biased;
    for (int i = pick(0, 3) == 0 ? pick(1, 12) : 0; i > 0; --i) biased.insert(token());
    const float bias_choices[] = {-100, 100, -3, 5, 0.5f};
    const bool may_restrict = pick(0, 1) == 0;
    for (const TokenId id : biased) {
      float bias = bias_choices[pick(0, 4)];
      if (bias == 100 && !may_restrict) bias = 1;
      params.logit_bias.emplace_back(id, bias);
    }
    std::vector<TokenId> prompt, generated, banned;
    for (int i = pick(1, 20); i > 0; --i) prompt.push_back(token());
    for (int i = pick(0, 20); i > 0; --i) generated.push_back(token());
    for (int i = pick(0, 5) == 0 ? 2 : 0; i > 0; --i) banned.push_back(token());

    const int choice = pick(0, 3);
    Sampler sampler(params, choice, prompt);
    for (const TokenId id : generated) sampler.Accept(id);
    SamplerScratch scratch;
    const Naive naive = NaiveDistribution(logits, params, prompt, generated, banned);

    for (int64_t position = 0; position < 4; ++position) {
      const TokenId drawn = sampler.Sample(logits, position, banned, scratch);
      if (naive.probabilities.empty()) {
        ASSERT_EQ(drawn, -1) << "seed " << seed;
        continue;
      }
      ASSERT_GE(drawn, 0) << "seed " << seed;
      if (!naive.sharp) continue;
      ASSERT_TRUE(naive.probabilities.contains(drawn)) << "seed " << seed << " token " << drawn;
      const TokenId expected = params.greedy()
                                   ? naive.probabilities.begin()->first
                                   : NaiveDraw(naive, UniformDraw(params.seed, choice, position));
      if (expected < 0) continue;
      ASSERT_EQ(drawn, expected) << "seed " << seed << " position " << position;
      ++compared;
    }
  }
  EXPECT_GT(compared, 12000);
}

TEST(Sampler, GreedyTakesTheLowestIdOfEqualLogits) {
  SamplingParams params;
  params.temperature = 0;
  SamplerScratch scratch;
  std::vector<float> logits(1000, 1.5f);
  logits[0] = 0;

  EXPECT_EQ(Sampler(params, 0, {}).Sample(logits, 0, {}, scratch), 1);
}

TEST(Sampler, DrawDependsOnSeedChoiceAndPositionOnly) {
  std::mt19937_64 random(7);
  const std::vector<float> logits = RandomLogits(random, 500, 1);
  SamplingParams params;
  params.seed = 11;
  SamplerScratch scratch, other_scratch;
  const Sampler a(params, 0, {}), b(params, 0, {}), other_choice(params, 1, {});
  (void)b.Sample(RandomLogits(random, 9000, 1), 3, {}, other_scratch);

  int equal = 0;
  for (int64_t position = 0; position < 100; ++position) {
    const TokenId token = a.Sample(logits, position, {}, scratch);
    EXPECT_EQ(token, b.Sample(logits, position, {}, other_scratch));
    equal += token == other_choice.Sample(logits, position, {}, scratch) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);
}

// Pearson's chi-square of 40,000 draws against the softmax, for plain, top-k and top-p. At 19
// degrees of freedom, 43.8 is the 0.1 % point. The fixed seed makes the result reproducible.
TEST(Sampler, DrawsFollowTheDistribution) {
  std::mt19937_64 random(3);
  const std::vector<float> logits = RandomLogits(random, 20, 1);
  for (const int path : {0, 1, 2}) {
    SamplingParams params;
    params.seed = 99;
    params.temperature = 1.3f;
    if (path == 1) params.top_k = 19;
    if (path == 2) params.top_p = 0.95f;
    const Sampler sampler(params, 0, {});
    const Naive naive = NaiveDistribution(logits, params, {}, {}, {});
    SamplerScratch scratch;
    std::map<TokenId, int> counts;
    constexpr int kDraws = 40000;
    for (int i = 0; i < kDraws; ++i) ++counts[sampler.Sample(logits, i, {}, scratch)];

    double chi_square = 0;
    for (const auto& [id, probability] : naive.probabilities) {
      const double expected = probability * kDraws;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    EXPECT_LT(chi_square, 43.8) << "path " << path;
    EXPECT_EQ(counts.size(), naive.probabilities.size());
  }
}

TEST(Sampler, HugeVocabularyFlatOrPeaked) {
  constexpr size_t kVocab = 262144;
  std::mt19937_64 random(5);
  for (const float spread : {0.0f, 0.01f, 6.0f}) {
    const std::vector<float> logits = RandomLogits(random, kVocab, spread);
    for (int path = 0; path < 5; ++path) {
      SamplingParams params;
      params.seed = 1;
      if (path == 1) params.top_p = 0.9f;
      if (path == 2) params.top_k = 50;
      if (path == 3) params.min_p = 0.05f;
      if (path == 4) params.top_k = 200000;
      SamplerScratch scratch;
      const TokenId token = Sampler(params, 0, {}).Sample(logits, 1, {}, scratch);
      EXPECT_GE(token, 0);
      EXPECT_LT(token, static_cast<TokenId>(kVocab));
      if (path == 2 && spread > 0) {
        const auto better = std::count_if(logits.begin(), logits.end(), [&](float value) {
          return value > logits[static_cast<size_t>(token)];
        });
        EXPECT_LT(better, 50);
      }
    }
  }
}

TEST(Sampler, BrokenLogitsGiveNoToken) {
  SamplingParams params;
  SamplerScratch scratch;
  const std::vector<float> nan(100, std::nanf(""));

  EXPECT_EQ(Sampler(params, 0, {}).Sample(nan, 0, {}, scratch), -1);
}

TEST(Philox, EqualsThePublishedVectors) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({~0u, ~0u, ~0u, ~0u}, ~0ULL),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822ULL),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(ScoreToken, RanksAndAlternativesEqualASortedVocabulary) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    const size_t n = 1 + random() % 3000;
    std::vector<float> logits = RandomLogits(random, n, 2);
    if (seed % 2 == 0) {
      for (float& value : logits) value = std::round(value);
    }
    std::vector<TokenId> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    const auto token = static_cast<TokenId>(random() % n);
    const int n_top = static_cast<int>(random() % 21);
    ScoreScratch scratch;

    const ScoredToken scored = ScoreToken(logits, 1.25f, token, n_top, scratch);

    EXPECT_EQ(scored.logprob, logits[static_cast<size_t>(token)] - 1.25f);
    EXPECT_EQ(order[static_cast<size_t>(scored.rank - 1)], token) << "seed " << seed;
    ASSERT_EQ(scored.top.size(), std::min(n, static_cast<size_t>(n_top))) << "seed " << seed;
    for (size_t i = 0; i < scored.top.size(); ++i) {
      EXPECT_EQ(scored.top[i].first, order[i]) << "seed " << seed;
    }
  }
}

TEST(Sampler, DrawsOnlyTokensOfTheMask) {
  SamplingParams params;
  params.seed = 4;
  const std::vector<float> logits(100, 0.5f);
  std::vector<uint32_t> mask(4);
  for (const int id : {3, 31, 32, 70, 99}) mask[static_cast<size_t>(id) / 32] |= 1u << (id % 32);
  SamplerScratch scratch;
  std::set<TokenId> drawn;
  for (int i = 0; i < 500; ++i) {
    drawn.insert(Sampler(params, 0, {}).Sample(logits, i, {}, scratch, mask));
  }

  EXPECT_EQ(drawn, (std::set<TokenId>{3, 31, 32, 70, 99}));
}

TEST(Sampler, ASparseMaskDrawsAsIfTheOtherLogitsWereMinusInfinity) {
  constexpr size_t kVocab = 5000;
  std::mt19937 random(18);
  std::normal_distribution<float> normal(0, 2);
  SamplerScratch scratch;
  for (int i = 0; i < 300; ++i) {
    SamplingParams params;
    params.seed = static_cast<uint64_t>(i);
    params.temperature = i % 5 == 0 ? 0.0f : 1.3f;
    if (i % 3 == 0) params.top_k = 7;
    if (i % 4 == 0) params.top_p = 0.8f;
    if (i % 7 == 0) params.min_p = 0.05f;
    if (i % 2 == 0) params.repetition_penalty = 1.2f;
    const size_t n_allowed = i % 11 == 0 ? 1 : 1 + random() % 900;
    std::vector<float> logits(kVocab), masked(kVocab, -std::numeric_limits<float>::infinity());
    for (float& logit : logits) logit = normal(random);
    std::vector<uint32_t> mask((kVocab + 31) / 32);
    std::vector<TokenId> allowed;
    for (size_t k = 0; k < n_allowed; ++k) {
      const size_t id = random() % kVocab;
      mask[id / 32] |= 1u << (id % 32);
      masked[id] = logits[id];
      allowed.push_back(static_cast<TokenId>(id));
    }
    if (i % 6 == 0) params.logit_bias.emplace_back(allowed.front(), 1.5f);
    if (i % 13 == 0) params.logit_bias.emplace_back(allowed.back(), 100.0f);
    const std::vector<TokenId> banned = {allowed[allowed.size() / 2], 3};
    const Sampler sampler(params, 0, allowed);

    EXPECT_EQ(sampler.Sample(logits, 9, banned, scratch, mask),
              sampler.Sample(masked, 9, banned, scratch))
        << "seed " << i;
  }
}

TEST(Sampler, AnEmptyMaskOrABanOfTheWholeMaskDrawsNothing) {
  const std::vector<float> logits(40, 1.0f);
  std::vector<uint32_t> mask(2);
  SamplerScratch scratch;
  EXPECT_EQ(Sampler({}, 0, {}).Sample(logits, 0, {}, scratch, mask), -1);

  mask[1] = 1;
  const std::vector<TokenId> banned = {32};
  EXPECT_EQ(Sampler({}, 0, {}).Sample(logits, 0, {}, scratch, mask), 32);
  EXPECT_EQ(Sampler({}, 0, {}).Sample(logits, 0, banned, scratch, mask), -1);
}

}  // namespace
}  // namespace tandem::engine
