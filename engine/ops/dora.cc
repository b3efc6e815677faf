#include "engine/ops/dora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {
namespace {

constexpr int64_t kRowsAtOnce = 256;  // of W in f32
constexpr int64_t kSums = 16;

// The rows of a matrix as f32, row-major.
void ReadRows(OpsContext& ops, const PanelMatrix& w, int64_t first, int64_t count, float* out) {
  std::vector<TokenId> ids(static_cast<size_t>(count));
  std::iota(ids.begin(), ids.end(), static_cast<TokenId>(first));
  GatherRows(ops, w, ids, out, w.k);
}

double Length(const float* row, int64_t n) {
  std::array<float, kSums> sums = {};
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t lane = 0; lane < kSums; ++lane) {
      const float value = row[i + lane];
      sums[static_cast<size_t>(lane)] += value * value;
    }
  }
  double total = 0;
  for (; i < n; ++i) total += static_cast<double>(row[i]) * static_cast<double>(row[i]);
  for (const float sum : sums) total += static_cast<double>(sum);
  return std::sqrt(total);
}

// row += scale * b . A
void AddDelta(const float* b, const std::vector<float>& a, int64_t rank, int64_t k, float scale,
              float* row) {
  for (int64_t r = 0; r < rank; ++r) {
    const float factor = scale * b[r];
    const float* from = a.data() + r * k;
    for (int64_t i = 0; i < k; ++i) row[i] += factor * from[i];
  }
}

}  // namespace

void RowNorms(OpsContext& ops, const PanelMatrix& w, const LoraMatrices* lora, float* norms) {
  std::vector<float> a, b;
  int64_t rank = 0;
  if (lora != nullptr) {
    rank = lora->a.n;
    TANDEM_CHECK(lora->a.k == w.k && lora->b.n == w.n && lora->b.k == rank);
    a.resize(static_cast<size_t>(rank * w.k));
    b.resize(static_cast<size_t>(kRowsAtOnce * rank));
    ReadRows(ops, lora->a, 0, rank, a.data());
  }
  std::vector<float> rows(static_cast<size_t>(std::min(kRowsAtOnce, w.n) * w.k));
  for (int64_t first = 0; first < w.n; first += kRowsAtOnce) {
    const int64_t count = std::min(kRowsAtOnce, w.n - first);
    ReadRows(ops, w, first, count, rows.data());
    if (lora != nullptr) ReadRows(ops, lora->b, first, count, b.data());
    ParallelRows(ops, count, w.k * (rank + 1), [&](int64_t begin, int64_t n, int) {
      for (int64_t i = begin; i < begin + n; ++i) {
        float* row = rows.data() + i * w.k;
        if (lora != nullptr) AddDelta(b.data() + i * rank, a, rank, w.k, lora->scale, row);
        norms[first + i] = static_cast<float>(Length(row, w.k));
      }
    });
  }
}

void DoraFactors(OpsContext& ops, const PanelMatrix& w, const LoraMatrices& lora,
                 const float* magnitude, float* factors, float* inverse) {
  RowNorms(ops, w, &lora, factors);
  for (int64_t i = 0; i < w.n; ++i) {
    const float norm = factors[i];
    // A quotient, so that the factor of a fresh adapter is exactly 1.
    factors[i] = norm > 0 ? magnitude[i] / norm : 0;
    if (inverse != nullptr) inverse[i] = norm > 0 ? 1 / norm : 0;
  }
}

}  // namespace tandem::engine
