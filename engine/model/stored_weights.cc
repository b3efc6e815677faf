#include "engine/model/stored_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "engine/base/check.h"
#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

// THE table: the block format for each stored type. Q8_0, Q4_0 and Q4_K have the same numbers as
// ours in another byte order. The others have minima, groups of 16, uneven steps or more bits than
// int4; int8 in groups of 32 loses the least.
constexpr auto kRepackings = std::to_array<Repacking>({
    {Encoding::kQ8_0, BlockFormat::kInt8, /*exact=*/true},
    {Encoding::kQ4_0, BlockFormat::kInt4, /*exact=*/true},
    {Encoding::kQ4_1, BlockFormat::kInt8, false},
    {Encoding::kQ5_0, BlockFormat::kInt8, false},
    {Encoding::kQ5_1, BlockFormat::kInt8, false},
    {Encoding::kQ4_K, BlockFormat::kInt4K, true},
    {Encoding::kQ5_K, BlockFormat::kInt8, false},
    {Encoding::kQ6_K, BlockFormat::kInt8, false},
    {Encoding::kQ2_K, BlockFormat::kInt8, false},
    {Encoding::kQ3_K, BlockFormat::kInt8, false},
    {Encoding::kIQ4_NL, BlockFormat::kInt8, false},
    {Encoding::kIQ4_XS, BlockFormat::kInt8, false},
    {Encoding::kIQ3_S, BlockFormat::kInt8, false},
    {Encoding::kIQ3_XXS, BlockFormat::kInt8, false},
    {Encoding::kIQ2_S, BlockFormat::kInt8, false},
    {Encoding::kIQ2_XS, BlockFormat::kInt8, false},
    {Encoding::kIQ2_XXS, BlockFormat::kInt8, false},
    {Encoding::kIQ1_S, BlockFormat::kInt8, false},
    {Encoding::kIQ1_M, BlockFormat::kInt8, false},
    {Encoding::kTQ1_0, BlockFormat::kInt8, false},
    {Encoding::kTQ2_0, BlockFormat::kInt8, false},
    {Encoding::kMXFP4, BlockFormat::kMxfp4, true},
    {Encoding::kMxfp4Split, BlockFormat::kMxfp4, true},
    {Encoding::kFp8, BlockFormat::kInt8, false},
    {Encoding::kAwq4, BlockFormat::kInt8, false},
    {Encoding::kGptq4, BlockFormat::kInt8, false},
    {Encoding::kGptq8, BlockFormat::kInt8, false},
    {Encoding::kPacked4, BlockFormat::kInt8, false},
    {Encoding::kPacked8, BlockFormat::kInt8, false},
    {Encoding::kNf4, BlockFormat::kInt8, false},
    {Encoding::kJoined, BlockFormat::kInt8, false},
});

// Q8_0: a scale (f16) and 32 int8. Q4_0: a scale and sixteen bytes; low nibbles are the first
// sixteen numbers plus 8, high nibbles the other sixteen. MXFP4: a scale (E8M0) and nibbles.
BlockGroup ReadFileGroup(Encoding encoding, const std::byte* block) {
  BlockGroup group;
  if (encoding == Encoding::kMXFP4) {
    group.scale = std::to_integer<uint8_t>(*block);
    for (size_t i = 0; i < 16; ++i) {
      const auto both = std::to_integer<size_t>(block[1 + i]);
      group.q[i] = static_cast<int8_t>(kMxfp4Numbers[both & 15] - kMxfp4Offset);
      group.q[i + 16] = static_cast<int8_t>(kMxfp4Numbers[both >> 4] - kMxfp4Offset);
    }
    return group;
  }
  std::memcpy(&group.scale, block, sizeof(group.scale));
  const std::byte* q = block + sizeof(group.scale);
  if (encoding == Encoding::kQ8_0) {
    std::memcpy(group.q, q, sizeof(group.q));
    return group;
  }
  TANDEM_DCHECK(encoding == Encoding::kQ4_0);
  for (size_t i = 0; i < 16; ++i) {
    const auto both = std::to_integer<int>(q[i]);
    group.q[i] = static_cast<int8_t>((both & 15) - kInt4Offset);
    group.q[i + 16] = static_cast<int8_t>((both >> 4) - kInt4Offset);
  }
  return group;
}

// A group of a row, and the error of its scale as f16.
BlockGroup ReadGroup(const StoredTensor& source, int64_t row, int64_t group, BlockError* error) {
  if (source.encoded == nullptr) {
    const std::byte* block = source.RowData(row) + group * EncodedBlockBytes(source.encoding);
    return ReadFileGroup(source.encoding, block);
  }
  EncodedGroup read;
  const int64_t step =
      source.row_stride > 0 ? source.row_stride / source.row_elements() : int64_t{1};
  source.encoded->ReadGroup(source.first_row + row * step, group, &read);
  BlockGroup values;
  std::copy(std::begin(read.q), std::end(read.q), values.q);
  if (source.encoding == Encoding::kMxfp4Split) {
    values.scale = read.e8m0;
    return values;
  }
  values.scale = FloatToF16(read.scale);
  const double lost = static_cast<double>(read.scale) - F16ToFloat(values.scale);
  for (const int8_t q : read.q) {
    error->squared_error += lost * q * lost * q;
    error->squared += static_cast<double>(read.scale) * q * read.scale * q;
    error->max_abs = std::max(error->max_abs, std::abs(lost * q));
  }
  return values;
}

// Whether the tensor has rows of outputs. Readers of foreign files set `transposed` for families
// that store inputs first.
bool HasRowsOfOutputs(const StoredTensor& source, const WeightSpec& spec) {
  return source.transposed == (spec.layout == SourceLayout::kInOut);
}

// Moves the file's groups to their places. The error is not finite when a scale is not.
BlockError MoveGroups(OpsContext& ops, const StoredTensor& source, int64_t n, int64_t k,
                      BlockFormat block, std::byte* panels) {
  TANDEM_CHECK(k % kGroupSize == 0);
  const int64_t n_panels = (n + kLanes - 1) / kLanes;
  const int64_t panel_bytes = BlockPanelBytes(block, k);
  std::memset(panels, 0, static_cast<size_t>(n_panels * panel_bytes));
  std::vector<BlockError> errors(static_cast<size_t>(n_panels));
  // Lanes beyond n: q is 0, stored with its offset.
  const BlockGroup nothing;
  const auto move = [&](int64_t first, int64_t count, int) {
    for (int64_t panel = first; panel < first + count; ++panel) {
      std::byte* out = panels + panel * panel_bytes;
      BlockError& error = errors[static_cast<size_t>(panel)];
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t row = panel * kLanes + lane;
        for (int64_t group = 0; group < GroupsOf(k); ++group) {
          const BlockGroup values = row < n ? ReadGroup(source, row, group, &error) : nothing;
          PutGroup(block, out, k, group, lane, values);
          if (!std::isfinite(GroupScale(block, values))) error.squared_error = INFINITY;
        }
      }
    }
  };
  ParallelRows(ops, n_panels, k * kLanes, move);
  BlockError total;
  for (const BlockError& error : errors) total.Add(error);
  return total;
}

// Packs whole panels of decoded rows.
BlockError PackDecoded(OpsContext& ops, const float* values, int64_t n, int64_t k, DType dtype,
                       BlockFormat block, std::byte* panels) {
  constexpr SourceLayout layout = SourceLayout::kOutIn;
  const ConstTensorView view{
      .data = reinterpret_cast<const std::byte*>(values), .dtype = DType::kF32, .shape = {n, k}};
  if (block != BlockFormat::kNone) return PackBlockPanels(ops, view, layout, n, k, block, panels);
  PackPanels(ops, view, layout, n, k, dtype, panels);
  return {};
}

constexpr int64_t kDecodedBytes = 8 << 20;

}  // namespace

Repacking RepackingOf(const StoredTensor& tensor) {
  const Encoding encoding = tensor.encoding;
  const int bits = tensor.encoded == nullptr ? 0 : tensor.encoded->ExactBits();
  if (bits > 0) return {encoding, bits == 4 ? BlockFormat::kInt4 : BlockFormat::kInt8, true};
  for (const Repacking& repacking : kRepackings) {
    if (repacking.encoding == encoding) return repacking;
  }
  TANDEM_CHECK(false);
}

BlockError PackStored(OpsContext& ops, const StoredTensor& source, const WeightSpec& spec,
                      DType dtype, BlockFormat block, bool exact, std::byte* panels) {
  const int64_t n = spec.n, k = spec.k;
  TANDEM_CHECK(HasRowsOfOutputs(source, spec));
  if (exact) {
    if (block == BlockFormat::kInt4K) {
      return PackQ4K(
          ops, [&](int64_t row) { return source.RowData(row); }, n, k, panels);
    }
    return MoveGroups(ops, source, n, k, block, panels);
  }
  const int64_t rows = source.rows(), columns = source.row_elements();
  const int64_t fitting = kDecodedBytes / (columns * static_cast<int64_t>(sizeof(float)));
  const int64_t step = std::max(kLanes, fitting / kLanes * kLanes);
  std::vector<float> values(static_cast<size_t>(std::min(step, rows) * columns));
  BlockError total;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t here = std::min(step, rows - begin);
    ParallelRows(ops, here, columns, [&](int64_t first, int64_t count, int) {
      ReadRows(source, begin + first, count, values.data() + first * columns);
    });
    if (HasScaleOfNoNumber(source, std::span(values).first(static_cast<size_t>(here * columns)))) {
      total.squared_error = INFINITY;
    }
    std::byte* to = panels + (block != BlockFormat::kNone ? PanelBytes(block, begin, k)
                                                          : PanelBytes(dtype, begin, k));
    total.Add(PackDecoded(ops, values.data(), here, k, dtype, block, to));
  }
  return total;
}

}  // namespace tandem::engine
