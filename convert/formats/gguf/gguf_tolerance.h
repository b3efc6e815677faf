#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "convert/formats/gguf/gguf_tensors.h"

namespace tandem::convert {

// Largest allowed distance of a number from its source: half a quantisation step, plus the rounding
// of the scale. Norms, which have 1 added, may differ by an f32 step at 1 or above; logarithms by
// two of them.
class GgufTolerance {
 public:
  // `n_rows` are those of the source. The tensor must outlive this object.
  GgufTolerance(const GgufTensor& tensor, int64_t n_rows);

  // Pieces begin at multiples of this.
  int64_t rows_together() const;
  // Whether the numbers that were read back are near the source's, which begin with row
  // `first_row`. Numbers that other tensors of the file have are not compared.
  bool IsNear(std::span<const float> source, int64_t first_row, std::span<const float> written);

 private:
  bool Allows(size_t i, float written);
  bool IsInPart(size_t i) const;
  size_t PlaceInBlock(size_t i, size_t k) const;
  double BlockStep(size_t i, double steps);

  const GgufTensor& tensor_;
  std::vector<bool> has_row_;        // of the source; empty: all
  std::vector<size_t> file_column_;  // by the source's; empty: the same
  std::span<const float> source_;    // of the piece, as the next two
  size_t first_row_ = 0;
  size_t row_elements_ = 1;
  size_t first_ = SIZE_MAX;  // of the block whose largest magnitude is most_
  float most_ = 0;
};

}  // namespace tandem::convert
