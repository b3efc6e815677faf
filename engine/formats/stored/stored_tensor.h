#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tensor/tensor.h"

namespace tandem::engine {

// How a file writes the numbers of a tensor: one by one, or in one of GGUF's blocks, in which 32 or
// 256 neighbours of a row share scales. The types that we read; gguf.cc names the others.
enum class Encoding : uint8_t { kPlain, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

// "Q4_K", as GGUF's users write it.
std::string_view EncodingName(Encoding encoding);
// Numbers of a row that lie in one block, and the bytes of it. REQUIRES: not kPlain.
int64_t BlockElements(Encoding encoding);
int64_t EncodedBlockBytes(Encoding encoding);

// Part of what is kept of decoded numbers: raise it when the decoders below compute other ones.
inline constexpr int kDecodeVersion = 1;

// A tensor as it lies in a file, which need not be how families ask for it: other programs write
// blocks, transposes, rows in another order, norms with 1 added.
struct StoredTensor {
  // The shape is the one that families ask for. With blocks, the dtype is f32, what they decode to,
  // and the data are the blocks.
  ConstTensorView view;
  Encoding encoding = Encoding::kPlain;
  // The file holds the transpose of the shape. REQUIRES: two axes.
  bool transposed = false;
  // The rows of each of so many heads lie as the pairs that are rotated together, where families
  // (and Hugging Face) have all first halves, then all second ones. 0: as families have them.
  int64_t interleaved_heads = 0;
  float added = 0;  // to each number, by whoever wrote the file

  // Whether the view may be used as it is.
  bool IsAsAsked() const {
    return encoding == Encoding::kPlain && !transposed && interleaved_heads == 0 && added == 0;
  }
  // The axes of the file: a vector is rows of one number each.
  int64_t rows() const;
  int64_t row_elements() const;
  // All of it, as it lies in the file.
  std::span<const std::byte> bytes() const;
  // Where the row that families call `row` lies. REQUIRES: no transpose together with heads.
  const std::byte* RowData(int64_t row) const;
};

// What stands between the file's numbers and families', for a tensor that is not as asked: "Q4_0
// pairs 8 less 1 transposed/1", the last number kDecodeVersion.
std::string DecodingOf(const StoredTensor& tensor);

// Rows of the file as f32, in the order of families and without what was added: [count,
// row_elements]. Exact but for what f32 cannot hold. Any thread.
void ReadRows(const StoredTensor& tensor, int64_t first, int64_t count, float* out);
// All of it, in the order of its shape.
std::vector<float> DecodeTensor(const StoredTensor& tensor);

}  // namespace tandem::engine
