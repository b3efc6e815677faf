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
}
namespace avx512 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx512
namespace avx512_bf16 {
extern const KernelTable kTable;
extern const KernelTable kTableVnni;
}  // namespace avx512_bf16

// The block kernels that the AVX-512 tables choose from.
namespace avx512_widen {
void QuantizeBlockRows(const QuantizeRowsArgs& args) noexcept;
void MatMulInt8(const BlockMatMulArgs& args) noexcept;
void MatMulInt4(const BlockMatMulArgs& args) noexcept;
void MatMulQ4K(const BlockMatMulArgs& args) noexcept;
void MatMulInt6(const BlockMatMulArgs& args) noexcept;
inline constexpr BlockKernels kBlocks = {QuantizeBlockRows, MatMulInt8, MatMulInt4, MatMulQ4K,
                                         MatMulInt6};
}  // namespace avx512_widen
namespace avx512_vnni {
void QuantizeBlockRows(const QuantizeRowsArgs& args) noexcept;
void MatMulInt8(const BlockMatMulArgs& args) noexcept;
void MatMulInt4(const BlockMatMulArgs& args) noexcept;
void MatMulQ4K(const BlockMatMulArgs& args) noexcept;
void MatMulInt6(const BlockMatMulArgs& args) noexcept;
inline constexpr BlockKernels kBlocks = {QuantizeBlockRows, MatMulInt8, MatMulInt4, MatMulQ4K,
                                         MatMulInt6};
}  // namespace avx512_vnni

}  // namespace tandem::engine
