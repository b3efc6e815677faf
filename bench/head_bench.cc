#include "bench/head_bench.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/rows.h"
#include "training/ops/cross_entropy.h"

namespace tandem::bench {
namespace {

using engine::Bf16;
using engine::DType;

double SecondsOf(const std::function<void()>& work) {
  const auto from = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// Fills with small numbers that differ.
void FillBf16(AlignedBuffer& buffer) {
  auto* values = buffer.as<Bf16>();
  for (size_t i = 0; i < buffer.size() / sizeof(Bf16); ++i) {
    values[i] = Bf16(static_cast<float>(i * 2654435761U % 1013) * 1e-4F - 0.05F);
  }
}

class HeadBench {
 public:
  HeadBench(engine::OpsContext& ops, const HeadBenchOptions& options)
      : ops_(ops),
        options_(options),
        stride_(engine::RowStride(DType::kBF16, options.dim)),
        panels_(static_cast<size_t>(engine::PanelBytes(DType::kBF16, options.vocab, options.dim))),
        hidden_(static_cast<size_t>(options.rows * stride_) * sizeof(Bf16)),
        dhidden_(static_cast<size_t>(options.rows * options.dim) * sizeof(float)),
        dhead_(static_cast<size_t>(options.vocab * options.dim) * sizeof(float)),
        logits_(static_cast<size_t>(options.rows * options.vocab) * sizeof(float)),
        dz_(static_cast<size_t>(options.rows * engine::RowStride(DType::kBF16, options.vocab)) *
            sizeof(Bf16)),
        weights_(static_cast<size_t>(options.rows), 1.0F) {
    FillBf16(panels_);
    FillBf16(hidden_);
    FillBf16(dz_);
    for (int64_t r = 0; r < options.rows; ++r) {
      targets_.push_back(static_cast<TokenId>(r * 7919 % options.vocab));
    }
  }

  double Products(bool is_trained) {
    return SecondsOf([&] {
      engine::MatMul(ops_, Hidden(), Head(), nullptr, logits_.as<float>(), options_.vocab);
      engine::MatMulInputGrad(ops_, Gradient(), Head(), dhidden_.as<float>(), options_.dim, false);
      if (is_trained) {
        engine::MatMulWeightGrad(ops_, Gradient(), Hidden(), dhead_.as<float>(), true);
      }
    });
  }

  double Loss(bool is_trained) {
    return SecondsOf([&] {
      training::CrossEntropy(ops_, workspace_,
                             {.hidden = Hidden(),
                              .head = Head(),
                              .targets = targets_,
                              .weights = weights_,
                              .scale = 1 / static_cast<float>(options_.rows)},
                             dhidden_.as<float>(), is_trained ? dhead_.as<float>() : nullptr,
                             nullptr, nullptr);
    });
  }

  int64_t workspace_bytes() const { return workspace_.bytes(); }

 private:
  engine::ConstMatrix Hidden() const {
    return {hidden_.data(), DType::kBF16, options_.rows, options_.dim, stride_};
  }
  engine::PanelMatrix Head() const {
    return {panels_.data(), DType::kBF16, options_.vocab, options_.dim};
  }
  engine::ConstMatrix Gradient() const {
    return {dz_.data(), DType::kBF16, options_.rows, options_.vocab,
            engine::RowStride(DType::kBF16, options_.vocab)};
  }

  engine::OpsContext& ops_;
  const HeadBenchOptions& options_;
  const int64_t stride_;
  AlignedBuffer panels_, hidden_, dhidden_, dhead_, logits_, dz_;
  std::vector<float> weights_;
  std::vector<TokenId> targets_;
  training::CrossEntropyWorkspace workspace_;
};

}  // namespace

int RunHeadBench(std::ostream& out, const HeadBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  HeadBench bench(ops, options);
  char line[192];
  std::snprintf(line, sizeof line,
                "%lld words, width %lld, %lld rows, bf16, %d threads, %s; medians of %d rounds\n",
                static_cast<long long>(options.vocab), static_cast<long long>(options.dim),
                static_cast<long long>(options.rows), pool.n_threads(),
                std::string(ops.kernels().key).c_str(), options.rounds);
  out << line;
  for (const bool is_trained : {false, true}) {
    bench.Products(is_trained);  // touches every page
    bench.Loss(is_trained);
    std::vector<double> products;
    std::vector<double> loss;
    std::vector<double> ratios;
    for (int round = 0; round < options.rounds; ++round) {
      products.push_back(bench.Products(is_trained));
      loss.push_back(bench.Loss(is_trained));
      ratios.push_back(loss.back() / products.back());
    }
    std::snprintf(line, sizeof line,
                  "%-12s products %7.1f ms, loss and gradients %7.1f ms = %.2f x, %.0f MiB\n",
                  is_trained ? "trained head" : "frozen head", 1e3 * Median(products),
                  1e3 * Median(loss), Median(ratios),
                  static_cast<double>(bench.workspace_bytes()) / (1 << 20));
    out << line << std::flush;
  }
  return 0;
}

}  // namespace tandem::bench
