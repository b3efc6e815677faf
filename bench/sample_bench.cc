#include "bench/sample_bench.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/base/aligned_buffer.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sampler.h"

namespace tandem::bench {
namespace {

using engine::Sampler;
using engine::SamplerScratch;
using engine::SamplingParams;
constexpr size_t kRows = 64;

// Makes model-like logits: normal noise, and in peaked rows a handful of likely tokens.
AlignedBuffer MakeRows(size_t vocab, bool peaked) {
  AlignedBuffer bytes(kRows * vocab * sizeof(float));
  auto* const logits = bytes.as<float>();
  std::mt19937 rng(11);
  std::normal_distribution<float> normal(0, peaked ? 2.0f : 0.5f);
  for (size_t i = 0; i < kRows * vocab; ++i) logits[i] = normal(rng);
  if (!peaked) return bytes;
  for (size_t row = 0; row < kRows; ++row) {
    for (size_t rank = 0; rank < 40; ++rank) {
      logits[row * vocab + rng() % vocab] = 18 - static_cast<float>(std::log2(1.0 + rank));
    }
  }
  return bytes;
}

struct SampleCase {
  const char* name;
  SamplingParams params;
  int n_top = -1;
};

SamplingParams Params(float temperature, int top_k, float top_p) {
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.seed = 7;
  return params;
}

std::vector<SampleCase> Cases(size_t vocab) {
  SamplingParams penalties = Params(1, 0, 1);
  penalties.presence_penalty = 0.5f;
  penalties.repetition_penalty = 1.1f;
  SamplingParams bias = Params(1, 0, 1);
  for (size_t i = 0; i < 300; ++i) {
    bias.logit_bias.emplace_back(static_cast<TokenId>(i * vocab / 300), -1.0f);
  }
  return {{"greedy", Params(0, 0, 1)},
          {"temperature", Params(1, 0, 1)},
          {"top_k 40, top_p 0.95", Params(0.8f, 40, 0.95f)},
          {"top_p 0.95", Params(1, 0, 0.95f)},
          {"penalties over 500 tokens", penalties},
          {"logit_bias of 300 tokens", bias},
          {"greedy, 5 top_logprobs", Params(0, 0, 1), 5}};
}

// Returns this thread's processor time; draws never wait.
double CpuMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// Returns milliseconds per row.
double Time(const std::function<void(size_t)>& draw) {
  const double from = CpuMilliseconds();
  for (size_t row = 0; row < kRows; ++row) draw(row);
  return (CpuMilliseconds() - from) / kRows;
}

float SumOf(std::span<const float> row) {
  float lanes[32] = {};
  for (size_t i = 0; i + 32 <= row.size(); i += 32) {
    for (size_t j = 0; j < 32; ++j) lanes[j] += row[i + j];
  }
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace

int RunSampleBench(std::ostream& out, const SampleBenchOptions& options) {
  const auto vocab = static_cast<size_t>(options.vocab_size);
  std::vector<TokenId> prompt;
  for (size_t i = 0; i < 500; ++i) prompt.push_back(static_cast<TokenId>(i * vocab / 500));
  volatile float kept = 0;  // forces the reads
  char line[160];
  for (const bool peaked : {true, false}) {
    const AlignedBuffer bytes = MakeRows(vocab, peaked);
    const auto row_of = [&](size_t row) {
      return std::span<const float>(bytes.as<float>() + row * vocab, vocab);
    };
    std::snprintf(line, sizeof line, "%s rows of %zu logits, one thread, medians of %d rounds\n",
                  peaked ? "peaked" : "flat", vocab, options.rounds);
    out << line;
    for (const SampleCase& one : Cases(vocab)) {
      const Sampler sampler(one.params, 0, prompt);
      SamplerScratch scratch;
      std::vector<double> ours;
      std::vector<double> ratios;
      for (int round = 0; round < options.rounds + 1; ++round) {
        const double pass = Time([&](size_t row) { kept = kept + SumOf(row_of(row)); });
        const double draw = Time([&](size_t row) {
          const TokenId token = sampler.Sample(row_of(row), 1, {}, scratch);
          if (one.n_top >= 0) {
            // The cost of log-sum-exp belongs to the model's step, not to the sampler.
            kept =
                kept + engine::ScoreToken(row_of(row), 0, token, one.n_top, scratch.score).logprob;
          }
          kept = kept + static_cast<float>(token);
        });
        if (round == 0) continue;  // page faults
        ours.push_back(draw);
        ratios.push_back(draw / pass);
      }
      std::snprintf(line, sizeof line, "  %-28s %.3f ms/token = %.1f x one pass over the row\n",
                    one.name, Median(ours), Median(ratios));
      out << line << std::flush;
    }
  }
  return 0;
}

}  // namespace tandem::bench
