// Checks of ServingOps, and the blocks of a layer.

#include "engine/base/check.h"
#include "engine/kv/block_table.h"
#include "engine/model/adapter.h"
#include "engine/model/kv_layout.h"
#include "engine/model/model.h"
#include "engine/model/serving_ops.h"

namespace tandem::engine {

// Batches come from our own code, but a wrong row would show up far away.
void ServingOps::CheckBatch(const BatchView& batch) const {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  TANDEM_CHECK(rows <= max_rows_);
  TANDEM_CHECK(batch.positions.size() == batch.tokens.size());
  TANDEM_CHECK(static_cast<int64_t>(batch.logit_rows.size()) <= max_logit_rows_);
  for (const TokenId token : batch.tokens) {
    TANDEM_CHECK(token >= 0 && token < model_.config().vocab_size);
  }
  int64_t next_row = 0;
  for (const AttentionSlice& slice : batch.slices) {
    TANDEM_CHECK(slice.first_row == next_row && slice.n_rows >= 1);
    next_row += slice.n_rows;
    TANDEM_CHECK(next_row <= rows && slice.first_position >= 0);
    const int64_t end = slice.first_position + slice.n_rows;
    TANDEM_CHECK(end <= model_.config().max_context_len);
    for (int64_t i = 0; i < slice.n_rows; ++i) {
      TANDEM_CHECK(batch.positions[static_cast<size_t>(slice.first_row + i)] ==
                   slice.first_position + i);
    }
  }
  TANDEM_CHECK(next_row == rows);
  TANDEM_CHECK(batch.adapters.empty() || batch.adapters.size() == batch.slices.size());
  for (const Adapter* adapter : batch.adapters) {
    TANDEM_CHECK(adapter == nullptr || &adapter->base() == &model_);
  }
  int64_t previous = -1;
  for (const int32_t row : batch.logit_rows) {
    TANDEM_CHECK(row > previous && row < rows);
    previous = row;
  }
  int64_t next_summed = 0;
  for (const HiddenSum& pooled : batch.hidden_sums) {
    TANDEM_CHECK(pooled.first_row >= next_summed && pooled.n_rows >= 1);
    next_summed = pooled.first_row + pooled.n_rows;
    TANDEM_CHECK(next_summed <= rows);
    TANDEM_CHECK(static_cast<int64_t>(pooled.sum.size()) == model_.config().hidden_dim);
  }
}

// A wrong block would overwrite another sequence's keys. Checks the written blocks, and with a
// window those that the rows see, because earlier ones may belong to others by now. It takes
// nanoseconds per row.
void ServingOps::CheckBlocks(const BatchView& batch, const KvCache& kv) const {
  const std::vector<KvWindow>& windows = kv.shape().windows;
  const size_t n_slices = batch.slices.size();
  TANDEM_CHECK(batch.further_tables.size() == (windows.size() - 1) * n_slices);
  for (size_t table = 0; table < windows.size(); ++table) {
    for (size_t i = 0; i < n_slices; ++i) {
      const AttentionSlice& rows = batch.slices[i];
      const AttentionSlice& slice =
          table == 0 ? rows : batch.further_tables[(table - 1) * n_slices + i];
      TANDEM_CHECK(slice.first_row == rows.first_row && slice.n_rows == rows.n_rows &&
                   slice.first_position == rows.first_position);
      const int64_t end = BlocksFor(slice.first_position + slice.n_rows);
      TANDEM_CHECK(end <= static_cast<int64_t>(slice.blocks.size()));
      const int64_t first = windows[table].keeps_all()
                                ? slice.first_position / kTokensPerBlock
                                : FirstVisibleBlock(windows[table], slice.first_position);
      for (int64_t block = first; block < end; ++block) {
        TANDEM_CHECK(slice.blocks[static_cast<size_t>(block)].value < kv.shape().n_blocks);
      }
    }
  }
}

std::span<const AttentionSlice> ServingOps::SlicesOf(const AttentionSpec& spec,
                                                     int64_t layer) const {
  const size_t table = kv_->shape().layers.at(static_cast<size_t>(layer)).table;
  TANDEM_CHECK(kv_->shape().windows[table].Covers(WindowOf(spec)));
  if (table == 0) return batch_->slices;
  return batch_->further_tables.subspan((table - 1) * batch_->slices.size(), batch_->slices.size());
}

}  // namespace tandem::engine
