#include "engine/tensor/round.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/tensor/bfloat16.h"
#include "engine/tensor/tensor.h"

namespace tandem::engine {
namespace {

TEST(RoundTo, IsWhatIsReadBack) {
  const std::vector<float> values = {0.0f, -0.0f, 1.0f, 1.00390625f, -3.14159f, 65504.0f, 1e-7f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    std::vector<std::byte> bytes;
    RoundTo(dtype, values, &bytes);
    ASSERT_EQ(bytes.size(), values.size() * DTypeBytes(dtype));
    std::vector<float> read(values.size());
    ConvertToF32({bytes.data(), dtype, {static_cast<int64_t>(values.size())}}, read);
    for (size_t i = 0; i < values.size(); ++i) {
      const float step = dtype == DType::kBF16 ? 0x1p-8f : dtype == DType::kF16 ? 0x1p-11f : 0.0f;
      EXPECT_LE(std::fabs(read[i] - values[i]), step * std::fabs(values[i]) + 0x1p-25f)
          << DTypeName(dtype) << " " << values[i];
      EXPECT_EQ(std::signbit(read[i]), std::signbit(values[i]));
    }
  }
}

TEST(FitsIn, KnowsWhatEachTypeHas) {
  const float infinite = std::numeric_limits<float>::infinity();
  const auto fits = [](float value, DType dtype) {
    const std::vector<float> values = {1.0f, value};
    return FitsIn(values, dtype);
  };
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    EXPECT_FALSE(fits(infinite, dtype));
    EXPECT_FALSE(fits(std::nanf(""), dtype));
    EXPECT_TRUE(fits(65519.0f, dtype));
  }
  EXPECT_FALSE(fits(-65520.0f, DType::kF16));
  EXPECT_TRUE(fits(65520.0f, DType::kBF16));
  EXPECT_FALSE(fits(std::numeric_limits<float>::max(), DType::kBF16));
  EXPECT_TRUE(fits(std::numeric_limits<float>::max(), DType::kF32));
}

}  // namespace
}  // namespace tandem::engine
