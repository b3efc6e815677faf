#include "engine/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/tensor/bfloat16.h"

namespace tandem::engine {
namespace {

constexpr DType kAllDTypes[] = {DType::kF32,   DType::kBF16, DType::kF16,    DType::kF64,
                                DType::kI64,   DType::kI32,  DType::kI16,    DType::kI8,
                                DType::kU8,    DType::kBool, DType::kF8E4M3, DType::kF8E5M2,
                                DType::kF8E8M0};

TEST(DTypes, KnowTheirSizesAndNames) {
  const std::vector<size_t> bytes = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1, 1, 1, 1};
  const std::vector<std::string> names = {"f32",     "bf16",    "f16",    "f64", "i64",
                                          "i32",     "i16",     "i8",     "u8",  "bool",
                                          "f8_e4m3", "f8_e5m2", "f8_e8m0"};
  for (size_t i = 0; i < std::size(kAllDTypes); ++i) {
    EXPECT_EQ(DTypeBytes(kAllDTypes[i]), bytes[i]);
    EXPECT_EQ(DTypeName(kAllDTypes[i]), names[i]);
  }
}

TEST(ElementCounts, MultiplyTheDims) {
  const std::vector<int64_t> scalar;
  const std::vector<int64_t> matrix = {3, 4};
  const std::vector<int64_t> empty = {3, 0, 4};

  EXPECT_EQ(ElementCount(scalar), 1);
  EXPECT_EQ(ElementCount(matrix), 12);
  EXPECT_EQ(ElementCount(empty), 0);
}

TEST(ElementCounts, RefuseNegativeDimsAndOverflow) {
  const std::vector<int64_t> negative = {3, -1};
  const std::vector<int64_t> huge = {int64_t{1} << 62, 8};

  EXPECT_THROW(ElementCount(negative), Error);
  EXPECT_THROW(ElementCount(huge), Error);
}

// Stores `values` at an odd address, as in a file, and widens them.
template <class T>
std::vector<float> Widen(DType dtype, const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T) + 1);
  if (!values.empty()) std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  std::vector<float> out(values.size());
  ConvertToF32({bytes.data() + 1, dtype, {static_cast<int64_t>(values.size())}}, out);
  return out;
}

TEST(ConvertToF32, WidensEveryFloatingTypeFromUnalignedBytes) {
  const std::vector<float> expected = {1.5f, -2.0f, 0.0f};

  EXPECT_EQ(Widen<float>(DType::kF32, {1.5f, -2.0f, 0.0f}), expected);
  EXPECT_EQ(Widen<double>(DType::kF64, {1.5, -2.0, 0.0}), expected);
  EXPECT_EQ(Widen<uint16_t>(DType::kBF16, {0x3fc0, 0xc000, 0x0000}), expected);
  EXPECT_EQ(Widen<uint16_t>(DType::kF16, {0x3e00, 0xc000, 0x0000}), expected);
}

TEST(ConvertToF32, RoundsDoublesToNearest) {
  EXPECT_EQ(Widen<double>(DType::kF64, {0.1}), std::vector<float>{0.1f});
}

TEST(ConvertToF32, AcceptsNoElements) {
  EXPECT_TRUE(Widen<float>(DType::kF32, {}).empty());
  EXPECT_TRUE(Widen<uint16_t>(DType::kBF16, {}).empty());
}

TEST(ConvertToF32, RefusesIntegerTypesByName) {
  try {
    Widen<int32_t>(DType::kI32, {1});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("i32"), std::string::npos);
  }
}

TEST(ConvertToF32, RefusesAnOutputOfTheWrongSize) {
  const float value = 1;
  std::vector<float> out(2);

  EXPECT_THROW(ConvertToF32({reinterpret_cast<const std::byte*>(&value), DType::kF32, {1}}, out),
               Error);
}

}  // namespace
}  // namespace tandem::engine
