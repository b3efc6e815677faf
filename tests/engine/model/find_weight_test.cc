#include "engine/model/find_weight.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/error.h"

namespace tandem::engine {
namespace {

// Numbers 0, 1, 2, … of a shape.
struct Counting {
  explicit Counting(std::vector<int64_t> shape) : values(static_cast<size_t>(ElementCount(shape))) {
    std::iota(values.begin(), values.end(), 0.0f);
    tensor.view = {reinterpret_cast<const std::byte*>(values.data()), DType::kF32,
                   std::move(shape)};
  }
  std::vector<float> values;
  StoredTensor tensor;
};

WeightSpec Matrix(int64_t n, int64_t k) {
  return {.name = "w", .source_shape = {n, k}, .n = n, .k = k};
}

TEST(StoredParts, AnExpertOfAStackIsItsSlice) {
  const Counting stack({3, 2, 4});
  const StoredTensor part =
      PartOf(stack.tensor, {.tensor = "experts", .index = 1}, Matrix(2, 4), "model");

  EXPECT_TRUE(part.IsAsAsked());
  EXPECT_EQ(part.view.data, stack.tensor.view.data + 8 * sizeof(float));
  EXPECT_EQ(DecodeTensor(part), (std::vector<float>{8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST(StoredParts, UpIsTheSecondHalfOfTheRowsOrEverySecondRow) {
  const Counting stack({2, 4, 2});
  const StoredTensor half = PartOf(stack.tensor, {.tensor = "experts", .index = 1, .first_row = 2},
                                   Matrix(2, 2), "model");
  EXPECT_EQ(DecodeTensor(half), (std::vector<float>{12, 13, 14, 15}));

  const StoredTensor second =
      PartOf(stack.tensor, {.tensor = "experts", .index = 1, .first_row = 1, .row_step = 2},
             Matrix(2, 2), "model");
  EXPECT_FALSE(second.IsAsAsked());
  EXPECT_EQ(DecodeTensor(second), (std::vector<float>{10, 11, 14, 15}));
  EXPECT_EQ(second.bytes().size(), 6 * sizeof(float));
}

TEST(StoredParts, ColumnsOfATransposedSliceAreRows) {
  const Counting stack({2, 3, 4});  // [experts, inputs, outputs of gate and up in turn]
  const StoredTensor up =
      PartOf(stack.tensor,
             {.tensor = "experts", .index = 1, .first_row = 1, .row_step = 2, .transposed = true},
             Matrix(2, 3), "model");
  EXPECT_EQ(DecodeTensor(up), (std::vector<float>{13, 17, 21, 15, 19, 23}));
  std::vector<float> row(3);
  ReadRows(up, 1, 1, row.data());
  EXPECT_EQ(row, (std::vector<float>{15, 19, 23}));
}

TEST(StoredParts, VectorsArePartsToo) {
  const Counting stack({2, 6});
  const WeightSpec bias{.name = "b", .kind = WeightKind::kVector, .source_shape = {3}, .n = 3};
  const StoredTensor part = PartOf(
      stack.tensor, {.tensor = "bias", .index = 1, .first_row = 1, .row_step = 2}, bias, "model");
  EXPECT_EQ(DecodeTensor(part), (std::vector<float>{7, 9, 11}));
}

TEST(StoredParts, WrongStacksAreRefusedNamingTensorAndExpert) {
  const Counting stack({2, 4, 2});
  const auto fault = [&](const StoredPart& part, const WeightSpec& spec) {
    const auto error = ErrorOf([&] { PartOf(stack.tensor, part, spec, "model"); });
    EXPECT_TRUE(error && error->code() == ErrorCode::kDataLoss);
    return error ? std::string(error->what()) : "";
  };
  EXPECT_NE(fault({.tensor = "experts", .index = 2}, Matrix(4, 2)).find("slice 2 is missing"),
            std::string::npos);
  EXPECT_NE(fault({.tensor = "experts", .index = 0}, Matrix(4, 3)).find("'experts'"),
            std::string::npos);
  EXPECT_NE(fault({.tensor = "experts", .index = 0, .first_row = 1}, Matrix(4, 2)).find("'w'"),
            std::string::npos);
  EXPECT_NE(fault({.tensor = "experts"}, Matrix(4, 2)).find("[2, 4, 2]"), std::string::npos);
}

TEST(StoredParts, ShapesOfStacksFollowFromTheirWeights) {
  std::vector<WeightSpec> specs;
  for (int64_t e = 0; e < 3; ++e) {
    for (int64_t half = 0; half < 2; ++half) {
      WeightSpec spec = Matrix(5, 4);
      spec.parts = {{"in_turn", e, half, 2, true}, {"halves", e, 5 * half, 1, false}};
      specs.push_back(std::move(spec));
    }
  }
  const auto all = StackedTensorsOf(specs, /*published=*/false);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all.at("in_turn").shape, (std::vector<int64_t>{3, 4, 10}));
  EXPECT_EQ(all.at("halves").shape, (std::vector<int64_t>{3, 10, 4}));
  EXPECT_EQ(all.at("halves").members.size(), 6u);
  EXPECT_EQ(StackedTensorsOf(specs, /*published=*/true).size(), 1u);
}

}  // namespace
}  // namespace tandem::engine
