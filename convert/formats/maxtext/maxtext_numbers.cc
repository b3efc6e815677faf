#include "convert/formats/maxtext/maxtext_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "convert/tensors/transpose.h"
#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::convert {
namespace {

using engine::DType;

// Elements converted at a time where nothing is transposed.
constexpr int64_t kRun = 2048;

using Load = void (*)(const std::byte* from, int64_t n, float* to);
using Store = bool (*)(const float* from, int64_t n, std::byte* to);

template <class T, class Widen>
void LoadAs(const std::byte* from, int64_t n, float* to, const Widen& widen) {
  for (int64_t i = 0; i < n; ++i) {
    T value;
    std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    to[i] = widen(value);
  }
}

Load LoadOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return [](const std::byte* from, int64_t n, float* to) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
      };
    case DType::kBF16:
      return [](const std::byte* from, int64_t n, float* to) {
        LoadAs<uint16_t>(from, n, to, engine::Bf16ToFloat);
      };
    case DType::kF16:
      return [](const std::byte* from, int64_t n, float* to) {
        LoadAs<uint16_t>(from, n, to, engine::F16ToFloat);
      };
    default:
      TANDEM_CHECK(false);
  }
}

// Returns false where a finite number becomes infinite.
template <class Round>
bool StoreHalves(const float* from, int64_t n, std::byte* to, uint16_t exponent,
                 const Round& round) {
  bool has_grown = false;
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t value = round(from[i]);
    const bool is_finite = (std::bit_cast<uint32_t>(from[i]) & 0x7f800000u) != 0x7f800000u;
    has_grown |= is_finite && (value & exponent) == exponent;
    std::memcpy(to + 2 * i, &value, sizeof(value));
  }
  return !has_grown;
}

// StoreHalves with FloatToBf16, vectorised and without branches.
bool StoreBf16(const float* from, int64_t n, std::byte* to) {
  constexpr int64_t kGroup = 8;
  typedef uint32_t Words8 __attribute__((vector_size(4 * kGroup)));
  typedef uint16_t Halves __attribute__((vector_size(2 * kGroup)));
  Words8 grown{};
  const auto round = [&](Words8 bits) {
    const Words8 size = bits & 0x7fffffffu;
    const Words8 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words8 is_infinite = std::bit_cast<Words8>((rounded & 0x7f80u) == 0x7f80u);
    grown |= size < 0x7f800000u ? is_infinite : Words8{};
    const Words8 halves = size > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
    return __builtin_convertvector(halves, Halves);
  };
  Words8 bits{};
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    std::memcpy(&bits, from + i, sizeof(bits));
    const Halves halves = round(bits);
    std::memcpy(to + 2 * i, &halves, sizeof(halves));
  }
  if (i < n) {
    bits = Words8{};
    std::memcpy(&bits, from + i, static_cast<size_t>(n - i) * sizeof(float));
    const Halves halves = round(bits);
    std::memcpy(to + 2 * i, &halves, static_cast<size_t>(n - i) * sizeof(uint16_t));
  }
  uint32_t any = 0;
  for (int64_t lane = 0; lane < kGroup; ++lane) any |= grown[lane];
  return any == 0;
}

Store StoreOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return [](const float* from, int64_t n, std::byte* to) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
        return true;
      };
    case DType::kBF16:
      return StoreBf16;
    case DType::kF16:
      return [](const float* from, int64_t n, std::byte* to) {
        return StoreHalves(from, n, to, 0x7c00, engine::FloatToF16);
      };
    default:
      TANDEM_CHECK(false);
  }
}

int64_t BytesOf(DType dtype) { return static_cast<int64_t>(engine::DTypeBytes(dtype)); }

// Returns the element offset in the leaf of a tensor's row. Axes before the layers are the rows of
// a layer; with experts the whole tensors follow each other.
int64_t RowOffset(const MaxTextLeaf& leaf, int64_t index, int64_t row) {
  const int64_t columns = leaf.columns();
  if (leaf.n_experts > 0) return (index * leaf.rows() + row) * columns;
  const int64_t layers = leaf.is_scanned ? leaf.n_tensors() : 1;
  const int64_t within = leaf.is_scanned ? index : 0;
  return ((row / leaf.group * layers + within) * leaf.group + row % leaf.group) * columns;
}

// Returns the Hugging Face output that is at this column of the leaf.
int64_t OutputOf(const MaxTextLeaf& leaf, int64_t column) {
  const int64_t head_dim = leaf.rotated_head_dim;
  if (head_dim == 0) return column;
  const int64_t in_head = column % head_dim;
  return column - in_head + in_head / 2 + (in_head % 2 == 0 ? 0 : head_dim / 2);
}

// Calls part(first, n) for runs of at most kRun elements.
template <class Part>
void InRuns(int64_t first, int64_t last, const Part& part) {
  for (int64_t at = first; at < last; at += kRun) part(at, std::min(kRun, last - at));
}

// Calls square(row, n_rows, column, n_columns) for all tiles of these rows and columns.
template <class Square>
void InSquares(RowRange rows, RowRange columns, const Square& square) {
  for (int64_t row = rows.first; row < rows.last; row += kTile) {
    const int64_t n_rows = std::min(kTile, rows.last - row);
    for (int64_t column = columns.first; column < columns.last; column += kTile) {
      square(row, n_rows, column, std::min(kTile, columns.last - column));
    }
  }
}

// Transposes unchanged numbers of 2 or 4 bytes from the leaf's order to the tensor's. `leaf_at(row,
// column)` points to a run of columns, `tensor_at(row, column)` to a run of rows.
template <class T, class LeafAt, class TensorAt>
void MoveToTensor(RowRange rows, RowRange columns, const LeafAt& leaf_at,
                  const TensorAt& tensor_at) {
  std::vector<T> tile(kTile * kTile), turned(kTile * kTile);
  InSquares(rows, columns, [&](int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) {
    for (int64_t r = 0; r < n_rows; ++r) {
      std::memcpy(tile.data() + r * kTile, leaf_at(row + r, column),
                  static_cast<size_t>(n_columns) * sizeof(T));
    }
    TransposeTile(tile.data(), n_rows, n_columns, turned.data());
    for (int64_t c = 0; c < n_columns; ++c) {
      std::memcpy(tensor_at(row, column + c), turned.data() + c * kTile,
                  static_cast<size_t>(n_rows) * sizeof(T));
    }
  });
}

template <class T, class TensorAt, class LeafAt>
void MoveToLeaf(RowRange rows, RowRange columns, const TensorAt& tensor_at, const LeafAt& leaf_at) {
  std::vector<T> tile(kTile * kTile), turned(kTile * kTile);
  InSquares(rows, columns, [&](int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) {
    for (int64_t c = 0; c < n_columns; ++c) {
      std::memcpy(tile.data() + c * kTile, tensor_at(row, column + c),
                  static_cast<size_t>(n_rows) * sizeof(T));
    }
    TransposeTile(tile.data(), n_columns, n_rows, turned.data());
    for (int64_t r = 0; r < n_rows; ++r) {
      std::memcpy(leaf_at(row + r, column), turned.data() + r * kTile,
                  static_cast<size_t>(n_columns) * sizeof(T));
    }
  });
}

}  // namespace

bool IsUnchanged(const MaxTextLeaf& leaf, DType leaf_dtype, DType tensor_dtype) {
  return leaf.arithmetic.IsNone() && tensor_dtype == leaf_dtype;
}

bool TensorToLeaf(const MaxTextLeaf& leaf, int64_t index, RowRange rows,
                  std::span<const std::byte> tensor, DType tensor_dtype, DType leaf_dtype,
                  std::span<std::byte> out) {
  const Load load = LoadOf(tensor_dtype);
  const Store store = StoreOf(leaf_dtype);
  const int64_t from_bytes = BytesOf(tensor_dtype), to_bytes = BytesOf(leaf_dtype);
  const int64_t columns = leaf.columns();
  bool fits = true;
  if (leaf.IsTable()) {
    std::vector<float> run(kRun);
    const int64_t first = rows.first * columns;
    const int64_t there = leaf.tensor_shape[0] * columns;
    InRuns(first, rows.last * columns, [&](int64_t at, int64_t n) {
      const int64_t stored = std::clamp<int64_t>(there - at, 0, n);
      if (stored > 0) load(tensor.data() + (at - first) * from_bytes, stored, run.data());
      std::fill(run.begin() + stored, run.begin() + n, 0.0f);
      ApplyScale(leaf.arithmetic, run.data(), n);
      fits &= store(run.data(), n, out.data() + at * to_bytes);
    });
    return fits;
  }
  // A row of the tensor is a column of the leaf; a vector is the only row.
  const int64_t n_rows = leaf.rows();
  const RowRange outputs = leaf.is_transposed ? rows : RowRange{0, columns};
  const auto tensor_at = [&](int64_t row, int64_t column) {
    return tensor.data() + ((OutputOf(leaf, column) - outputs.first) * n_rows + row) * from_bytes;
  };
  const auto leaf_at = [&](int64_t row, int64_t column) {
    return out.data() + (RowOffset(leaf, index, row) + column) * to_bytes;
  };
  if (IsUnchanged(leaf, leaf_dtype, tensor_dtype)) {
    from_bytes == 2 ? MoveToLeaf<uint16_t>({0, n_rows}, outputs, tensor_at, leaf_at)
                    : MoveToLeaf<uint32_t>({0, n_rows}, outputs, tensor_at, leaf_at);
    return true;
  }
  std::vector<float> tile(kTile * kTile), turned(kTile * kTile);
  InSquares({0, n_rows}, outputs,
            [&](int64_t row, int64_t square_rows, int64_t column, int64_t n_columns) {
              for (int64_t c = 0; c < n_columns; ++c) {
                load(tensor_at(row, column + c), square_rows, tile.data() + c * kTile);
              }
              TransposeTile(tile.data(), n_columns, square_rows, turned.data());
              for (int64_t r = 0; r < square_rows; ++r) {
                float* line = turned.data() + r * kTile;
                ApplyScale(leaf.arithmetic, line, n_columns);
                fits &= store(line, n_columns, leaf_at(row + r, column));
              }
            });
  return fits;
}

bool RunToTensor(const MaxTextLeaf& leaf, int64_t first, std::span<const std::byte> run,
                 DType leaf_dtype, DType tensor_dtype, const Corrections& corrections,
                 std::span<std::byte> out) {
  const Load load = LoadOf(leaf_dtype);
  const Store store = StoreOf(tensor_dtype);
  const int64_t from_bytes = BytesOf(leaf_dtype), to_bytes = BytesOf(tensor_dtype);
  if (IsUnchanged(leaf, leaf_dtype, tensor_dtype)) {
    std::memcpy(out.data(), run.data(), run.size());
    return true;
  }
  std::vector<float> values(kRun);
  bool fits = true;
  InRuns(0, static_cast<int64_t>(run.size()) / from_bytes, [&](int64_t at, int64_t n) {
    load(run.data() + at * from_bytes, n, values.data());
    InvertScale(leaf.arithmetic, leaf_dtype, corrections, first + at, values.data(), n);
    fits &= store(values.data(), n, out.data() + at * to_bytes);
  });
  return fits;
}

bool LeafToTensor(const MaxTextLeaf& leaf, int64_t index, RowRange rows,
                  std::span<const std::byte> bytes, DType leaf_dtype, DType tensor_dtype,
                  const Corrections& corrections, std::span<std::byte> out) {
  const Load load = LoadOf(leaf_dtype);
  const Store store = StoreOf(tensor_dtype);
  const int64_t from_bytes = BytesOf(leaf_dtype), to_bytes = BytesOf(tensor_dtype);
  if (leaf.IsTable()) {
    const int64_t first = rows.first * leaf.columns();
    const auto n = static_cast<size_t>((rows.last - rows.first) * leaf.columns() * from_bytes);
    return RunToTensor(leaf, first, bytes.subspan(static_cast<size_t>(first * from_bytes), n),
                       leaf_dtype, tensor_dtype, corrections, out);
  }
  // The tensor's rows are the leaf's columns and its columns the leaf's rows.
  const int64_t n_inputs = leaf.rows();
  const auto leaf_at = [&](int64_t row, int64_t column) {
    return bytes.data() + (RowOffset(leaf, index, row) + column) * from_bytes;
  };
  const auto place_of = [&](int64_t row, int64_t column) {
    return OutputOf(leaf, column) * n_inputs + row;
  };
  const auto tensor_at = [&](int64_t row, int64_t column) {
    return out.data() + (place_of(row, column) - rows.first * n_inputs) * to_bytes;
  };
  if (IsUnchanged(leaf, leaf_dtype, tensor_dtype)) {
    from_bytes == 2 ? MoveToTensor<uint16_t>({0, n_inputs}, rows, leaf_at, tensor_at)
                    : MoveToTensor<uint32_t>({0, n_inputs}, rows, leaf_at, tensor_at);
    return true;
  }
  bool fits = true;
  std::vector<float> tile(kTile * kTile), turned(kTile * kTile);
  InSquares({0, n_inputs}, rows, [&](int64_t row, int64_t n_rows, int64_t column, int64_t n) {
    for (int64_t r = 0; r < n_rows; ++r) {
      load(leaf_at(row + r, column), n, tile.data() + r * kTile);
    }
    TransposeTile(tile.data(), n_rows, n, turned.data());
    for (int64_t c = 0; c < n; ++c) {
      float* line = turned.data() + c * kTile;
      InvertScale(leaf.arithmetic, leaf_dtype, corrections, place_of(row, column + c), line,
                  n_rows);
      fits &= store(line, n_rows, tensor_at(row, column + c));
    }
  });
  return fits;
}

void Loss::Add(const Loss& other) {
  changed += other.changed;
  max_abs = std::max(max_abs, other.max_abs);
}

namespace {

// Calls each(index, number, number after the round trip).
template <class Each>
void ThereAndBack(const MaxTextArithmetic& arithmetic, DType leaf_dtype,
                  std::span<const std::byte> tensor, DType dtype, const Each& each) {
  const Load load = LoadOf(dtype);
  const int64_t bytes = BytesOf(dtype);
  std::vector<float> run(kRun);
  InRuns(0, static_cast<int64_t>(tensor.size()) / bytes, [&](int64_t at, int64_t n) {
    load(tensor.data() + at * bytes, n, run.data());
    for (int64_t i = 0; i < n; ++i) {
      const float value = run[static_cast<size_t>(i)];
      const float theirs = Rounded(leaf_dtype, ToMaxText(arithmetic, value));
      each(at + i, value, Rounded(dtype, FromMaxText(arithmetic, leaf_dtype, theirs)));
    }
  });
}

}  // namespace

Loss LossOf(const MaxTextArithmetic& arithmetic, DType leaf_dtype,
            std::span<const std::byte> tensor, DType tensor_dtype) {
  Loss loss;
  ThereAndBack(arithmetic, leaf_dtype, tensor, tensor_dtype, [&](int64_t, float was, float is) {
    if (std::bit_cast<uint32_t>(was) == std::bit_cast<uint32_t>(is)) return;
    ++loss.changed;
    loss.max_abs = std::max(loss.max_abs, std::fabs(static_cast<double>(was) - is));
  });
  return loss;
}

std::vector<int32_t> CorrectionSteps(const MaxTextArithmetic& arithmetic, DType leaf_dtype,
                                     std::span<const std::byte> tensor, DType tensor_dtype) {
  std::vector<int32_t> steps(tensor.size() / static_cast<size_t>(BytesOf(tensor_dtype)));
  ThereAndBack(arithmetic, leaf_dtype, tensor, tensor_dtype, [&](int64_t i, float was, float is) {
    const int64_t step = OrdinalOf(tensor_dtype, was) - OrdinalOf(tensor_dtype, is);
    // Only NaNs and numbers of opposite sign beyond 2 can be more than 32 bits of steps apart.
    steps[static_cast<size_t>(i)] = std::in_range<int32_t>(step) ? static_cast<int32_t>(step) : 0;
  });
  return steps;
}

}  // namespace tandem::convert
