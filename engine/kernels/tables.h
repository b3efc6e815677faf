#pragma once

#include "engine/kernels/kernels.h"

// The tables themselves, for dispatch.cc only; other code calls Kernels(). Calling a table that the
// CPU cannot run is an illegal instruction.
namespace tandem::engine {

namespace reference {
extern const KernelTable kTable;
}
namespace avx2 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx2
namespace avx512 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx512
namespace avx512_bf16 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx512_bf16

// The block kernels of the table with AVX-VNNI, and those that the AVX-512 tables choose from.
namespace avx_vnni {
extern const BlockKernels kBlocks;
}
namespace avx512_widen {
extern const BlockKernels kBlocks;
}
namespace avx512_vnni {
extern const BlockKernels kBlocks;
}

}  // namespace tandem::engine
