#pragma once

#include "engine/base/check.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

// Checks what attention requires of a spec.
inline void CheckAttention(const AttentionSpec& spec) {
  TANDEM_CHECK(spec.n_kv_heads > 0 && spec.n_heads % spec.n_kv_heads == 0 && spec.head_dim > 0 &&
               spec.v_head_dim >= 0);
  TANDEM_CHECK(spec.chunk % kTokensPerBlock == 0 && (spec.chunk == 0 || spec.window == 0));
}

inline void CheckAttention(const AttentionSlice& slice) {
  TANDEM_CHECK(slice.first_position >= 0 &&
               slice.first_position + slice.n_rows <=
                   static_cast<int64_t>(slice.blocks.size()) * kTokensPerBlock);
}

}  // namespace tandem::engine
