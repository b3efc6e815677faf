#include "training/ops/cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/training_kernels.h"
#include "engine/ops/rows.h"
#include "engine/ops/softmax.h"
#include "training/ops/pointwise.h"

namespace tandem::training {
namespace {

using engine::ConstMatrix;
using engine::DType;
using engine::OpsContext;

// Logits of a tile take at most this much memory; the tile's rows follow from the vocabulary alone,
// so that sums over rows have one order.
constexpr int64_t kTileBytes = 192 << 20;
constexpr int64_t kMaxTileRows = 1024;
constexpr int64_t kMinTileRows = 64;

int64_t TileRows(int64_t vocab) {
  const int64_t rows = kTileBytes / (vocab * static_cast<int64_t>(sizeof(float)));
  return std::clamp(rows / kMinTileRows * kMinTileRows, kMinTileRows, kMaxTileRows);
}

template <class T>
T* Reserve(AlignedBuffer& buffer, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
  if (buffer.size() < bytes) buffer = AlignedBuffer(bytes);
  return buffer.as<T>();
}

void FormGradientRow(const engine::TrainingKernelTable& kernels, const float* logits, int64_t vocab,
                     float lse, int64_t target, float weight, float soft_cap, engine::Matrix& dz,
                     int64_t row) {
  if (dz.dtype == DType::kBF16) {
    kernels.cross_entropy_gradient_bf16(
        {.logits = logits,
         .vocab = vocab,
         .lse = lse,
         .target = target,
         .weight = weight,
         .soft_cap = soft_cap,
         .dz = static_cast<engine::Bf16*>(dz.data) + row * dz.stride});
  } else {
    kernels.cross_entropy_gradient_f32({.logits = logits,
                                        .vocab = vocab,
                                        .lse = lse,
                                        .target = target,
                                        .weight = weight,
                                        .soft_cap = soft_cap,
                                        .dz = static_cast<float*>(dz.data) + row * dz.stride});
  }
}

// Of equal logits the first is the model's choice, as in serving's greedy sampling.
double CorrectWeight(OpsContext& ops, const CrossEntropyArgs& args, const float* logits,
                     const int64_t* row_of, int64_t rows) {
  const int64_t vocab = args.head.n;
  std::vector<float> weights(static_cast<size_t>(rows), 0.0f);
  ops.pool().ParallelFor(rows, [&](int64_t r, int) {
    const size_t i = static_cast<size_t>(row_of[r]);
    const float* row = logits + r * vocab;
    if (std::max_element(row, row + vocab) - row != args.targets[i]) return;
    weights[static_cast<size_t>(r)] = args.weights[i];
  });
  double sum = 0;
  for (const float weight : weights) sum += static_cast<double>(weight);
  return sum;
}

}  // namespace

CrossEntropyResult CrossEntropy(OpsContext& ops, CrossEntropyWorkspace& workspace,
                                const CrossEntropyArgs& args, float* dhidden, float* dhead,
                                float* dbias, float* token_logprobs) {
  const ConstMatrix& hidden = args.hidden;
  const int64_t vocab = args.head.n;
  const int64_t dim = hidden.cols;
  TANDEM_CHECK(static_cast<int64_t>(args.targets.size()) == hidden.rows);
  TANDEM_CHECK(static_cast<int64_t>(args.weights.size()) == hidden.rows);
  const auto& kernels = engine::TrainingKernels(ops.kernels());

  std::vector<int64_t> trained;
  trained.reserve(static_cast<size_t>(hidden.rows));
  for (int64_t row = 0; row < hidden.rows; ++row) {
    const size_t i = static_cast<size_t>(row);
    if (args.weights[i] != 0 && args.targets[i] >= 0) {
      TANDEM_CHECK(args.targets[i] < vocab);
      trained.push_back(row);
    }
  }
  if (dhidden != nullptr) {
    std::memset(dhidden, 0, static_cast<size_t>(hidden.rows * dim) * sizeof(float));
  }

  const size_t element = engine::DTypeBytes(hidden.dtype);
  const int64_t tile_rows = TileRows(vocab);
  const int64_t dz_stride = engine::RowStride(hidden.dtype, vocab);
  CrossEntropyResult result;
  for (size_t first = 0; first < trained.size(); first += static_cast<size_t>(tile_rows)) {
    const int64_t rows = std::min<int64_t>(tile_rows, static_cast<int64_t>(trained.size() - first));
    const int64_t* row_of = trained.data() + first;
    float* logits = Reserve<float>(workspace.logits, rows * vocab);
    float* lse = Reserve<float>(workspace.lse, rows);
    std::byte* gathered =
        Reserve<std::byte>(workspace.hidden, rows * hidden.stride * static_cast<int64_t>(element));
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(gathered + static_cast<size_t>(r * hidden.stride) * element,
                  static_cast<const std::byte*>(hidden.data) +
                      static_cast<size_t>(row_of[r] * hidden.stride) * element,
                  static_cast<size_t>(hidden.stride) * element);
    }
    const ConstMatrix tile{gathered, hidden.dtype, rows, dim, hidden.stride};
    engine::MatMul(ops, tile, args.head, args.bias, logits, vocab);
    if (args.soft_cap > 0) engine::SoftCap(ops, args.soft_cap, rows * vocab, logits);
    engine::LogSumExp(ops, logits, rows, vocab, vocab, lse);

    for (int64_t r = 0; r < rows; ++r) {
      const size_t i = static_cast<size_t>(row_of[r]);
      const float logprob = logits[r * vocab + args.targets[i]] - lse[r];
      result.weighted_loss -= static_cast<double>(args.weights[i]) * static_cast<double>(logprob);
      result.weight += static_cast<double>(args.weights[i]);
      if (token_logprobs != nullptr) token_logprobs[i] = logprob;
    }
    if (dhidden == nullptr) {
      result.correct_weight += CorrectWeight(ops, args, logits, row_of, rows);
      continue;
    }

    std::byte* dz_bytes =
        Reserve<std::byte>(workspace.gradient, rows * dz_stride * static_cast<int64_t>(element));
    engine::Matrix dz{dz_bytes, hidden.dtype, rows, vocab, dz_stride};
    ops.pool().ParallelFor(rows, [&](int64_t r, int) {
      const size_t i = static_cast<size_t>(row_of[r]);
      FormGradientRow(kernels, logits + r * vocab, vocab, lse[r], args.targets[i],
                      args.weights[i] * args.scale, args.soft_cap, dz, r);
    });
    float* tile_dhidden = Reserve<float>(workspace.dhidden, rows * dim);
    engine::MatMulInputGrad(ops, dz, args.head, tile_dhidden, dim, false);
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(dhidden + row_of[r] * dim, tile_dhidden + r * dim,
                  static_cast<size_t>(dim) * sizeof(float));
    }
    if (dhead != nullptr) engine::MatMulWeightGrad(ops, dz, tile, dhead, true);
    if (dbias != nullptr) {
      if (dz.dtype == DType::kBF16) {
        kernels.column_sums_bf16(static_cast<const engine::Bf16*>(dz.data), dz_stride, rows, vocab,
                                 dbias);
      } else {
        ColumnSums(ops, static_cast<const float*>(dz.data), rows, vocab, dbias);
      }
    }
  }
  return result;
}

}  // namespace tandem::training
