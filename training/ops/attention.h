#pragma once

#include <cstdint>
#include <span>

#include "engine/ops/attention.h"

namespace tandem::training {

// A segment of a packed row: rows [first_row, first_row + n_rows) at positions 0, 1, ….
struct Segment {
  int64_t first_row = 0;
  int64_t n_rows = 0;
};

// Forward over packed segments through engine::Attention, bit for bit serving's arithmetic. Puts
// keys and values into temporary KV blocks, at positions relative to the segment. q, k, v and out
// are in the compute dtype; lse is [rows, n_heads]; sinks is [n_heads] or null. `kv_scratch` holds
// AttentionScratchBytes(...) bytes.
int64_t AttentionScratchBytes(const engine::AttentionSpec& spec, engine::DType dtype, int64_t rows,
                              int64_t n_segments);

void AttentionForward(engine::OpsContext& ops, const engine::AttentionSpec& spec,
                      const engine::ConstMatrix& q, const engine::ConstMatrix& k,
                      const engine::ConstMatrix& v, std::span<const Segment> segments,
                      std::byte* kv_scratch, const engine::Matrix& out, float* lse,
                      const float* sinks = nullptr);

// Scratch per worker of AttentionBackward for segments of at most `segment_rows` rows. It is linear
// in the rows.
int64_t AttentionBackwardScratchBytes(const engine::AttentionSpec& spec, engine::DType dtype,
                                      int64_t segment_rows);

// Adds dq, dk, dv (dense f32, +=) from dout (dense f32). Deterministic: parallel over (segment, KV
// head), fixed loops inside, no atomics.
void AttentionBackward(engine::OpsContext& ops, const engine::AttentionSpec& spec,
                       const engine::ConstMatrix& q, const engine::ConstMatrix& k,
                       const engine::ConstMatrix& v, const engine::ConstMatrix& out,
                       const float* lse, const float* dout, std::span<const Segment> segments,
                       float* dq, float* dk, float* dv);

// dsinks[h] += -exp(sinks[h] - lse[r, h]) * (dout . out of row r and head h), rows in order. A sink
// has no value, so its score's gradient is its probability times -rowsum(dO O).
void SinkBackward(engine::OpsContext& ops, const engine::AttentionSpec& spec, const float* sinks,
                  const engine::ConstMatrix& out, const float* lse, const float* dout,
                  float* dsinks);

}  // namespace tandem::training
