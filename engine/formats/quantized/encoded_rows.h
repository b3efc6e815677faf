#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/formats/quantized/quantization_settings.h"
#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// Blocks of b numbers that cover a.
inline int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Decoders of quantised checkpoints. Callers have checked shapes and types; views are unaligned.

// Numbers of one byte (FP8, int8) times the scale of their block.
struct ScaledBytes {
  ConstTensorView numbers;  // [rows, columns], kF8E4M3 or kI8
  ConstTensorView
      scales;  // floating point, [rows / block_rows, columns / block_columns], rounded up
  int64_t block_rows = 1;
  int64_t block_columns = 1;
  float factor = 1;  // of all scales
};
std::shared_ptr<const EncodedRows> MakeScaledBytes(ScaledBytes parts);

// gpt-oss: E2M1 in groups of 32 with E8M0 scales; the low nibble of a byte comes first.
struct SplitMxfp4 {
  ConstTensorView blocks;  // u8 [rows, groups, 16]
  ConstTensorView scales;  // u8 [rows, groups]
  int64_t columns = 0;
};
std::shared_ptr<const EncodedRows> MakeSplitMxfp4(SplitMxfp4 parts);

// Integers in 32-bit words with a scale and a zero point per group of inputs: scale * (q - zero).
struct PackedIntegers {
  enum class Order : uint8_t {
    kAwq,         // words [inputs, outputs / 8] with nibbles in the order of AWQ's kernel
    kGptq,        // words [inputs / per word, outputs]
    kCompressed,  // words [outputs, inputs / per word]
  };
  Order order = Order::kAwq;
  int bits = 4;
  int64_t rows = 0;     // outputs
  int64_t columns = 0;  // inputs
  int64_t group_size = 0;
  ConstTensorView words = {};
  // [groups, outputs / per word]; kCompressed: [outputs / per word, groups] or no data, then the
  // zero point is 2^(bits - 1).
  ConstTensorView zeros = {};
  ConstTensorView scales = {};         // [groups, outputs]; kCompressed: [outputs, groups]
  std::vector<int32_t> group_of = {};  // by input; empty: in order
  bool zero_plus_one = false;
};
std::shared_ptr<const EncodedRows> MakePackedIntegers(PackedIntegers parts);

// bitsandbytes' four bits: codes of a table, with a scale per run of `block` numbers of the flat
// tensor. The high nibble of a byte comes first.
struct TableNibbles {
  ConstTensorView codes;      // u8, one for two numbers
  std::vector<float> table;   // 16
  std::vector<float> scales;  // by block
  int64_t block = 64;
  int64_t columns = 0;
};
std::shared_ptr<const EncodedRows> MakeTableNibbles(TableNibbles parts);

}  // namespace tandem::engine
