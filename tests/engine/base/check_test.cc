#include "engine/base/check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <unordered_set>

#include "engine/base/ids.h"

namespace tandem {
namespace {

TEST(Check, ThrowsInternalNamingTheCondition) {
  const int answer = 41;
  try {
    TANDEM_CHECK(answer == 42);
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("answer == 42"), std::string::npos);
  }
}

TEST(Check, CheckedArithmeticThrowsOnlyWhereTheResultDoesNotFit) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

  EXPECT_EQ(CheckedAdd<int64_t>(kMax - 1, 1, "size"), kMax);
  EXPECT_EQ(CheckedMul<int64_t>(kMax, -1, "size"), -kMax);
  EXPECT_THROW(CheckedAdd<int64_t>(kMax, 1, "size"), Error);
  EXPECT_THROW(CheckedMul<int64_t>(int64_t{1} << 62, 2, "size"), Error);
  EXPECT_THROW(CheckedMul<size_t>(size_t{1} << 32, size_t{1} << 32, "size"), Error);
}

TEST(Check, RoundUpLeavesMultiplesAlone) {
  EXPECT_EQ(RoundUp(0, 64), 0);
  EXPECT_EQ(RoundUp(1, 64), 64);
  EXPECT_EQ(RoundUp(64, 64), 64);
  EXPECT_EQ(RoundUp(65, 64), 128);
}

TEST(ErrorType, CarriesParamAndReason) {
  const Error error =
      Error(ErrorCode::kInvalidArgument, "bad").WithParam("messages[3]").WithReason("too_long");

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_STREQ(error.what(), "bad");
  EXPECT_EQ(error.param(), "messages[3]");
  EXPECT_EQ(error.reason(), "too_long");
}

TEST(Ids, CompareByValueHashAndDoNotMix) {
  static_assert(!std::is_convertible_v<BlockId, RequestId>);
  static_assert(!std::is_convertible_v<int, BlockId>);
  const std::unordered_set<BlockId> set{BlockId{1}, BlockId{2}, BlockId{1}};

  EXPECT_EQ(set.size(), 2u);
  EXPECT_LT(BlockId{1}, BlockId{2});
}

}  // namespace
}  // namespace tandem
