#pragma once

#include <vector>

#include "engine/kernels/cpu_features.h"
#include "engine/kernels/kernels.h"

// The tables themselves, for dispatch.cc only; other code calls Kernels(). Calling a table that the
// CPU cannot run is an illegal instruction. A build has the tables of one architecture.
namespace tandem::engine {

// The vector tables that a CPU with these features runs, the best last (tables_x86.cc,
// tables_arm64.cc).
std::vector<const KernelTable*> VectorTables(const CpuFeatures& cpu);

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
extern const KernelTable kTableAmx;
}  // namespace avx512
namespace avx512_bf16 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
extern const KernelTable kTableAmx;
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
namespace amx {
extern const BlockKernels kBlocks;
}

namespace neon {
extern const KernelTable kTable;
extern const KernelTable kTableDot;
}  // namespace neon
namespace neon_bf16 {
extern const KernelTable kTable;
}

// The block kernels that the tables of arm64 choose from.
namespace neon_widen {
extern const BlockKernels kBlocks;
}
namespace neon_dot {
extern const BlockKernels kBlocks;
}

}  // namespace tandem::engine
