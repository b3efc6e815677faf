#include "engine/ops/softmax.h"

#include <algorithm>

#include "engine/kernels/kernels.h"
#include "engine/ops/parallel.h"

namespace tandem::engine {

void LogSumExp(OpsContext& ops, const float* logits, int64_t rows, int64_t vocab, int64_t ld,
               float* lse) {
  const int64_t n_blocks = (vocab + kVocabBlock - 1) / kVocabBlock;
  // [rows][max of each block | sum of each block]
  float* parts = reinterpret_cast<float*>(
      ops.SharedScratch(static_cast<size_t>(2 * n_blocks * rows) * sizeof(float)));
  const int64_t per_task =
      std::max<int64_t>(1, 2 * kElementsPerTask / std::min(vocab, kVocabBlock));
  ParallelRanges(ops, rows * n_blocks, per_task, [&](int64_t first, int64_t count, int) {
    for (int64_t i = first; i < first + count; ++i) {
      const int64_t row = i / n_blocks;
      const int64_t block = i % n_blocks;
      const int64_t at = block * kVocabBlock;
      float* max = parts + 2 * row * n_blocks + block;
      ops.kernels().vocab_block(logits + row * ld + at, std::min(kVocabBlock, vocab - at), max,
                                max + n_blocks);
    }
  });
  for (int64_t row = 0; row < rows; ++row) {
    const float* max = parts + 2 * row * n_blocks;
    lse[row] = ops.kernels().vocab_merge(max, max + n_blocks, n_blocks);
  }
}

}  // namespace tandem::engine
