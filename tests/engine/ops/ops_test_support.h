#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/matmul.h"
#include "engine/ops/ops_context.h"
#include "engine/ops/rows.h"

namespace tandem::engine {

// One case per kernel table that this CPU supports.
class TableTest : public testing::TestWithParam<const KernelTable*> {
 protected:
  const KernelTable& table() const { return *GetParam(); }
};

inline std::vector<const KernelTable*> AllTables() {
  const auto tables = RunnableKernelTables();
  return {tables.begin(), tables.end()};
}

inline std::string TableName(const testing::TestParamInfo<const KernelTable*>& info) {
  std::string name(info.param->key);
  for (char& c : name) {
    if (c == '+') c = '_';
  }
  return name;
}

inline const DType kComputeTypes[] = {DType::kF32, DType::kBF16};

// The context of an op: a table and a pool of its own.
struct TestOps {
  explicit TestOps(const KernelTable& table, int n_threads = 1)
      : pool(n_threads), context(table, pool) {}
  ThreadPool pool;
  OpsContext context;
  operator OpsContext&() { return context; }  // NOLINT(google-explicit-constructor)
};

inline std::vector<float> RandomFloats(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

// A compute-dtype activation on the heap of exactly the required size: AddressSanitizer sees every
// access beyond it.
class TestMatrix {
 public:
  TestMatrix(DType dtype, int64_t rows, int64_t cols)
      : matrix_{nullptr, dtype, rows, cols, RowStride(dtype, cols)},
        f32_(dtype == DType::kF32 ? static_cast<size_t>(rows * matrix_.stride) : 0),
        bf16_(dtype == DType::kBF16 ? static_cast<size_t>(rows * matrix_.stride) : 0) {
    matrix_.data = dtype == DType::kF32 ? static_cast<void*>(f32_.data()) : bf16_.data();
  }
  TestMatrix(DType dtype, int64_t rows, int64_t cols, const std::vector<float>& values)
      : TestMatrix(dtype, rows, cols) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) Set(r, c, values[static_cast<size_t>(r * cols + c)]);
    }
  }
  TestMatrix(const TestMatrix&) = delete;
  TestMatrix& operator=(const TestMatrix&) = delete;

  const Matrix& matrix() const { return matrix_; }
  operator ConstMatrix() const { return matrix_; }  // NOLINT(google-explicit-constructor)

  // Rows [first, first + count).
  Matrix Rows(int64_t first, int64_t count) const {
    Matrix part = matrix_;
    part.rows = count;
    part.data = static_cast<std::byte*>(matrix_.data) +
                static_cast<size_t>(first * matrix_.stride) * DTypeBytes(matrix_.dtype);
    return part;
  }

  float At(int64_t r, int64_t c) const {
    const auto at = static_cast<size_t>(r * matrix_.stride + c);
    return matrix_.dtype == DType::kF32 ? f32_[at] : Bf16ToFloat(bf16_[at]);
  }
  void Set(int64_t r, int64_t c, float value) {
    const auto at = static_cast<size_t>(r * matrix_.stride + c);
    if (matrix_.dtype == DType::kF32) {
      f32_[at] = value;
    } else {
      bf16_[at] = FloatToBf16(value);
    }
  }
  // Compares every byte, padding included.
  bool operator==(const TestMatrix& other) const {
    return f32_.size() == other.f32_.size() && bf16_ == other.bf16_ &&
           std::equal(f32_.begin(), f32_.end(), other.f32_.begin(), [](float a, float b) {
             return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
           });
  }

 private:
  Matrix matrix_;
  std::vector<float> f32_;
  std::vector<Bf16> bf16_;
};

// A weight in panels, and its values after rounding.
class TestWeight {
 public:
  TestWeight(DType dtype, int64_t n, int64_t k, uint32_t seed)
      : bytes_(static_cast<size_t>(PanelBytes(dtype, n, k))), matrix_{nullptr, dtype, n, k} {
    const std::vector<float> source = RandomFloats(n * k, seed);
    matrix_.panels = bytes_.data();
    TestOps ops(*RunnableKernelTables().front());
    PackPanels(ops,
               {.data = reinterpret_cast<const std::byte*>(source.data()),
                .dtype = DType::kF32,
                .shape = {n, k}},
               SourceLayout::kOutIn, n, k, dtype, bytes_.data());
    values_.resize(source.size());
    UnpackPanels(matrix_, values_.data());
  }
  const PanelMatrix& matrix() const { return matrix_; }
  float At(int64_t n, int64_t k) const { return values_[static_cast<size_t>(n * matrix_.k + k)]; }

 private:
  AlignedBuffer bytes_;
  PanelMatrix matrix_;
  std::vector<float> values_;
};

// Formats to which weights can be quantised.
inline const BlockFormat kRoundedFormats[] = {BlockFormat::kInt8, BlockFormat::kInt4,
                                              BlockFormat::kInt6};

// The next k that the format can hold.
inline int64_t Fitting(BlockFormat block, int64_t k) {
  return FitsBlocks(block, k) ? k : RoundUp(k, kSuperSize);
}

// Arbitrary Q4_K super-blocks with values below about 1.
inline std::vector<std::byte> RandomQ4K(int64_t n, int64_t k, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> blocks(static_cast<size_t>(n * k / kSuperSize * kQ4KBytes));
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(rng());
  for (size_t at = 0; at < blocks.size(); at += kQ4KBytes) {
    std::uniform_real_distribution<float> d(-1e-3f, 1e-3f);
    const uint16_t numbers[] = {FloatToF16(d(rng)), FloatToF16(10 * d(rng))};
    std::memcpy(blocks.data() + at, numbers, sizeof(numbers));
  }
  return blocks;
}

// A quantised weight, and its decoded values.
class TestBlockWeight {
 public:
  TestBlockWeight(BlockFormat block, int64_t n, int64_t k, uint32_t seed)
      : bytes_(static_cast<size_t>(PanelBytes(block, n, k))),
        matrix_{bytes_.data(), DType::kBF16, n, k, block},
        values_(static_cast<size_t>(n * k)) {
    TestOps ops(*RunnableKernelTables().front());
    if (block == BlockFormat::kInt4K) {
      const std::vector<std::byte> blocks = RandomQ4K(n, k, seed);
      const auto row_data = [&](int64_t row) {
        return blocks.data() + row * (k / kSuperSize) * kQ4KBytes;
      };
      PackQ4K(ops, row_data, n, k, bytes_.data());
    } else if (block == BlockFormat::kMxfp4) {
      PutRandomMxfp4(n, k, seed);
    } else {
      const std::vector<float> source = RandomFloats(n * k, seed);
      PackBlockPanels(ops,
                      {.data = reinterpret_cast<const std::byte*>(source.data()),
                       .dtype = DType::kF32,
                       .shape = {n, k}},
                      SourceLayout::kOutIn, n, k, block, bytes_.data());
    }
    UnpackPanels(matrix_, values_.data());
  }
  const PanelMatrix& matrix() const { return matrix_; }
  float At(int64_t n, int64_t k) const { return values_[static_cast<size_t>(n * matrix_.k + k)]; }

 private:
  void PutRandomMxfp4(int64_t n, int64_t k, uint32_t seed) {
    std::mt19937 rng(seed);
    std::memset(bytes_.data(), 0, bytes_.size());
    const int64_t panel_bytes = BlockPanelBytes(BlockFormat::kMxfp4, k);
    for (int64_t at = 0; at < n * GroupsOf(k); ++at) {
      const int64_t row = at / GroupsOf(k);
      const int64_t first = at % GroupsOf(k) * kGroupSize;
      BlockGroup group{.scale = static_cast<uint16_t>(122 + rng() % 4)};
      for (int64_t i = 0; i < std::min(kGroupSize, k - first); ++i) {
        group.q[i] = static_cast<int8_t>(kMxfp4Numbers[rng() % 16] - kMxfp4Offset);
      }
      PutGroup(BlockFormat::kMxfp4, bytes_.data() + row / kLanes * panel_bytes, k,
               first / kGroupSize, row % kLanes, group);
    }
  }

  AlignedBuffer bytes_;
  PanelMatrix matrix_;
  std::vector<float> values_;
};

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return false;
  }
  return true;
}

}  // namespace tandem::engine
