#include "engine/formats/quantized/encoded_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/formats/stored/block_decoders.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

uint8_t ByteAt(const ConstTensorView& view, int64_t i) {
  return std::to_integer<uint8_t>(view.data[i]);
}

uint32_t WordAt(const ConstTensorView& view, int64_t i) {
  uint32_t word = 0;
  std::memcpy(&word, view.data + i * static_cast<int64_t>(sizeof(word)), sizeof(word));
  return word;
}

float FloatAt(const ConstTensorView& view, int64_t i) {
  const std::byte* at = view.data + i * static_cast<int64_t>(DTypeBytes(view.dtype));
  if (view.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, at, sizeof(half));
  return view.dtype == DType::kF16 ? F16ToFloat(half) : Bf16ToFloat(half);
}

// `count` floating-point numbers from number `first` on.
void Floats(const ConstTensorView& view, int64_t first, int64_t count, float* out) {
  const auto width = static_cast<int64_t>(DTypeBytes(view.dtype));
  ConvertToF32({view.data + first * width, view.dtype, {count}}, {out, static_cast<size_t>(count)});
}

class ScaledByteRows final : public EncodedRows {
 public:
  explicit ScaledByteRows(ScaledBytes parts)
      : parts_(std::move(parts)), columns_(parts_.numbers.shape.at(1)) {}

  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    const int64_t n_scales = CeilDiv(columns_, parts_.block_columns);
    std::vector<float> scales(static_cast<size_t>(n_scales));
    for (int64_t i = 0; i < count; ++i, out += columns_) {
      const int64_t row = first + i * step;
      Floats(parts_.scales, row / parts_.block_rows * n_scales, n_scales, scales.data());
      ReadRow(row, scales, out);
    }
  }

 private:
  void ReadRow(int64_t row, const std::vector<float>& scales, float* out) const {
    if (parts_.numbers.dtype == DType::kI8) {
      for (int64_t c = 0; c < columns_; ++c) {
        out[c] = static_cast<int8_t>(ByteAt(parts_.numbers, row * columns_ + c));
      }
    } else {
      Floats(parts_.numbers, row * columns_, columns_, out);
    }
    for (int64_t c = 0; c < columns_; ++c) {
      out[c] *= scales[static_cast<size_t>(c / parts_.block_columns)] * parts_.factor;
    }
  }

  const ScaledBytes parts_;
  const int64_t columns_;
};

class SplitMxfp4Rows final : public EncodedRows {
 public:
  explicit SplitMxfp4Rows(SplitMxfp4 parts) : parts_(std::move(parts)) {}

  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t group = 0; group < parts_.columns / 32; ++group) {
        EncodedGroup values;
        ReadGroup(first + i * step, group, &values);
        for (const int8_t q : values.q) *out++ = values.scale * static_cast<float>(q);
      }
    }
  }
  void ReadGroup(int64_t row, int64_t group, EncodedGroup* out) const override {
    const int64_t at = row * (parts_.columns / 32) + group;
    out->e8m0 = ByteAt(parts_.scales, at);
    out->scale = HalfE8m0(out->e8m0);
    for (int64_t i = 0; i < 32; ++i) {
      const uint8_t byte = ByteAt(parts_.blocks, at * 16 + i / 2);
      out->q[i] = kDoubledE2m1[byte >> (i % 2 * 4) & 15];
    }
  }

 private:
  const SplitMxfp4 parts_;
};

class TableNibbleRows final : public EncodedRows {
 public:
  explicit TableNibbleRows(TableNibbles parts) : parts_(std::move(parts)) {}

  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = (first + i * step) * parts_.columns;
      for (int64_t at = begin; at < begin + parts_.columns; ++at) {
        const uint8_t byte = ByteAt(parts_.codes, at / 2);
        const float value = parts_.table[byte >> (at % 2 == 0 ? 4 : 0) & 15];
        *out++ = value * parts_.scales[static_cast<size_t>(at / parts_.block)];
      }
    }
  }

 private:
  const TableNibbles parts_;
};

// The nibble of a word that has output j of eight in AWQ's order.
constexpr int kAwqNibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};

class PackedIntegerRows final : public EncodedRows {
 public:
  explicit PackedIntegerRows(PackedIntegers parts)
      : parts_(std::move(parts)),
        per_word_(32 / parts_.bits),
        groups_(CeilDiv(parts_.columns, parts_.group_size)) {}

  // Inputs outside, because AWQ and GPTQ keep the outputs of one input together.
  void Read(int64_t first, int64_t step, int64_t count, float* out) const override {
    std::vector<float> scales(static_cast<size_t>(count));
    std::vector<int> zeros(scales.size());
    int64_t group = -1;
    for (int64_t c = 0; c < parts_.columns; ++c) {
      const bool is_new = group != GroupOf(c);
      group = GroupOf(c);
      for (size_t i = 0; i < scales.size(); ++i) {
        const int64_t row = first + static_cast<int64_t>(i) * step;
        if (is_new) {
          scales[i] = Scale(row, group);
          zeros[i] = Zero(row, group);
        }
        out[static_cast<int64_t>(i) * parts_.columns + c] =
            scales[i] * static_cast<float>(Number(row, c) - zeros[i]);
      }
    }
  }

  int ExactBits() const override {
    if (!parts_.group_of.empty() || parts_.group_size % 32 != 0 || parts_.columns % 32 != 0) {
      return 0;
    }
    const int middle = 1 << (parts_.bits - 1);
    for (int64_t group = 0; group < groups_; ++group) {
      for (int64_t row = 0; row < parts_.rows; ++row) {
        if (Zero(row, group) != middle) return parts_.bits == 4 ? 8 : 0;
      }
    }
    return parts_.bits;
  }
  void ReadGroup(int64_t row, int64_t group, EncodedGroup* out) const override {
    const int64_t begin = group * 32, of = GroupOf(begin);
    const int zero = Zero(row, of);
    out->scale = Scale(row, of);
    for (int64_t i = 0; i < 32; ++i) {
      out->q[i] = static_cast<int8_t>(Number(row, begin + i) - zero);
    }
  }

 private:
  using Order = PackedIntegers::Order;

  int64_t GroupOf(int64_t column) const {
    return parts_.group_of.empty() ? column / parts_.group_size
                                   : parts_.group_of[static_cast<size_t>(column)];
  }
  // Item `i` of a row of words.
  int Unpack(const ConstTensorView& words, int64_t row_begin, int64_t i) const {
    const auto place = static_cast<int>(i % per_word_);
    const int slot = parts_.order == Order::kAwq ? kAwqNibbles[place] : place;
    const uint32_t word = WordAt(words, row_begin + i / per_word_);
    return static_cast<int>(word >> (slot * parts_.bits) & ((1U << parts_.bits) - 1));
  }
  // Item `i` of a column of words.
  int UnpackDown(const ConstTensorView& words, int64_t width, int64_t column, int64_t i) const {
    const uint32_t word = WordAt(words, i / per_word_ * width + column);
    const auto shift = static_cast<int>(i % per_word_) * parts_.bits;
    return static_cast<int>(word >> shift & ((1U << parts_.bits) - 1));
  }
  int Number(int64_t row, int64_t column) const {
    switch (parts_.order) {
      case Order::kAwq:
        return Unpack(parts_.words, column * CeilDiv(parts_.rows, per_word_), row);
      case Order::kGptq:
        return UnpackDown(parts_.words, parts_.rows, row, column);
      case Order::kCompressed:
        break;
    }
    return Unpack(parts_.words, row * CeilDiv(parts_.columns, per_word_), column);
  }
  int Zero(int64_t row, int64_t group) const {
    if (parts_.zeros.data == nullptr) return 1 << (parts_.bits - 1);
    if (parts_.order == Order::kCompressed) {
      return UnpackDown(parts_.zeros, groups_, group, row);
    }
    const int stored = Unpack(parts_.zeros, group * CeilDiv(parts_.rows, per_word_), row);
    return parts_.zero_plus_one ? (stored + 1) & ((1 << parts_.bits) - 1) : stored;
  }
  float Scale(int64_t row, int64_t group) const {
    const bool by_row = parts_.order == Order::kCompressed;
    return FloatAt(parts_.scales, by_row ? row * groups_ + group : group * parts_.rows + row);
  }

  const PackedIntegers parts_;
  const int64_t per_word_;
  const int64_t groups_;
};

}  // namespace

std::shared_ptr<const EncodedRows> MakeScaledBytes(ScaledBytes parts) {
  return std::make_shared<ScaledByteRows>(std::move(parts));
}
std::shared_ptr<const EncodedRows> MakeSplitMxfp4(SplitMxfp4 parts) {
  return std::make_shared<SplitMxfp4Rows>(std::move(parts));
}
std::shared_ptr<const EncodedRows> MakePackedIntegers(PackedIntegers parts) {
  return std::make_shared<PackedIntegerRows>(std::move(parts));
}
std::shared_ptr<const EncodedRows> MakeTableNibbles(TableNibbles parts) {
  return std::make_shared<TableNibbleRows>(std::move(parts));
}

}  // namespace tandem::engine
