#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tandem::engine {

// Element types of tensors in files and in memory.
enum class DType : uint8_t {
  kF32,
  kBF16,
  kF16,
  kF64,
  kI64,
  kI32,
  kI16,
  kI8,
  kU8,
  kBool,
  kF8E4M3,  // without infinities, as torch.float8_e4m3fn
  kF8E5M2,
  kF8E8M0,  // powers of two: scales
};

size_t DTypeBytes(DType dtype);
// "f32", "bf16" and so on, as users write them.
std::string_view DTypeName(DType dtype);

}  // namespace tandem::engine
