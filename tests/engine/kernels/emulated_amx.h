#pragma once

#include "engine/kernels/kernels.h"

namespace tandem::engine {

// The table with AMX, whose tile instructions are emulated: its block kernels run on any CPU with
// AVX-512 and VNNI. Null elsewhere.
const KernelTable* EmulatedAmx();

}  // namespace tandem::engine
