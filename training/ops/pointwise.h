#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/rows.h"

namespace tandem::training {

// Gradients are dense f32 and are added to (+=) unless a comment states otherwise.

// Backward of engine::Rope: the inverse rotation of dy [rows, cols].
void RopeBackward(engine::OpsContext& ops, const float* dy, std::span<const int32_t> positions,
                  const engine::RopeTable& table, int64_t rows, int64_t cols, float* dx);

// Backward of h = activation(gate) * up, from the forward's f32 gate and up.
void GatedActivationBackward(engine::OpsContext& ops, const float* gate, const float* up,
                             engine::Activation activation, const float* dh, int64_t elements,
                             float* dgate, float* dup);

// Backward of y = activation(x); relu'(0) = 0.
void ActivateBackward(engine::OpsContext& ops, const float* x, engine::Activation activation,
                      const float* dy, int64_t elements, float* dx);

// da += dy * b and db += dy * a, backward of y = a * b.
void MultiplyBackward(engine::OpsContext& ops, const float* a, const float* b, const float* dy,
                      int64_t elements, float* da, float* db);
// Backward of engine::ClampRows; the limits themselves pass the gradient.
void ClampBackward(engine::OpsContext& ops, const float* x, float limit, const float* dy,
                   int64_t elements, float* dx);
// Backward of engine::SigmoidRows, from its result y.
void SigmoidBackward(engine::OpsContext& ops, const float* y, const float* dy, int64_t elements,
                     float* dx);

// into += from; into += factor * from.
void Accumulate(engine::OpsContext& ops, const float* from, int64_t elements, float* into);
void AccumulateScaled(engine::OpsContext& ops, const float* from, float factor, int64_t elements,
                      float* into);
// Adds rows into the first `cols` columns of rows that are `ldinto` floats apart.
void AccumulateColumns(engine::OpsContext& ops, const float* from, int64_t rows, int64_t cols,
                       float* into, int64_t ldinto);

// db[cols] += sum over rows of dy, row by row in order.
void ColumnSums(engine::OpsContext& ops, const float* dy, int64_t rows, int64_t cols, float* db);

// dtable[ids[i], :] += dy[i, :]. Rows of equal id are added in order of i, whatever the number of
// threads. Ids beyond the table's `n_rows` rows stand for row 0, as in engine::GatherRows.
void EmbedBackward(engine::OpsContext& ops, std::span<const TokenId> ids, const float* dy,
                   int64_t cols, int64_t n_rows, float* dtable);

// The origin of a row. Dropout decisions depend only on it and on DropoutKey, so that packing,
// accumulation and recomputation cannot change them.
struct DropoutRow {
  uint64_t sample = 0;    // the sample's number, as its source counts (MicroBatch: through all
                          // epochs)
  uint32_t position = 0;  // in its segment
};
struct DropoutKey {
  uint64_t seed = 0;
  uint32_t op = 0;  // the op's number in the program
};
// y = x * mask / (1 - rate), with a mask from Philox4x32-10 by counter. The backward is the same
// function; y may be x. `accumulate`: y += instead.
void Dropout(engine::OpsContext& ops, const float* x, std::span<const DropoutRow> rows,
             int64_t cols, float rate, const DropoutKey& key, float* y, bool accumulate);
// For rows in the compute dtype: rounds y to it once.
void DropoutRounded(engine::OpsContext& ops, const engine::ConstMatrix& x,
                    std::span<const DropoutRow> rows, float rate, const DropoutKey& key,
                    const engine::Matrix& y);

}  // namespace tandem::training
