#include "training/ops/cross_entropy.h"

#include <algorithm>
#include <cstring>
#include <optional>
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

constexpr int64_t kMaxTileRows = 1024;
constexpr int64_t kMinTileRows = 64;

// Gradients replace logits, except with distillation, which reads logits while it writes them.
int64_t RowBytes(int64_t vocab, int64_t hidden_dim, DType dtype, bool distils) {
  const auto element = static_cast<int64_t>(engine::DTypeBytes(dtype));
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  return (engine::RowStride(dtype, vocab) + hidden_dim + 1) * kFloat +
         ((distils ? engine::RowStride(dtype, vocab) : 0) + engine::RowStride(dtype, hidden_dim)) *
             element;
}

// Depends on shapes only, so that sums over rows have a fixed order.
int64_t TileRows(int64_t vocab, int64_t hidden_dim, DType dtype, bool distils) {
  const int64_t rows = kCrossEntropyBytes / RowBytes(vocab, hidden_dim, dtype, distils);
  return std::clamp(rows / kMinTileRows * kMinTileRows, kMinTileRows, kMaxTileRows);
}

template <class T>
T* Reserve(AlignedBuffer& buffer, int64_t elements) {
  const size_t bytes = static_cast<size_t>(elements) * sizeof(T);
  if (buffer.size() < bytes) buffer = AlignedBuffer(bytes);
  return buffer.as<T>();
}

void FormGradientRow(const engine::TrainingKernelTable& kernels, const float* logits, int64_t vocab,
                     float lse, int64_t target, float weight, float soft_cap, float z_loss,
                     engine::Matrix& dz, int64_t row) {
  const float likelihood_factor = 1 + 2 * z_loss * lse;
  if (dz.dtype == DType::kBF16) {
    kernels.cross_entropy_gradient_bf16(
        {.logits = logits,
         .vocab = vocab,
         .lse = lse,
         .target = target,
         .weight = weight,
         .soft_cap = soft_cap,
         .dz = static_cast<engine::Bf16*>(dz.data) + row * dz.stride,
         .likelihood_factor = likelihood_factor});
  } else {
    kernels.cross_entropy_gradient_f32({.logits = logits,
                                        .vocab = vocab,
                                        .lse = lse,
                                        .target = target,
                                        .weight = weight,
                                        .soft_cap = soft_cap,
                                        .dz = static_cast<float*>(dz.data) + row * dz.stride,
                                        .likelihood_factor = likelihood_factor});
  }
}

// Whether one of `n` logits exceeds `least`, or equals it when `or_equal`.
bool AnyAbove(const float* logits, int64_t n, float least, bool or_equal) {
  constexpr int64_t kBlock = 256;  // most rows end in the first blocks
  for (int64_t from = 0; from < n; from += kBlock) {
    const float* block = logits + from;
    int32_t above = 0;
    if (n - from < kBlock) {
      for (int64_t i = 0; i < n - from; ++i)
        above |= block[i] > least || (or_equal && block[i] == least);
    } else if (or_equal) {
      for (int64_t i = 0; i < kBlock; ++i) above |= block[i] >= least;
    } else {
      for (int64_t i = 0; i < kBlock; ++i) above |= block[i] > least;
    }
    if (above != 0) return true;
  }
  return false;
}

// The model chooses the first of equal logits, as serving's greedy sampling does.
bool IsLikeliest(const float* logits, int64_t vocab, int64_t target) {
  const float least = logits[target];
  return !AnyAbove(logits, target, least, true) &&
         !AnyAbove(logits + target + 1, vocab - target - 1, least, false);
}

std::vector<int64_t> TrainedRows(const CrossEntropyArgs& args) {
  std::vector<int64_t> trained;
  trained.reserve(static_cast<size_t>(args.hidden.rows));
  for (int64_t row = 0; row < args.hidden.rows; ++row) {
    const auto i = static_cast<size_t>(row);
    if (args.weights[i] != 0 && args.targets[i] >= 0) {
      TANDEM_CHECK(args.targets[i] < args.head.n);
      trained.push_back(row);
    }
  }
  return trained;
}

// Some trained rows, from hidden states to gradients.
class Tile {
 public:
  Tile(OpsContext& ops, CrossEntropyWorkspace& workspace, const CrossEntropyArgs& args,
       std::span<const int64_t> row_of)
      : ops_(ops),
        workspace_(workspace),
        args_(args),
        row_of_(row_of),
        rows_(static_cast<int64_t>(row_of.size())),
        vocab_(args.head.n),
        ld_(args.distillation != nullptr ? vocab_ : engine::RowStride(args.hidden.dtype, vocab_)) {
    const ConstMatrix& hidden = args.hidden;
    const auto row_bytes = static_cast<size_t>(hidden.stride) * engine::DTypeBytes(hidden.dtype);
    std::byte* gathered =
        Reserve<std::byte>(workspace.hidden, rows_ * static_cast<int64_t>(row_bytes));
    for (size_t r = 0; r < row_of.size(); ++r) {
      std::memcpy(
          gathered + r * row_bytes,
          static_cast<const std::byte*>(hidden.data) + static_cast<size_t>(row_of[r]) * row_bytes,
          row_bytes);
    }
    hidden_ = {gathered, hidden.dtype, rows_, hidden.cols, hidden.stride};
  }

  void Forward(CrossEntropyResult* result, float* token_logprobs) {
    logits_ = Reserve<float>(workspace_.logits, rows_ * ld_);
    lse_ = Reserve<float>(workspace_.lse, rows_);
    engine::MatMul(ops_, hidden_, args_.head, args_.bias, logits_, ld_);
    if (args_.lora != nullptr) ForwardLora();
    if (args_.soft_cap > 0) engine::SoftCap(ops_, args_.soft_cap, rows_ * ld_, logits_);
    engine::LogSumExp(ops_, logits_, rows_, vocab_, ld_, lse_);
    for (int64_t r = 0; r < rows_; ++r) {
      const auto i = static_cast<size_t>(row_of_[static_cast<size_t>(r)]);
      const float logprob = logits_[r * ld_ + args_.targets[i]] - lse_[r];
      const auto weight = static_cast<double>(args_.weights[i]);
      result->weighted_loss -= weight * static_cast<double>(logprob);
      result->weight += weight;
      result->weighted_z_loss +=
          weight * static_cast<double>(args_.z_loss) * static_cast<double>(lse_[r]) * lse_[r];
      if (token_logprobs != nullptr) token_logprobs[i] = logprob;
    }
    if (args_.distillation != nullptr) Distil(result);
  }

  // Weight of the rows whose target has the greatest logit. Free after Backward.
  double CorrectWeight() {
    if (hits_.empty()) {
      hits_.assign(static_cast<size_t>(rows_), 0);
      ops_.pool().ParallelFor(rows_, [&](int64_t r, int) { LookForHit(r); });
    }
    double sum = 0;
    for (int64_t r = 0; r < rows_; ++r) {
      if (hits_[static_cast<size_t>(r)] == 0) continue;
      sum +=
          static_cast<double>(args_.weights[static_cast<size_t>(row_of_[static_cast<size_t>(r)])]);
    }
    return sum;
  }

  void Backward(float* dhidden, float* dhead, float* dbias) {
    const engine::Matrix dz = FormGradient();
    const int64_t dim = hidden_.cols;
    float* tile_dhidden = Reserve<float>(workspace_.dhidden, rows_ * dim);
    engine::MatMulInputGrad(ops_, dz, args_.head, tile_dhidden, dim, false);
    if (args_.lora != nullptr) BackwardLora(dz, tile_dhidden);
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(dhidden + row_of_[static_cast<size_t>(r)] * dim, tile_dhidden + r * dim,
                  static_cast<size_t>(dim) * sizeof(float));
    }
    if (dhead != nullptr) engine::MatMulWeightGrad(ops_, dz, hidden_, dhead, true);
    if (dbias == nullptr) return;
    if (dz.dtype == DType::kBF16) {
      engine::TrainingKernels(ops_.kernels())
          .column_sums_bf16(static_cast<const engine::Bf16*>(dz.data), dz.stride, rows_, vocab_,
                            dbias);
    } else {
      ColumnSums(ops_, static_cast<const float*>(dz.data), rows_, vocab_, dbias);
    }
  }

 private:
  // The parts of workspace.lora: h, dh in f32, dh in the compute dtype.
  engine::Matrix LoraPart(int64_t part) {
    const int64_t rank = args_.lora->matrices.a.n;
    const DType dtype = part == 1 ? DType::kF32 : hidden_.dtype;
    const int64_t stride = part == 1 ? rank : engine::RowStride(dtype, rank);
    const int64_t floats = RoundUp<int64_t>(rows_ * engine::RowStride(DType::kBF16, rank), 16);
    float* all = Reserve<float>(workspace_.lora, 3 * floats);
    return {all + part * floats, dtype, rows_, rank, stride};
  }

  void Distil(CrossEntropyResult* result) {
    distilled_.emplace(ops_, *args_.distillation, row_of_, logits_, vocab_, lse_);
    for (int64_t r = 0; r < rows_; ++r) {
      result->weighted_divergence +=
          static_cast<double>(args_.weights[static_cast<size_t>(row_of_[static_cast<size_t>(r)])]) *
          distilled_->divergence(r);
    }
  }

  void ForwardLora() {
    const engine::LoraRows all{&args_.lora->matrices, 0, rows_};
    const engine::Matrix h = LoraPart(0);
    engine::AddLora(ops_, hidden_, {&all, 1}, logits_, ld_, &h);
  }

  // As for other linear layers (training/program/nodes_linear.cc).
  void BackwardLora(const engine::Matrix& dz, float* dhidden) {
    const engine::LoraMatrices& lora = args_.lora->matrices;
    const int64_t rank = lora.a.n;
    engine::MatMulWeightGrad(ops_, dz, LoraPart(0), args_.lora->db, true);
    const engine::Matrix dh32 = LoraPart(1);
    auto* sums = static_cast<float*>(dh32.data);
    engine::MatMulInputGrad(ops_, dz, lora.b, sums, rank, false);
    engine::ScaleRows(ops_, sums, lora.scale, rows_ * rank, sums);
    const engine::Matrix dh = LoraPart(2);
    engine::RoundRows(ops_, sums, rank, dh);
    engine::MatMulWeightGrad(ops_, dh, hidden_, args_.lora->da, true);
    engine::MatMulInputGrad(ops_, dh, lora.a, dhidden, hidden_.cols, true);
  }

  void LookForHit(int64_t r) {
    const auto i = static_cast<size_t>(row_of_[static_cast<size_t>(r)]);
    hits_[static_cast<size_t>(r)] =
        IsLikeliest(logits_ + r * ld_, vocab_, args_.targets[i]) ? 1 : 0;
  }

  // The rows of the gradient: those of the logits themselves, if nothing reads logits later.
  engine::Matrix GradientPlace() {
    const auto element = static_cast<int64_t>(engine::DTypeBytes(hidden_.dtype));
    if (!distilled_) {
      constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
      return {logits_, hidden_.dtype, rows_, vocab_, ld_ * kFloat / element};
    }
    const int64_t stride = engine::RowStride(hidden_.dtype, vocab_);
    return {Reserve<std::byte>(workspace_.gradient, rows_ * stride * element), hidden_.dtype, rows_,
            vocab_, stride};
  }

  engine::Matrix FormGradient() {
    engine::Matrix dz = GradientPlace();
    const auto& kernels = engine::TrainingKernels(ops_.kernels());
    hits_.assign(static_cast<size_t>(rows_), 0);
    ops_.pool().ParallelFor(rows_, [&](int64_t r, int) {
      LookForHit(r);  // the row is in cache here
      const auto i = static_cast<size_t>(row_of_[static_cast<size_t>(r)]);
      const float weight = args_.weights[i] * args_.scale;
      if (distilled_ && args_.distillation->alpha > 0) {
        distilled_->FormGradient(r, {args_.targets[i], weight, args_.soft_cap, args_.z_loss}, dz);
      } else {
        FormGradientRow(kernels, logits_ + r * ld_, vocab_, lse_[r], args_.targets[i], weight,
                        args_.soft_cap, args_.z_loss, dz, r);
      }
    });
    return dz;
  }

  OpsContext& ops_;
  CrossEntropyWorkspace& workspace_;
  const CrossEntropyArgs& args_;
  std::span<const int64_t> row_of_;
  int64_t rows_;
  int64_t vocab_;
  int64_t ld_;  // of the logits
  ConstMatrix hidden_;
  float* logits_ = nullptr;
  float* lse_ = nullptr;
  std::optional<DistilledTile> distilled_;
  std::vector<uint8_t> hits_;  // one per row, filled by LookForHit
};

}  // namespace

int64_t CrossEntropyWorkspaceBytes(int64_t rows, int64_t vocab, int64_t hidden_dim, DType dtype,
                                   bool distils) {
  return std::min(rows, TileRows(vocab, hidden_dim, dtype, distils)) *
         RowBytes(vocab, hidden_dim, dtype, distils);
}

CrossEntropyResult CrossEntropy(OpsContext& ops, CrossEntropyWorkspace& workspace,
                                const CrossEntropyArgs& args, float* dhidden, float* dhead,
                                float* dbias, float* token_logprobs) {
  TANDEM_CHECK(static_cast<int64_t>(args.targets.size()) == args.hidden.rows);
  TANDEM_CHECK(static_cast<int64_t>(args.weights.size()) == args.hidden.rows);
  const std::vector<int64_t> trained = TrainedRows(args);
  if (dhidden != nullptr) {
    const int64_t elements = args.hidden.rows * args.hidden.cols;
    std::memset(dhidden, 0, static_cast<size_t>(elements) * sizeof(float));
  }

  const auto tile_rows = static_cast<size_t>(
      args.tile_rows > 0 ? args.tile_rows
                         : TileRows(args.head.n, args.hidden.cols, args.hidden.dtype,
                                    args.distillation != nullptr));
  CrossEntropyResult result;
  for (size_t first = 0; first < trained.size(); first += tile_rows) {
    const size_t rows = std::min(tile_rows, trained.size() - first);
    Tile tile(ops, workspace, args, std::span(trained).subspan(first, rows));
    tile.Forward(&result, token_logprobs);
    if (dhidden != nullptr) tile.Backward(dhidden, dhead, dbias);
    result.correct_weight += tile.CorrectWeight();
  }
  return result;
}

}  // namespace tandem::training
