#include "engine/formats/stored/stored_tensor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "engine/base/check.h"
#include "engine/formats/stored/block_decoders.h"
#include "engine/tensor/six_bit_scales.h"

namespace tandem::engine {
namespace {

void DecodeQ4_0(BlockView b, float* out) {
  const float d = b.Half(0);
  for (int64_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.Nibble(2, i) - 8);
}

void DecodeQ4_1(BlockView b, float* out) {
  const float d = b.Half(0), m = b.Half(2);
  for (int64_t i = 0; i < 32; ++i) out[i] = d * static_cast<float>(b.Nibble(4, i)) + m;
}

void DecodeQ5_0(BlockView b, float* out) {
  const float d = b.Half(0);
  for (int64_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>((b.Nibble(6, i) | b.Bit(2, i) << 4) - 16);
  }
}

void DecodeQ5_1(BlockView b, float* out) {
  const float d = b.Half(0), m = b.Half(2);
  for (int64_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(b.Nibble(8, i) | b.Bit(4, i) << 4) + m;
  }
}

void DecodeQ8_0(BlockView b, float* out) {
  const float d = b.Half(0);
  for (int64_t i = 0; i < 32; ++i) {
    out[i] = d * static_cast<float>(static_cast<int8_t>(b.Byte(2 + i)));
  }
}

// Scale and minimum of one of the eight groups of a Q4_K or Q5_K block.
struct GroupScale {
  float scale;
  float min;
};
GroupScale ReadGroupScale(BlockView b, int64_t group) {
  const auto [scale, minimum] = ReadSixBitScale(reinterpret_cast<const uint8_t*>(b.at + 4), group);
  return {b.Half(0) * static_cast<float>(scale), b.Half(2) * static_cast<float>(minimum)};
}

void DecodeQ4_K(BlockView b, float* out) {
  for (int64_t group = 0; group < 8; ++group) {
    const GroupScale s = ReadGroupScale(b, group);
    for (int64_t i = 0; i < 32; ++i) {
      const int q = b.Byte(16 + group / 2 * 32 + i) >> (group % 2 * 4) & 15;
      *out++ = s.scale * static_cast<float>(q) - s.min;
    }
  }
}

void DecodeQ5_K(BlockView b, float* out) {
  for (int64_t group = 0; group < 8; ++group) {
    const GroupScale s = ReadGroupScale(b, group);
    for (int64_t i = 0; i < 32; ++i) {
      const int low = b.Byte(48 + group / 2 * 32 + i) >> (group % 2 * 4) & 15;
      const int high = b.Byte(16 + i) >> group & 1;
      *out++ = s.scale * static_cast<float>(low | high << 4) - s.min;
    }
  }
}

// Layout: low nibbles in 128 bytes, two upper bits in 64 more, sixteen int8 scales, then d.
void DecodeQ6_K(BlockView b, float* out) {
  constexpr int64_t kHigh = 128, kScales = 192, kD = 208;
  const float d = b.Half(kD);
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t half = i / 128, in_half = i % 128;
    const int low = b.Byte(half * 64 + in_half % 64) >> (in_half / 64 * 4) & 15;
    const int high = b.Byte(kHigh + half * 32 + i % 32) >> (in_half / 32 * 2) & 3;
    const float scale = d * static_cast<float>(static_cast<int8_t>(b.Byte(kScales + i / 16)));
    out[i] = scale * static_cast<float>((low | high << 4) - 32);
  }
}

struct EncodingInfo {
  std::string_view name;
  int64_t elements;
  int64_t bytes;
  void (*decode)(BlockView block, float* out);
};
// Indexed by Encoding.
constexpr auto kEncodings = std::to_array<EncodingInfo>({
    {"plain", 1, 0, nullptr},
    {"Q4_0", 32, 18, DecodeQ4_0},
    {"Q4_1", 32, 20, DecodeQ4_1},
    {"Q5_0", 32, 22, DecodeQ5_0},
    {"Q5_1", 32, 24, DecodeQ5_1},
    {"Q8_0", 32, 34, DecodeQ8_0},
    {"Q4_K", 256, 144, DecodeQ4_K},
    {"Q5_K", 256, 176, DecodeQ5_K},
    {"Q6_K", 256, 210, DecodeQ6_K},
    {"Q2_K", 256, 84, DecodeQ2_K},
    {"Q3_K", 256, 110, DecodeQ3_K},
    {"IQ4_NL", 32, 18, DecodeIQ4_NL},
    {"IQ4_XS", 256, 136, DecodeIQ4_XS},
    {"IQ3_S", 256, 110, DecodeIQ3_S},
    {"IQ3_XXS", 256, 98, DecodeIQ3_XXS},
    {"IQ2_S", 256, 82, DecodeIQ2_S},
    {"IQ2_XS", 256, 74, DecodeIQ2_XS},
    {"IQ2_XXS", 256, 66, DecodeIQ2_XXS},
    {"IQ1_S", 256, 50, DecodeIQ1_S},
    {"IQ1_M", 256, 56, DecodeIQ1_M},
    {"TQ1_0", 256, 54, DecodeTQ1_0},
    {"TQ2_0", 256, 66, DecodeTQ2_0},
    {"MXFP4", 32, 17, DecodeMXFP4},
    {"MXFP4", 2, 1, nullptr},
    {"FP8", 1, 1, nullptr},
    {"AWQ int4", 2, 1, nullptr},
    {"GPTQ int4", 2, 1, nullptr},
    {"GPTQ int8", 1, 1, nullptr},
    {"packed int4", 2, 1, nullptr},
    {"packed int8", 1, 1, nullptr},
    {"NF4", 2, 1, nullptr},
    {"joined blocks", 1, 1, nullptr},
});
static_assert(kEncodings.size() == kEncodingCount);

const EncodingInfo& InfoOf(Encoding encoding) {
  return kEncodings.at(static_cast<size_t>(encoding));
}

// Bytes of `n` neighbours of a row in the file.
int64_t BytesOf(const StoredTensor& tensor, int64_t n) {
  if (tensor.encoding == Encoding::kPlain) {
    return n * static_cast<int64_t>(DTypeBytes(tensor.view.dtype));
  }
  return n / BlockElements(tensor.encoding) * EncodedBlockBytes(tensor.encoding);
}

int64_t RowStrideOf(const StoredTensor& tensor) {
  return tensor.row_stride > 0 ? tensor.row_stride : tensor.row_elements();
}

// Reads rows of a part whose numbers lie column_stride apart, column by column, as the file has
// them.
void ReadStridedRows(const StoredTensor& tensor, int64_t first, int64_t count, float* out) {
  const int64_t n = tensor.row_elements(), row_stride = RowStrideOf(tensor);
  const auto width = static_cast<int64_t>(DTypeBytes(tensor.view.dtype));
  std::vector<float> column(static_cast<size_t>((count - 1) * row_stride + 1));
  ConstTensorView view{
      .dtype = tensor.view.dtype,
      .shape = {static_cast<int64_t>(column.size())},
  };
  for (int64_t i = 0; i < n; ++i) {
    view.data = tensor.view.data + (i * tensor.column_stride + first * row_stride) * width;
    ConvertToF32(view, column);
    for (int64_t r = 0; r < count; ++r) {
      out[r * n + i] = column[static_cast<size_t>(r * row_stride)];
    }
  }
}

}  // namespace

void EncodedRows::ReadGroup(int64_t /*row*/, int64_t /*group*/, EncodedGroup* /*out*/) const {
  TANDEM_CHECK(false);
}

std::string_view EncodingName(Encoding encoding) { return InfoOf(encoding).name; }

int64_t BlockElements(Encoding encoding) { return InfoOf(encoding).elements; }

int64_t EncodedBlockBytes(Encoding encoding) { return InfoOf(encoding).bytes; }

int64_t StoredTensor::rows() const {
  if (view.shape.empty()) return 1;
  return transposed ? view.shape.at(1) : view.shape.front();
}

int64_t StoredTensor::row_elements() const {
  if (transposed) return view.shape.at(0);
  int64_t count = 1;
  for (size_t axis = 1; axis < view.shape.size(); ++axis) count *= view.shape[axis];
  return count;
}

std::span<const std::byte> StoredTensor::bytes() const {
  if (!encoded_bytes.empty()) return encoded_bytes.front();
  const int64_t n_rows = rows(), n = row_elements();
  if (n_rows == 0 || n == 0) return {view.data, 0};
  const int64_t last = column_stride > 0 ? (n - 1) * column_stride + 1 : n;
  return {view.data, static_cast<size_t>(BytesOf(*this, (n_rows - 1) * RowStrideOf(*this) + last))};
}

const std::byte* StoredTensor::RowData(int64_t row) const {
  int64_t in_file = row;
  if (interleaved_heads > 0) {
    const int64_t of_head = rows() / interleaved_heads;
    const int64_t in_head = row % of_head;
    const int64_t half = of_head / 2;
    in_file = row - in_head + in_head % half * 2 + in_head / half;
  }
  return view.data + BytesOf(*this, in_file * RowStrideOf(*this));
}

std::string DecodingOf(const StoredTensor& tensor) {
  std::string text(EncodingName(tensor.encoding));
  if (tensor.interleaved_heads > 0) text += " pairs " + std::to_string(tensor.interleaved_heads);
  // Always a whole number: converters add 1.
  if (tensor.added != 0) text += " less " + std::to_string(static_cast<int64_t>(tensor.added));
  if (tensor.transposed) text += " transposed";
  if (!tensor.part.empty()) text += " part " + tensor.part;
  return text + "/" + std::to_string(kDecodeVersion);
}

void ReadRows(const StoredTensor& tensor, int64_t first, int64_t count, float* out) {
  const int64_t n = tensor.row_elements();
  if (n == 0 || count == 0) return;  // a hostile file may claim 2^60 such rows
  if (tensor.column_stride > 0) return ReadStridedRows(tensor, first, count, out);
  if (tensor.encoded != nullptr) {
    // An entry of a stack's first axis has several rows.
    const int64_t inner = tensor.view.shape.size() < 2 ? 1 : n / tensor.view.shape.back();
    const int64_t step = RowStrideOf(tensor) / n;
    return tensor.encoded->Read(tensor.first_row + first * step * inner, step, count * inner, out);
  }
  for (int64_t row = first; row < first + count; ++row, out += n) {
    const std::byte* data = tensor.RowData(row);
    if (tensor.encoding == Encoding::kPlain) {
      ConvertToF32({.data = data, .dtype = tensor.view.dtype, .shape = {n}},
                   {out, static_cast<size_t>(n)});
    } else {
      const EncodingInfo& info = InfoOf(tensor.encoding);
      for (int64_t i = 0; i < n; i += info.elements, data += info.bytes) {
        info.decode({data}, out + i);
      }
    }
    if (tensor.added == 0) continue;
    for (int64_t i = 0; i < n; ++i) out[i] -= tensor.added;
  }
}

bool HasScaleOfNoNumber(const StoredTensor& tensor, std::span<const float> values) {
  if (tensor.encoding != Encoding::kMXFP4 && tensor.encoding != Encoding::kMxfp4Split) return false;
  return std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); });
}

std::vector<float> DecodeTensor(const StoredTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.view.elements()));
  if (values.empty()) return values;
  if (!tensor.transposed) {
    ReadRows(tensor, 0, tensor.rows(), values.data());
    return values;
  }
  const int64_t rows = tensor.rows(), n = tensor.row_elements();
  std::vector<float> row(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    ReadRows(tensor, r, 1, row.data());
    for (int64_t i = 0; i < n; ++i)
      values[static_cast<size_t>(i * rows + r)] = row[static_cast<size_t>(i)];
  }
  return values;
}

}  // namespace tandem::engine
