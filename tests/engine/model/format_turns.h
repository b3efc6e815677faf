#pragma once

#include <cstddef>

#include "engine/kernels/kernels.h"

namespace tandem::engine {

// Which formats a test of many models runs on which tables: every format on the machine's best
// table, and one format on each other table. The format changes with the model and the table, so
// all pairs of them occur over the models. `format` is in [0, n_formats).
inline bool HasTurn(size_t model, const KernelTable& kernels, size_t format, size_t n_formats) {
  if (&kernels == &Kernels()) return true;
  size_t table = 0;
  while (RunnableKernelTables()[table] != &kernels) ++table;
  return format == (model + table) % n_formats;
}

}  // namespace tandem::engine
