#pragma once

#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Dtype names of safetensors headers. Private to the reader and the writer.
struct DTypeCode {
  const char* code;
  DType dtype;
};
inline constexpr DTypeCode kDTypeCodes[] = {
    {"F32", DType::kF32},        {"BF16", DType::kBF16},      {"F16", DType::kF16},
    {"F64", DType::kF64},        {"I64", DType::kI64},        {"I32", DType::kI32},
    {"I16", DType::kI16},        {"I8", DType::kI8},          {"U8", DType::kU8},
    {"BOOL", DType::kBool},      {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"F8_E8M0", DType::kF8E8M0},
};

}  // namespace tandem::engine
