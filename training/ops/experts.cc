#include "training/ops/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::training {
namespace {

using engine::ConstMatrix;
using engine::DType;
using engine::Matrix;
using engine::OpsContext;
using engine::PanelMatrix;
using engine::RouterScore;
using engine::RouterSpec;

// One row of a routing.
struct RoutedRow {
  const float* ids;
  const float* weights;
  int64_t top_k;

  int64_t Expert(int64_t slot) const { return static_cast<int64_t>(ids[slot]); }
};

RoutedRow RowOf(const ConstMatrix& routing, int64_t row) {
  const float* data = static_cast<const float*>(routing.data) + row * routing.stride;
  const int64_t top_k = routing.cols / 2;
  return {data, data + top_k, top_k};
}

double Sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

// The log of the sum of exponentials of the logits that the softmax covers.
double LogSum(const float* logits, const RouterSpec& spec, const RoutedRow& row) {
  const int64_t count = spec.softmax_of_chosen ? row.top_k : spec.n_experts;
  const auto at = [&](int64_t i) {
    return static_cast<double>(logits[spec.softmax_of_chosen ? row.Expert(i) : i]);
  };
  double largest = at(0);
  for (int64_t i = 1; i < count; ++i) largest = std::max(largest, at(i));
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += std::exp(at(i) - largest);
  return largest + std::log(sum);
}

// weight = scale * score [/ (sum of scores + 1e-20)]: from d(weight) to d(score), in place.
void ThroughNormalising(const RouterSpec& spec, const double* scores, int64_t top_k, double* d) {
  const auto scale = static_cast<double>(spec.scale);
  if (!spec.normalise) {
    for (int64_t s = 0; s < top_k; ++s) d[s] *= scale;
    return;
  }
  double sum = 1e-20;
  double mean = 0;
  for (int64_t s = 0; s < top_k; ++s) sum += scores[s];
  for (int64_t s = 0; s < top_k; ++s) mean += d[s] * scores[s] / sum;
  for (int64_t s = 0; s < top_k; ++s) d[s] = scale * (d[s] - mean) / sum;
}

void RouteRowBackward(const float* logits, const RouterSpec& spec, const RoutedRow& row,
                      const float* dweights, double* scores, double* d, float* dlogits) {
  const bool sigmoid = spec.score == RouterScore::kSigmoid;
  const double log_sum = sigmoid ? 0 : LogSum(logits, spec, row);
  for (int64_t s = 0; s < row.top_k; ++s) {
    const auto z = static_cast<double>(logits[row.Expert(s)]);
    scores[s] = sigmoid ? Sigmoid(z) : std::exp(z - log_sum);
  }
  for (int64_t s = 0; s < row.top_k; ++s) d[s] = static_cast<double>(dweights[s]);
  ThroughNormalising(spec, scores, row.top_k, d);
  if (sigmoid) {
    for (int64_t s = 0; s < row.top_k; ++s) {
      dlogits[row.Expert(s)] += static_cast<float>(d[s] * scores[s] * (1 - scores[s]));
    }
    return;
  }
  double mean = 0;
  for (int64_t s = 0; s < row.top_k; ++s) mean += d[s] * scores[s];
  if (spec.softmax_of_chosen) {
    for (int64_t s = 0; s < row.top_k; ++s) {
      dlogits[row.Expert(s)] += static_cast<float>(scores[s] * (d[s] - mean));
    }
    return;
  }
  // The experts that were not chosen are in the softmax's sum, too.
  for (int64_t e = 0; e < spec.n_experts; ++e) {
    const double score = std::exp(static_cast<double>(logits[e]) - log_sum);
    dlogits[e] -= static_cast<float>(score * mean);
  }
  for (int64_t s = 0; s < row.top_k; ++s) {
    dlogits[row.Expert(s)] += static_cast<float>(scores[s] * d[s]);
  }
}

template <class T>
const T* SlotOf(const T* data, int64_t stride, bool shared, int64_t top_k, int64_t cols,
                int64_t slot) {
  return data + slot / top_k * stride + (shared ? 0 : slot % top_k * cols);
}

}  // namespace

std::span<const int32_t> SlotsOf(std::span<const int32_t> slots, std::span<const int32_t> first,
                                 int64_t expert) {
  const auto begin = static_cast<size_t>(first[static_cast<size_t>(expert)]);
  const auto end = static_cast<size_t>(first[static_cast<size_t>(expert) + 1]);
  return slots.subspan(begin, end - begin);
}

namespace {

// The end of the slots from `begin` in the same block of rows.
size_t RowBlockEnd(std::span<const int32_t> slots, size_t begin, int64_t top_k) {
  const int64_t block = slots[begin] / top_k / kExpertBlockRows;
  size_t end = begin + 1;
  while (end < slots.size() && slots[end] / top_k / kExpertBlockRows == block) ++end;
  return end;
}

}  // namespace

size_t GatherEnd(std::span<const int32_t> slots, size_t begin, int64_t top_k) {
  size_t end = RowBlockEnd(slots, begin, top_k);
  while (end < slots.size()) {
    const size_t next = RowBlockEnd(slots, end, top_k);
    if (next - begin > static_cast<size_t>(kExpertBlockRows)) break;
    end = next;
  }
  return end;
}

void AddBlockedWeightGrad(OpsContext& ops, const Matrix& dy, const Matrix& x,
                          std::span<const int32_t> slots, int64_t top_k, float* dw) {
  const auto rows = [](const Matrix& m, size_t begin, size_t end) {
    const auto width = static_cast<int64_t>(engine::DTypeBytes(m.dtype));
    return ConstMatrix{
        static_cast<std::byte*>(m.data) + static_cast<int64_t>(begin) * m.stride * width, m.dtype,
        static_cast<int64_t>(end - begin), m.cols, m.stride};
  };
  for (size_t begin = 0; begin < slots.size();) {
    const size_t end = RowBlockEnd(slots, begin, top_k);
    engine::MatMulWeightGrad(ops, rows(dy, begin, end), rows(x, begin, end), dw, true);
    begin = end;
  }
}

void RouteBackward(OpsContext& ops, const float* logits, const RouterSpec& spec,
                   const ConstMatrix& routing, const float* drouting, float* dlogits) {
  const int64_t top_k = routing.cols / 2;
  TANDEM_CHECK(top_k == spec.top_k);
  engine::ReserveWorkerScratch(ops, static_cast<size_t>(2 * top_k) * sizeof(double));
  const auto run = [&](int64_t first, int64_t count, int worker) {
    auto* scores = reinterpret_cast<double*>(ops.WorkerScratch(worker, 0));
    for (int64_t r = first; r < first + count; ++r) {
      RouteRowBackward(logits + r * spec.n_experts, spec, RowOf(routing, r),
                       drouting + r * 2 * top_k + top_k, scores, scores + top_k,
                       dlogits + r * spec.n_experts);
    }
  };
  engine::ParallelRows(ops, routing.rows, spec.n_experts * 16, run);
}

void CombineBackward(OpsContext& ops, const float* y, const ConstMatrix& routing, const float* dout,
                     int64_t n, float* dy, bool accumulate, float* drouting) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const int64_t top_k = routing.cols / 2;
  const auto run = [&](int64_t first, int64_t count, int) {
    for (int64_t r = first; r < first + count; ++r) {
      const RoutedRow row = RowOf(routing, r);
      const float* d = dout + r * n;
      for (int64_t s = 0; s < top_k; ++s) {
        const int64_t at = (r * top_k + s) * n;
        if (dy != nullptr && accumulate) kernels.accumulate_scaled(d, row.weights[s], n, dy + at);
        if (dy != nullptr && !accumulate) ops.kernels().scale(d, row.weights[s], n, dy + at);
        if (drouting != nullptr) {
          drouting[r * 2 * top_k + top_k + s] += kernels.dot(y + at, d, n);
        }
      }
    }
  };
  engine::ParallelRows(ops, routing.rows, n * top_k, run);
}

void GatherSlots(OpsContext& ops, const ConstMatrix& from, bool shared, int64_t top_k,
                 std::span<const int32_t> slots, const Matrix& out) {
  TANDEM_CHECK(from.dtype == out.dtype);
  const auto run = [&]<class T>() {
    const auto copy = [&](int64_t first, int64_t count, int) {
      for (int64_t i = first; i < first + count; ++i) {
        const T* row = SlotOf(static_cast<const T*>(from.data), from.stride, shared, top_k,
                              out.cols, slots[static_cast<size_t>(i)]);
        T* into = static_cast<T*>(out.data) + i * out.stride;
        std::copy_n(row, out.cols, into);
        std::fill(into + out.cols, into + out.stride, T{});
      }
    };
    engine::ParallelRows(ops, static_cast<int64_t>(slots.size()), out.cols, copy);
  };
  engine::WithComputeType(from.dtype, run);
}

void GatherSlotsRounded(OpsContext& ops, const float* from, int64_t ldfrom, int64_t top_k,
                        std::span<const int32_t> slots, const Matrix& out) {
  const auto run = [&]<class T>() {
    const auto round = [&](int64_t first, int64_t count, int) {
      for (int64_t i = first; i < first + count; ++i) {
        ops.kernels().typed<T>().round(
            {.x = SlotOf(from, ldfrom, false, top_k, out.cols, slots[static_cast<size_t>(i)]),
             .up = nullptr,
             .ldx = out.cols,
             .rows = 1,
             .cols = out.cols,
             .activation = engine::Activation::kSilu,
             .y = static_cast<T*>(out.data) + i * out.stride,
             .ldy = out.stride});
      }
    };
    engine::ParallelRows(ops, static_cast<int64_t>(slots.size()), out.cols, round);
  };
  engine::WithComputeType(out.dtype, run);
}

void ScatterSlots(OpsContext& ops, const float* from, int64_t cols, bool shared, int64_t top_k,
                  std::span<const int32_t> slots, bool accumulate, float* into, int64_t ldinto) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  const auto add = [&](int64_t first, int64_t count, int) {
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t slot = slots[static_cast<size_t>(i)];
      float* row = into + slot / top_k * ldinto + (shared ? 0 : slot % top_k * cols);
      if (accumulate) {
        kernels.accumulate(from + i * cols, cols, row);
      } else {
        std::copy_n(from + i * cols, cols, row);
      }
    }
  };
  engine::ParallelRows(ops, static_cast<int64_t>(slots.size()), cols, add);
}

namespace {

// The scratch of ExpertLinearBackward: sorted slots, then a block of rows of x, dy and dx.
struct GradientScratch {
  GradientScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts, int64_t n, int64_t k)
      : block_rows(std::min(kExpertBlockRows, rows)) {
    const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
    const auto take = [this](int64_t bytes) {
      const int64_t at = total;
      total += RoundUp<int64_t>(bytes, 64);
      return at;
    };
    first = take((n_experts + 1) * static_cast<int64_t>(sizeof(int32_t)));
    slots = take(rows * top_k * static_cast<int64_t>(sizeof(int32_t)));
    x = take(block_rows * engine::RowStride(dtype, k) * width);
    dy = take(block_rows * engine::RowStride(dtype, n) * width);
    dx = take(block_rows * k * static_cast<int64_t>(sizeof(float)));
  }
  int64_t block_rows;
  int64_t first = 0, slots = 0, x = 0, dy = 0, dx = 0;
  int64_t total = 0;
};

void AddBiasGradients(OpsContext& ops, const ExpertLinearGradient& g,
                      std::span<const int32_t> first, std::span<const int32_t> slots) {
  const auto& kernels = engine::TrainingKernels(ops.kernels());
  // One task sums an expert's rows in order.
  ops.pool().ParallelFor(g.n_experts, [&](int64_t expert, int) {
    float* db = g.db(expert);
    if (db == nullptr) return;
    for (int32_t i = first[static_cast<size_t>(expert)]; i < first[static_cast<size_t>(expert) + 1];
         ++i) {
      const float* row = g.dy + slots[static_cast<size_t>(i)] * g.n;
      kernels.accumulate(row, g.n, db);
    }
  });
}

}  // namespace

int64_t ExpertGradientScratch(DType dtype, int64_t rows, int64_t top_k, int64_t n_experts,
                              int64_t n, int64_t k) {
  return GradientScratch(dtype, rows, top_k, n_experts, n, k).total;
}

void ExpertLinearBackward(OpsContext& ops, const ExpertLinearGradient& g, std::byte* scratch) {
  const int64_t rows = g.x.rows;
  const int64_t top_k = g.top_k();
  const DType dtype = g.x.dtype;
  TANDEM_CHECK(g.routing.rows == rows && (g.x.cols == g.k || g.x.cols == top_k * g.k));
  const GradientScratch at(dtype, rows, top_k, g.n_experts, g.n, g.k);
  const std::span first(reinterpret_cast<int32_t*>(scratch + at.first),
                        static_cast<size_t>(g.n_experts + 1));
  const std::span slots(reinterpret_cast<int32_t*>(scratch + at.slots),
                        static_cast<size_t>(rows * top_k));
  engine::GroupByExpert(g.routing, g.n_experts, first, slots);
  if (g.db) AddBiasGradients(ops, g, first, slots);
  if (g.dx != nullptr && g.shared_input() && !g.accumulate) {
    std::fill_n(g.dx, rows * g.x.cols, 0.0f);
  }

  for (int64_t expert = 0; expert < g.n_experts; ++expert) {
    float* dw = g.dw ? g.dw(expert) : nullptr;
    if (dw == nullptr && g.dx == nullptr) continue;
    const auto own = SlotsOf(slots, first, expert);
    for (size_t begin = 0; begin < own.size();) {
      const size_t end = GatherEnd(own, begin, top_k);
      const auto block = own.subspan(begin, end - begin);
      const auto count = static_cast<int64_t>(block.size());
      begin = end;
      const Matrix dy{scratch + at.dy, dtype, count, g.n, engine::RowStride(dtype, g.n)};
      GatherSlotsRounded(ops, g.dy, top_k * g.n, top_k, block, dy);
      if (g.dx != nullptr) {
        auto* dx = reinterpret_cast<float*>(scratch + at.dx);
        engine::MatMulInputGrad(ops, dy, g.weight(expert), dx, g.k, false);
        ScatterSlots(ops, dx, g.k, g.shared_input(), top_k, block, g.accumulate || g.shared_input(),
                     g.dx, g.x.cols);
      }
      if (dw != nullptr) {
        const Matrix x{scratch + at.x, dtype, count, g.k, engine::RowStride(dtype, g.k)};
        GatherSlots(ops, g.x, g.shared_input(), top_k, block, x);
        AddBlockedWeightGrad(ops, dy, x, block, top_k, dw);
      }
    }
  }
}

}  // namespace tandem::training
