#pragma once

#include "engine/kernels/kernels.h"

// The tables themselves, for dispatch.cc alone: everyone else asks Kernels(). Calling a table that
// the CPU cannot run is an illegal instruction.
namespace tandem::engine {

namespace reference {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
}
namespace avx512 {
extern const KernelTable kTable;
}
namespace avx512_bf16 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx512_bf16

}  // namespace tandem::engine
