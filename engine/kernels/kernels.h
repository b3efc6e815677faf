#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "engine/tensor/bfloat16.h"

namespace tandem::engine {

// Vector lanes of every panel and of every fixed-lane reduction, on every instruction set.
inline constexpr int64_t kLanes = 16;
// Keys are scored in tiles of this many positions of their own sequence.
inline constexpr int64_t kKeyTile = 64;
// Log-softmax sums the vocabulary in blocks of this many entries.
inline constexpr int64_t kVocabBlock = 4096;

// The arithmetic of this project: one table of functions per instruction set, chosen once at start.
// A kernel allocates nothing, starts no threads and throws nothing. For one table the order of
// every floating-point operation on an output element depends on the shape of that element's own
// row or sequence only, never on how many rows came along or where the tile borders fell; tests
// hold every entry to it. Two tables may round differently: the isa key names the table and the
// features it uses, and parity is promised within one key.
//
// Panels: a weight W [n, k] (out, in) is stored so that vector lanes are outputs and k runs in
// sequence: bf16 as [n/16][k/2][16][2], f32 as [n/16][k][16]; n is padded to 16 and k to 2 (bf16)
// with zeros.

// y[m, n0..n1) (+)= x[m, k] . W^T (+ bias). Rows of x are `ldx` elements apart; for bf16 k is even
// (x zero-padded). A panel range covers columns [16 * first, 16 * (first + n_panels)), of which
// n_columns are real.
template <class T>
struct MatMulArgs {
  const T* x;
  int64_t ldx;
  int64_t m;
  const T* panels;  // the first panel of the range
  int64_t n_panels;
  int64_t n_columns;  // real columns in the range: stores stop here
  int64_t k;          // padded
  const float* bias;  // of the first column of the range, or null; added after the sum
  float* y;           // the first column of the range
  int64_t ldy;
  bool accumulate;  // add to what y holds (the sum starts from it)
};

}  // namespace tandem::engine
