#include "training/ops/relu_save.h"

#include <algorithm>
#include <bit>
#include <type_traits>

#include "engine/base/check.h"
#include "engine/ops/parallel.h"

namespace tandem::training {
namespace {

using engine::ConstMatrix;
using engine::DType;
using engine::OpsContext;

// Whole bytes of the mask, so that no two tasks write the same byte.
constexpr int64_t kElementsPerSaveTask = 1 << 15;

int64_t TasksOf(int64_t elements) {
  return (elements + kElementsPerSaveTask - 1) / kElementsPerSaveTask;
}

// Calls body(task, first, end) for ranges of elements.
template <class Body>
void OverTasks(OpsContext& ops, int64_t elements, const Body& body) {
  ops.pool().ParallelFor(TasksOf(elements), [&](int64_t task, int) {
    const int64_t first = task * kElementsPerSaveTask;
    body(task, first, std::min(elements, first + kElementsPerSaveTask));
  });
}

template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;

// Whether x of a marked y was positive. -0 and NaN are marked too; +0 is marked only when a
// positive x rounded to it.
template <class T>
bool WasPositive(T y) {
  constexpr BitsOf<T> kInfinity = sizeof(T) == 2 ? 0x7f80 : 0x7f800000;
  return std::bit_cast<BitsOf<T>>(y) <= kInfinity;
}

// Walks the elements of a matrix in row-major order, beginning at `first`.
template <class T>
class Walk {
 public:
  Walk(const ConstMatrix& y, int64_t first)
      : row_(static_cast<T*>(const_cast<void*>(y.data)) + first / y.cols * y.stride),
        col_(first % y.cols),
        cols_(y.cols),
        stride_(y.stride) {}
  T& Next() {
    T& at = row_[col_];
    if (++col_ == cols_) {
      col_ = 0;
      row_ += stride_;
    }
    return at;
  }

 private:
  T* row_;
  int64_t col_;
  int64_t cols_;
  int64_t stride_;
};

bool IsMarked(const uint8_t* mask, int64_t i) { return ((mask[i / 8] >> (i % 8)) & 1) != 0; }

// Returns the number of elements that each task marked.
template <class T>
std::vector<int64_t> Mark(OpsContext& ops, const float* x, const ConstMatrix& y, uint8_t* mask) {
  const int64_t elements = y.rows * y.cols;
  std::vector<int64_t> counts(static_cast<size_t>(TasksOf(elements)));
  OverTasks(ops, elements, [&](int64_t task, int64_t first, int64_t end) {
    Walk<T> walk(y, first);
    int64_t count = 0;
    for (int64_t i = first; i < end; i += 8) {
      unsigned bits = 0;
      for (int64_t j = 0; j < std::min<int64_t>(8, end - i); ++j) {
        const bool is_zero = std::bit_cast<BitsOf<T>>(walk.Next()) == 0;
        bits |= static_cast<unsigned>(!is_zero || x[i + j] > 0) << j;
      }
      mask[i / 8] = static_cast<uint8_t>(bits);
      count += std::popcount(bits);
    }
    counts[static_cast<size_t>(task)] = count;
  });
  return counts;
}

template <class T>
void Pack(OpsContext& ops, const float* x, const ConstMatrix& y, uint8_t* mask,
          PackedRelu* packed) {
  packed->first = Mark<T>(ops, x, y, mask);
  packed->count = 0;
  for (int64_t& first : packed->first) {
    const int64_t count = first;
    first = packed->count;
    packed->count += count;
  }
  const size_t bytes = static_cast<size_t>(packed->count) * sizeof(T);
  if (packed->values.size() < bytes) {
    packed->values = AlignedBuffer();  // frees before allocating the larger one
    packed->values = AlignedBuffer(bytes + bytes / 16);
  }
  OverTasks(ops, y.rows * y.cols, [&](int64_t task, int64_t first, int64_t end) {
    Walk<T> walk(y, first);
    T* to = packed->values.template as<T>() + packed->first[static_cast<size_t>(task)];
    for (int64_t i = first; i < end; ++i) {
      const T value = walk.Next();
      if (IsMarked(mask, i)) *to++ = value;
    }
  });
}

template <class T>
void Unpack(OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
            const engine::Matrix& y) {
  OverTasks(ops, y.rows * y.cols, [&](int64_t task, int64_t first, int64_t end) {
    Walk<T> walk(y, first);
    const T* from = packed.values.as<T>() + packed.first[static_cast<size_t>(task)];
    for (int64_t i = first; i < end; ++i) walk.Next() = IsMarked(mask, i) ? *from++ : T{0};
  });
  if (y.stride == y.cols) return;
  for (int64_t row = 0; row < y.rows; ++row) {
    T* end = static_cast<T*>(y.data) + row * y.stride;
    std::fill(end + y.cols, end + y.stride, T{0});
  }
}

}  // namespace

void ReluMask(OpsContext& ops, const float* x, int64_t elements, uint8_t* mask) {
  OverTasks(ops, elements, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += 8) {
      const int64_t count = std::min<int64_t>(8, end - i);
      unsigned bits = 0;
      for (int64_t j = 0; j < count; ++j) bits |= static_cast<unsigned>(x[i + j] > 0) << j;
      mask[i / 8] = static_cast<uint8_t>(bits);
    }
  });
}

// Multiplies instead of selecting, so that NaN stays NaN, as in ActivateBackward.
void ReluMaskBackward(OpsContext& ops, const uint8_t* mask, const float* dy, int64_t elements,
                      float* dx) {
  OverTasks(ops, elements, [&](int64_t, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; i += 8) {
      const unsigned bits = mask[i / 8];
      const int64_t count = std::min<int64_t>(8, end - i);
      for (int64_t j = 0; j < count; ++j) {
        dx[i + j] += dy[i + j] * static_cast<float>((bits >> j) & 1u);
      }
    }
  });
}

void PackRelu(OpsContext& ops, const float* x, const ConstMatrix& y, uint8_t* mask,
              PackedRelu* packed) {
  engine::WithComputeType(y.dtype, [&]<class T>() { Pack<T>(ops, x, y, mask, packed); });
}

void UnpackRelu(OpsContext& ops, const uint8_t* mask, const PackedRelu& packed,
                const engine::Matrix& y) {
  TANDEM_CHECK(static_cast<int64_t>(packed.first.size()) == TasksOf(y.rows * y.cols));
  engine::WithComputeType(y.dtype, [&]<class T>() { Unpack<T>(ops, mask, packed, y); });
}

void PackedReluBackward(OpsContext& ops, const uint8_t* mask, const PackedRelu& packed, DType dtype,
                        const float* dy, int64_t elements, float* dx) {
  TANDEM_CHECK(static_cast<int64_t>(packed.first.size()) == TasksOf(elements));
  engine::WithComputeType(dtype, [&]<class T>() {
    OverTasks(ops, elements, [&](int64_t task, int64_t first, int64_t end) {
      const T* value = packed.values.as<T>() + packed.first[static_cast<size_t>(task)];
      for (int64_t i = first; i < end; ++i) {
        const bool positive = IsMarked(mask, i) && WasPositive(*value++);
        dx[i] += dy[i] * static_cast<float>(positive);
      }
    });
  });
}

}  // namespace tandem::training
