#include "convert/maxtext_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "convert/transpose.h"
#include "engine/base/check.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::convert {
namespace {

using engine::DType;

// Numbers in flight where nothing becomes a column.
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

// False where a finite number becomes an infinite one.
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

// StoreHalves of FloatToBf16, without branches: several at a time.
bool StoreBf16(const float* from, int64_t n, std::byte* to) {
  constexpr int64_t kAtOnce = 64;
  uint32_t grown = 0;
  uint16_t halves[kAtOnce];
  for (int64_t first = 0; first < n; first += kAtOnce) {
    const int64_t m = std::min(kAtOnce, n - first);
    uint32_t bits[kAtOnce] = {};
    std::memcpy(bits, from + first, static_cast<size_t>(m) * sizeof(float));
    for (int64_t i = 0; i < kAtOnce; ++i) {
      const uint32_t size = bits[i] & 0x7fffffffu;
      const uint32_t rounded = (bits[i] + 0x7fffu + ((bits[i] >> 16) & 1u)) >> 16;
      const uint32_t nan = (bits[i] >> 16) | 0x40u;
      grown |= size < 0x7f800000u && (rounded & 0x7f80u) == 0x7f80u ? 1u : 0u;
      halves[i] = static_cast<uint16_t>(size > 0x7f800000u ? nan : rounded);
    }
    std::memcpy(to + 2 * first, halves, static_cast<size_t>(m) * sizeof(uint16_t));
  }
  return grown == 0;
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

float Rounded(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16:
      return engine::Bf16ToFloat(engine::FloatToBf16(value));
    case DType::kF16:
      return engine::F16ToFloat(engine::FloatToF16(value));
    default:
      return value;
  }
}

// Numbers of a type in their order, so that neighbours differ by 1; and back.
int64_t OrdinalOf(DType dtype, float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  uint32_t sign = 0x80000000u;
  if (dtype != DType::kF32) {
    bits = dtype == DType::kBF16 ? engine::FloatToBf16(value) : engine::FloatToF16(value);
    sign = 0x8000u;
  }
  // Minus zero is a number of its own.
  return (bits & sign) != 0 ? -1 - static_cast<int64_t>(bits & (sign - 1))
                            : static_cast<int64_t>(bits);
}

float FromOrdinal(DType dtype, int64_t ordinal) {
  const uint32_t sign = dtype == DType::kF32 ? 0x80000000u : 0x8000u;
  const int64_t largest = sign - 1;
  if (ordinal > largest || -1 - ordinal > largest) return std::nanf("");
  const uint32_t bits =
      ordinal < 0 ? sign | static_cast<uint32_t>(-1 - ordinal) : static_cast<uint32_t>(ordinal);
  if (dtype == DType::kF32) return std::bit_cast<float>(bits);
  const auto half = static_cast<uint16_t>(bits);
  return dtype == DType::kBF16 ? engine::Bf16ToFloat(half) : engine::F16ToFloat(half);
}

bool SameBits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// Of the floats whose product is `product`, that with the most zeros at its end; the quotient where
// there is none.
float Quotient(float product, float factor) {
  const float quotient = product / factor;
  const uint32_t bits = std::bit_cast<uint32_t>(quotient);
  if ((bits & 0xffffu) == 0 || !std::isfinite(quotient) || (bits & 0x7fffffffu) == 0) {
    return quotient;
  }
  float best = quotient;
  int best_zeros = -1;
  for (const uint32_t candidate : {bits, bits - 1, bits + 1}) {
    const auto value = std::bit_cast<float>(candidate);
    if (!SameBits(value * factor, product)) continue;
    const int zeros = std::countr_zero(candidate);
    if (zeros <= best_zeros) continue;
    best_zeros = zeros;
    best = value;
  }
  return best;
}

// Quotient of many. Nearly all numbers of a model in 16 bits are found by rounding to 16 bits what
// the division gives, several at a time.
void Quotients(float factor, float* values, int64_t n) {
  constexpr int64_t kAtOnce = 256;
  float rounded[kAtOnce];
  for (int64_t first = 0; first < n; first += kAtOnce) {
    float* const part = values + first;
    const int64_t m = std::min(kAtOnce, n - first);
    uint32_t others = 0;
    for (int64_t i = 0; i < m; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(part[i] / factor);
      rounded[i] = std::bit_cast<float>((bits + 0x8000u) & 0xffff0000u);
      others |= std::bit_cast<uint32_t>(rounded[i] * factor) ^ std::bit_cast<uint32_t>(part[i]);
    }
    if (others == 0) {
      std::memcpy(part, rounded, static_cast<size_t>(m) * sizeof(float));
      continue;
    }
    for (int64_t i = 0; i < m; ++i) {
      part[i] = SameBits(rounded[i] * factor, part[i]) ? rounded[i] : Quotient(part[i], factor);
    }
  }
}

void Undo(const MaxTextArithmetic& arithmetic, DType leaf_dtype, float* values, int64_t n) {
  if (arithmetic.IsNone()) return;
  if (arithmetic.added == 0 && leaf_dtype == DType::kF32) {
    return Quotients(arithmetic.factor, values, n);
  }
  for (int64_t i = 0; i < n; ++i) values[i] = FromMaxText(arithmetic, leaf_dtype, values[i]);
}

void Do(const MaxTextArithmetic& arithmetic, float* values, int64_t n) {
  if (arithmetic.IsNone()) return;
  for (int64_t i = 0; i < n; ++i) values[i] = ToMaxText(arithmetic, values[i]);
}

// From MaxText's numbers, in place; `at` is where they are in the tensor.
void Recover(const MaxTextLeaf& leaf, DType leaf_dtype, const Corrections& corrections, int64_t at,
             float* values, int64_t n) {
  if (corrections.steps.empty()) return Undo(leaf.arithmetic, leaf_dtype, values, n);
  for (int64_t i = 0; i < n; ++i) {
    const float theirs = values[i];
    values[i] = FromMaxText(leaf.arithmetic, leaf_dtype, theirs);
    const float corrected =
        FromOrdinal(corrections.dtype, OrdinalOf(corrections.dtype, values[i]) +
                                           corrections.steps[static_cast<size_t>(at + i)]);
    if (SameBits(Rounded(leaf_dtype, ToMaxText(leaf.arithmetic, corrected)), theirs)) {
      values[i] = corrected;
    }
  }
}

// Where a row of a layer begins in the leaf, in elements.
int64_t RowOffset(const MaxTextLeaf& leaf, int64_t layer, int64_t row) {
  const int64_t layers = leaf.is_scanned ? leaf.n_layers() : 1;
  const int64_t within = leaf.is_scanned ? layer : 0;
  const int64_t columns = leaf.columns();
  return ((row / leaf.group * layers + within) * leaf.group + row % leaf.group) * columns;
}

// Which output of Hugging Face's a column here is.
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

// Calls square(row, rows, column, columns) for all squares of the rows.
template <class Square>
void InSquares(RowRange rows, int64_t columns, const Square& square) {
  for (int64_t row = rows.first; row < rows.last; row += kTile) {
    const int64_t n_rows = std::min(kTile, rows.last - row);
    for (int64_t column = 0; column < columns; column += kTile) {
      square(row, n_rows, column, std::min(kTile, columns - column));
    }
  }
}

// Moves numbers that stay what they are, of 2 or 4 bytes, between a leaf's order and a tensor's.
// `leaf_at(row, column)` and `tensor_at(row, column)` are where a run begins: of columns, of rows.
template <class T, class LeafAt, class TensorAt>
void MoveToTensor(RowRange rows, int64_t columns, const LeafAt& leaf_at,
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
void MoveToLeaf(RowRange rows, int64_t columns, const TensorAt& tensor_at, const LeafAt& leaf_at) {
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

float ToMaxText(const MaxTextArithmetic& arithmetic, float value) {
  return arithmetic.added != 0 ? value + arithmetic.added : value * arithmetic.factor;
}

float FromMaxText(const MaxTextArithmetic& arithmetic, DType leaf_dtype, float value) {
  if (arithmetic.added != 0) return value - arithmetic.added;
  if (arithmetic.factor == 1) return value;
  // A number that was rounded to 16 bits is no product any more.
  return leaf_dtype == DType::kF32 ? Quotient(value, arithmetic.factor) : value / arithmetic.factor;
}

bool TensorToLeaf(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> tensor, DType tensor_dtype, DType leaf_dtype,
                  std::span<std::byte> out) {
  const Load load = LoadOf(tensor_dtype);
  const Store store = StoreOf(leaf_dtype);
  const int64_t from_bytes = BytesOf(tensor_dtype), to_bytes = BytesOf(leaf_dtype);
  const int64_t columns = leaf.columns();
  bool fits = true;
  if (leaf.IsTable()) {
    std::vector<float> run(kRun);
    const int64_t there = leaf.tensor_shape[0] * columns;
    InRuns(rows.first * columns, rows.last * columns, [&](int64_t at, int64_t n) {
      const int64_t stored = std::clamp<int64_t>(there - at, 0, n);
      load(tensor.data() + at * from_bytes, stored, run.data());
      std::fill(run.begin() + stored, run.begin() + n, 0.0f);
      Do(leaf.arithmetic, run.data(), n);
      fits &= store(run.data(), n, out.data() + at * to_bytes);
    });
    return fits;
  }
  // A vector is a column.
  const int64_t n_rows_of_tensor = leaf.rows();
  const auto tensor_at = [&](int64_t row, int64_t column) {
    return tensor.data() + (OutputOf(leaf, column) * n_rows_of_tensor + row) * from_bytes;
  };
  const auto leaf_at = [&](int64_t row, int64_t column) {
    return out.data() + (RowOffset(leaf, layer, row) + column) * to_bytes;
  };
  if (leaf.arithmetic.IsNone() && tensor_dtype == leaf_dtype) {
    from_bytes == 2 ? MoveToLeaf<uint16_t>(rows, columns, tensor_at, leaf_at)
                    : MoveToLeaf<uint32_t>(rows, columns, tensor_at, leaf_at);
    return true;
  }
  std::vector<float> tile(kTile * kTile), turned(kTile * kTile);
  InSquares(rows, columns, [&](int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) {
    for (int64_t c = 0; c < n_columns; ++c) {
      load(tensor_at(row, column + c), n_rows, tile.data() + c * kTile);
    }
    TransposeTile(tile.data(), n_columns, n_rows, turned.data());
    for (int64_t r = 0; r < n_rows; ++r) {
      float* line = turned.data() + r * kTile;
      Do(leaf.arithmetic, line, n_columns);
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
  const int64_t last = first + static_cast<int64_t>(run.size()) / from_bytes;
  if (leaf.arithmetic.IsNone() && tensor_dtype == leaf_dtype) {
    std::memcpy(out.data() + first * to_bytes, run.data(), run.size());
    return true;
  }
  std::vector<float> values(kRun);
  bool fits = true;
  InRuns(first, last, [&](int64_t at, int64_t n) {
    load(run.data() + (at - first) * from_bytes, n, values.data());
    Recover(leaf, leaf_dtype, corrections, at, values.data(), n);
    fits &= store(values.data(), n, out.data() + at * to_bytes);
  });
  return fits;
}

bool LeafToTensor(const MaxTextLeaf& leaf, int64_t layer, RowRange rows,
                  std::span<const std::byte> bytes, DType leaf_dtype, DType tensor_dtype,
                  const Corrections& corrections, std::span<std::byte> out) {
  const Load load = LoadOf(leaf_dtype);
  const Store store = StoreOf(tensor_dtype);
  const int64_t from_bytes = BytesOf(leaf_dtype), to_bytes = BytesOf(tensor_dtype);
  const int64_t columns = leaf.columns();
  bool fits = true;
  if (leaf.IsTable()) {
    const int64_t first = rows.first * columns;
    const auto n = static_cast<size_t>((rows.last - rows.first) * columns * from_bytes);
    return RunToTensor(leaf, first, bytes.subspan(static_cast<size_t>(first * from_bytes), n),
                       leaf_dtype, tensor_dtype, corrections, out);
  }
  const int64_t n_rows_of_tensor = leaf.rows();
  const auto leaf_at = [&](int64_t row, int64_t column) {
    return bytes.data() + (RowOffset(leaf, layer, row) + column) * from_bytes;
  };
  const auto place_of = [&](int64_t row, int64_t column) {
    return OutputOf(leaf, column) * n_rows_of_tensor + row;
  };
  if (leaf.arithmetic.IsNone() && tensor_dtype == leaf_dtype) {
    const auto tensor_at = [&](int64_t row, int64_t column) {
      return out.data() + place_of(row, column) * to_bytes;
    };
    from_bytes == 2 ? MoveToTensor<uint16_t>(rows, columns, leaf_at, tensor_at)
                    : MoveToTensor<uint32_t>(rows, columns, leaf_at, tensor_at);
    return true;
  }
  std::vector<float> tile(kTile * kTile), turned(kTile * kTile);
  InSquares(rows, columns, [&](int64_t row, int64_t n_rows, int64_t column, int64_t n_columns) {
    for (int64_t r = 0; r < n_rows; ++r) {
      load(leaf_at(row + r, column), n_columns, tile.data() + r * kTile);
    }
    TransposeTile(tile.data(), n_rows, n_columns, turned.data());
    for (int64_t c = 0; c < n_columns; ++c) {
      float* line = turned.data() + c * kTile;
      const int64_t at = place_of(row, column + c);
      Recover(leaf, leaf_dtype, corrections, at, line, n_rows);
      fits &= store(line, n_rows, out.data() + at * to_bytes);
    }
  });
  return fits;
}

void Loss::Add(const Loss& other) {
  changed += other.changed;
  max_abs = std::max(max_abs, other.max_abs);
}

namespace {

// Calls each(index, number, what comes back of it).
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
    if (SameBits(was, is)) return;
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
    // Numbers of both signs can be further apart than 32 bits say.
    steps[static_cast<size_t>(i)] = static_cast<int32_t>(step);
  });
  return steps;
}

}  // namespace tandem::convert
