#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/tensor.h"

namespace tandem::engine {

// Number format of a tensor: plain, or one of the GGUF block formats, in which 32 or 256 neighbours
// of a row share scales. Lists only the types that Tandem reads; gguf.cc names the others.
enum class Encoding : uint8_t { kPlain, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

// For example "Q4_K", as GGUF users write it.
std::string_view EncodingName(Encoding encoding);
// Numbers of one block, and bytes of one block. REQUIRES: not kPlain.
int64_t BlockElements(Encoding encoding);
int64_t EncodedBlockBytes(Encoding encoding);

// Part of the key of cached decoded numbers. Raise it when a change to the decoders changes their
// results.
inline constexpr int kDecodeVersion = 1;

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

  // Whether `view` can be used without decoding.
  bool IsAsAsked() const {
    return encoding == Encoding::kPlain && !transposed && interleaved_heads == 0 && added == 0;
  }
  // Axes as stored in the file. A vector counts as rows of one number each.
  int64_t rows() const;
  int64_t row_elements() const;
  // The stored bytes of the whole tensor.
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
// Decodes the whole tensor in the order of view.shape.
std::vector<float> DecodeTensor(const StoredTensor& tensor);

}  // namespace tandem::engine
