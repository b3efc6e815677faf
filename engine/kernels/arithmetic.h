#pragma once

#include <string_view>

#include "engine/kernels/kernels.h"

namespace tandem::engine {

// The arithmetic that CPUs of every kind have: each product is a fused multiply-add of f32, in the
// order of engine/kernels/README.md. All vector tables have it except those with vdpbf16ps, so
// their results are equal bit for bit.
inline constexpr std::string_view kCommonArithmetic = "fma";

// Names the rounding of a table: tables of one name give the same bits. kCommonArithmetic, or the
// table's own key.
std::string_view ArithmeticOf(const KernelTable& table);

// Makes Kernels() return the best table of the common arithmetic. Sets TANDEM_REPRODUCIBLE
// for child processes. Call it before the first Kernels() and before threads exist: throws
// kInvalidArgument if another arithmetic is in use.
void UseCommonArithmetic();

}  // namespace tandem::engine
