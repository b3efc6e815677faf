#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/tensor.h"

namespace tandem::engine {

// Number format of a tensor: plain, or one of the formats in which neighbours of a row share
// scales. Lists only the types that Tandem reads; gguf.cc names the others.
enum class Encoding : uint8_t {
  kPlain,
  // Blocks of GGUF files: 32 or 256 numbers with their scales.
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kQ2_K,
  kQ3_K,
  kIQ4_NL,
  kIQ4_XS,
  kIQ3_S,
  kIQ3_XXS,
  kIQ2_S,
  kIQ2_XS,
  kIQ2_XXS,
  kIQ1_S,
  kIQ1_M,
  kTQ1_0,
  kTQ2_0,
  kMXFP4,
  // Quantised checkpoints of Hugging Face, whose scales are tensors of their own
  // (StoredTensor::encoded).
  kMxfp4Split,
  kFp8,
  kAwq4,
  kGptq4,
  kGptq8,
  kPacked4,  // compressed-tensors
  kPacked8,
  kNf4,     // bitsandbytes
  kJoined,  // blocks of several tensors of a GGUF file (StoredTensor::encoded)
};
inline constexpr size_t kEncodingCount = static_cast<size_t>(Encoding::kJoined) + 1;

// For example "Q4_K", as GGUF users write it.
std::string_view EncodingName(Encoding encoding);
// Numbers of one block, and bytes of one block without scales of other tensors. REQUIRES: not
// kPlain.
int64_t BlockElements(Encoding encoding);
int64_t EncodedBlockBytes(Encoding encoding);

// Part of the key of cached decoded numbers. Raise it when a change to the decoders changes their
// results.
inline constexpr int kDecodeVersion = 1;

// Neighbours of a row as integers times a scale.
struct EncodedGroup {
  float scale = 0;
  uint8_t e8m0 = 0;  // kMxfp4Split: the scale 2^(e8m0 - 128) as stored
  int8_t q[32] = {};
};

// Rows of numbers that several tensors of a file make together: integers, their scales and more.
// Immutable; any thread. The file's bytes must outlive it.
class EncodedRows {
 public:
  virtual ~EncodedRows() = default;
  // Decodes rows first, first + step, … to f32: [count, row_elements].
  virtual void Read(int64_t first, int64_t step, int64_t count, float* out) const = 0;
  // The bits (4 or 8) of signed integers that hold all numbers of each 32 neighbours with one
  // scale; 0: no such integers. May read all zero points.
  virtual int ExactBits() const { return 0; }
  // Neighbours 32 * group to 32 * group + 31 of a row. REQUIRES: ExactBits() > 0 or kMxfp4Split.
  virtual void ReadGroup(int64_t row, int64_t group, EncodedGroup* out) const;
};

// A tensor with its layout in the file. Other programs store blocks, transposes, rows in another
// order, and norms with 1 added; ReadRows undoes all of these.
struct StoredTensor {
  // Has the shape that families expect. With blocks, the dtype is f32 (the decoded type) and the
  // data are the blocks.
  ConstTensorView view;
  Encoding encoding = Encoding::kPlain;
  // The file holds the transpose of view.shape. REQUIRES: two axes.
  bool transposed = false;
  // Number of heads whose rows the file interleaves: the two rows of each rotated pair are
  // neighbours. Families (and Hugging Face) store all first halves of a head, then all second
  // halves. 0: the order of families.
  int64_t interleaved_heads = 0;
  float added = 0;  // the file's numbers are this much larger
  // Elements of the file from one row, or one number of a row, to the next, for a part of a larger
  // tensor. 0: they are adjacent. column_stride is for plain numbers only.
  int64_t row_stride = 0;
  int64_t column_stride = 0;
  // Set for encodings of several tensors, and for numbers that must be computed. `view.data` is
  // then the largest of them.
  std::shared_ptr<const EncodedRows> encoded = nullptr;
  // The file's bytes from which `encoded` computes; empty: those of `view`.
  std::vector<std::span<const std::byte>> encoded_bytes = {};
  int64_t first_row = 0;  // in `encoded`, of the first row here
  std::string part = {};  // of a part: its place, for DecodingOf

  // Whether `view` can be used without decoding.
  bool IsAsAsked() const {
    return encoding == Encoding::kPlain && !transposed && interleaved_heads == 0 && added == 0 &&
           row_stride == 0 && column_stride == 0 && encoded == nullptr;
  }
  // Axes as stored in the file. A vector counts as rows of one number each.
  int64_t rows() const;
  int64_t row_elements() const;
  // The stored bytes of the whole tensor. With strides they include bytes of other parts. The first
  // of `encoded_bytes` if there are any.
  std::span<const std::byte> bytes() const;
  // Address of the row that families call `row`. REQUIRES: not both transposed and interleaved.
  const std::byte* RowData(int64_t row) const;
};

// Describes how a tensor that is not IsAsAsked is decoded, for example "Q4_0 pairs 8 less 1
// transposed/1". The last number is kDecodeVersion.
std::string DecodingOf(const StoredTensor& tensor);

// Decodes rows of the file to f32 in the order of families and subtracts `added`: [count,
// row_elements]. Exact except where f32 cannot hold a value. Any thread.
void ReadRows(const StoredTensor& tensor, int64_t first, int64_t count, float* out);
// Whether decoded values of the tensor come from a block of MXFP4 with scale 255, which stands for
// no number.
bool HasScaleOfNoNumber(const StoredTensor& tensor, std::span<const float> values);
// Describes such a tensor for an error.
inline constexpr std::string_view kScaleOfNoNumber =
    " has a block of MXFP4 with scale 255, which stands for no number; get the file again";
// Decodes the whole tensor in the order of view.shape.
std::vector<float> DecodeTensor(const StoredTensor& tensor);

}  // namespace tandem::engine
