#include "training/ops/router_loss.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::training {
namespace {

using engine::OpsContext;
using engine::RouterScore;
using engine::RouterSpec;

// Rows per partial sum. Fixed, so that the threads cannot change a bit.
constexpr int64_t kTallyRows = 256;

bool RowCounts(std::span<const DropoutRow> sources, int64_t row) {
  return sources.empty() || IsOfSample(sources[static_cast<size_t>(row)]);
}

// The softmax of one row, and the log of its sum.
double SoftmaxOf(const float* logits, int64_t n, double* p) {
  const auto largest = static_cast<double>(*std::max_element(logits, logits + n));
  double sum = 0;
  for (int64_t e = 0; e < n; ++e) sum += p[e] = std::exp(static_cast<double>(logits[e]) - largest);
  for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  return largest + std::log(sum);
}

// Sigmoid scores divided by their sum; returns the sum.
double SigmoidsOf(const float* logits, int64_t n, double* p) {
  double sum = 1e-20;
  for (int64_t e = 0; e < n; ++e) {
    sum += p[e] = 1 / (1 + std::exp(-static_cast<double>(logits[e])));
  }
  for (int64_t e = 0; e < n; ++e) p[e] /= sum;
  return sum;
}

}  // namespace

RouterTally::Group& RouterTally::GroupOf(int64_t n_experts) {
  for (Group& group : groups_) {
    if (group.n_experts == n_experts) return group;
  }
  Group& group = groups_.emplace_back();
  group.n_experts = n_experts;
  group.slots.assign(static_cast<size_t>(n_experts), 0);
  group.probabilities.assign(static_cast<size_t>(n_experts), 0);
  return group;
}

int64_t RouterTally::AllRows() const {
  int64_t rows = 0;
  for (const Group& group : groups_) rows += group.rows;
  return rows;
}

double RouterTally::Group::Balance() const {
  if (rows == 0) return 0;
  double sum = 0;
  for (size_t e = 0; e < slots.size(); ++e) sum += slots[e] * probabilities[e];
  const auto all = static_cast<double>(rows);
  return static_cast<double>(n_experts) * sum / (all * all);
}

void RouterTally::Add(OpsContext& ops, const float* logits, const RouterSpec& spec,
                      const engine::ConstMatrix& routing, std::span<const DropoutRow> sources) {
  const int64_t n = spec.n_experts;
  const int64_t rows = routing.rows;
  const int64_t n_blocks = (rows + kTallyRows - 1) / kTallyRows;
  std::vector<double> partial(static_cast<size_t>(n_blocks * (n + 1)), 0);
  engine::ReserveWorkerScratch(ops, static_cast<size_t>(n) * sizeof(double));
  ops.pool().ParallelFor(n_blocks, [&](int64_t block, int worker) {
    auto* p = reinterpret_cast<double*>(ops.WorkerScratch(worker, 0));
    double* sums = partial.data() + block * (n + 1);
    for (int64_t r = block * kTallyRows; r < std::min(rows, (block + 1) * kTallyRows); ++r) {
      if (!RowCounts(sources, r)) continue;
      const double log_sum = SoftmaxOf(logits + r * n, n, p);
      if (spec.score == RouterScore::kSigmoid) SigmoidsOf(logits + r * n, n, p);
      for (int64_t e = 0; e < n; ++e) sums[e] += p[e];
      sums[n] += log_sum * log_sum;
    }
  });

  Group& group = GroupOf(n);
  for (int64_t block = 0; block < n_blocks; ++block) {
    const double* sums = partial.data() + block * (n + 1);
    for (int64_t e = 0; e < n; ++e) group.probabilities[static_cast<size_t>(e)] += sums[e];
    group.z += sums[n];
  }
  std::vector<int64_t> slots(static_cast<size_t>(n), 0);
  int64_t counted = 0;
  for (int64_t r = 0; r < rows; ++r) {
    if (!RowCounts(sources, r)) continue;
    ++counted;
    const float* ids = static_cast<const float*>(routing.data) + r * routing.stride;
    for (int64_t s = 0; s < spec.top_k; ++s) ++slots[static_cast<size_t>(ids[s])];
  }
  group.rows += counted;
  for (size_t e = 0; e < slots.size(); ++e) group.slots[e] += static_cast<double>(slots[e]);
  if (counted == 0) return;
  const auto most = static_cast<double>(*std::max_element(slots.begin(), slots.end()));
  group.most_loaded = std::max(group.most_loaded, most / static_cast<double>(counted * spec.top_k));
}

RouterFigures RouterTally::Figures() const {
  RouterFigures figures;
  const auto rows = static_cast<double>(AllRows());
  if (rows == 0) return figures;
  for (const Group& group : groups_) {
    figures.balance += group.Balance() * static_cast<double>(group.rows) / rows;
    figures.z += group.z / rows;
    figures.most_loaded = std::max(figures.most_loaded, group.most_loaded);
  }
  return figures;
}

void RouterTally::Backward(OpsContext& ops, const RouterLossOptions& options, double share,
                           const float* logits, const RouterSpec& spec, int64_t rows,
                           std::span<const DropoutRow> sources, float* dlogits) const {
  const int64_t n = spec.n_experts;
  const auto group = std::find_if(groups_.begin(), groups_.end(),
                                  [&](const Group& one) { return one.n_experts == n; });
  TANDEM_CHECK(group != groups_.end());
  if (group->rows == 0) return;
  const auto all = static_cast<double>(AllRows());
  // d(balance) / d(probability of expert e) = balance * slots[e].
  const double balance =
      options.balance * share * static_cast<double>(n) / (static_cast<double>(group->rows) * all);
  const double z = options.z * share * 2 / all;
  engine::ReserveWorkerScratch(ops, static_cast<size_t>(2 * n) * sizeof(double));
  const auto run = [&](int64_t first, int64_t count, int worker) {
    auto* p = reinterpret_cast<double*>(ops.WorkerScratch(worker, 0));
    double* q = p + n;
    for (int64_t r = first; r < first + count; ++r) {
      if (!RowCounts(sources, r)) continue;
      const float* row = logits + r * n;
      float* d = dlogits + r * n;
      const double log_sum = SoftmaxOf(row, n, p);
      const bool sigmoid = spec.score == RouterScore::kSigmoid;
      std::copy_n(p, n, q);
      const double sum = sigmoid ? SigmoidsOf(row, n, q) : 1;
      double mean = 0;
      for (int64_t e = 0; e < n; ++e) mean += q[e] * group->slots[static_cast<size_t>(e)];
      for (int64_t e = 0; e < n; ++e) {
        const double slope = sigmoid ? q[e] * (1 - q[e] * sum) : q[e];
        const double toward = group->slots[static_cast<size_t>(e)] - mean;
        d[e] += static_cast<float>(balance * slope * toward + z * log_sum * p[e]);
      }
    }
  };
  engine::ParallelRows(ops, rows, n * 16, run);
}

}  // namespace tandem::training
