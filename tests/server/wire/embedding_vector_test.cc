#include "server/wire/embedding_vector.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::server {
namespace {

std::string VectorText(const std::vector<float>& values, EmbeddingEncoding encoding) {
  std::string out;
  AppendVector(out, values, encoding);
  return out;
}

TEST(EmbeddingVector, DimensionsTruncateAndNormaliseAgain) {
  const std::vector<float> values = {3, 4, 12};

  EXPECT_EQ(UnitVector(values, 2), (std::vector<float>{0.6f, 0.8f}));
  const std::vector<float> whole = UnitVector(values, 3);
  EXPECT_FLOAT_EQ(whole[2], 12.0f / 13.0f);
  EXPECT_EQ(UnitVector(std::vector<float>{0, 0}, 2), (std::vector<float>{0, 0}));
}

TEST(EmbeddingVector, LargeAndSmallNumbersHaveNorm1) {
  for (const float scale : {1e30f, 1e-30f}) {
    const std::vector<float> unit = UnitVector(std::vector<float>{scale, scale}, 2);
    EXPECT_NEAR(unit[0], std::sqrt(0.5), 1e-6);
  }
}

TEST(EmbeddingVector, CosineStaysWithin1) {
  const std::vector<float> a = UnitVector(std::vector<float>{1, 2, 3}, 3);
  const std::vector<float> opposite = {-a[0], -a[1], -a[2]};

  EXPECT_NEAR(Cosine(a, a), 1, 1e-6);
  EXPECT_LE(Cosine(a, a), 1);
  EXPECT_GE(Cosine(a, opposite), -1);
}

TEST(EmbeddingVector, FloatsAreJsonThatParsesBackToTheSameBits) {
  const std::vector<float> values = {0.1f, -1.5e-12f, 1, -0.0f, 0.70710678f};

  const auto parsed = nlohmann::json::parse(VectorText(values, EmbeddingEncoding::kFloat));

  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(parsed[i].get<float>()) & 0x7fffffff,
              std::bit_cast<uint32_t>(values[i]) & 0x7fffffff);
  }
}

// The expected texts are those of Python's base64 over struct.pack("<f").
TEST(EmbeddingVector, Base64IsLittleEndianFloat32) {
  EXPECT_EQ(VectorText({1}, EmbeddingEncoding::kBase64), "\"AACAPw==\"");
  EXPECT_EQ(VectorText({1, -2}, EmbeddingEncoding::kBase64), "\"AACAPwAAAMA=\"");
  EXPECT_EQ(VectorText({1, -2, 0.5f}, EmbeddingEncoding::kBase64), "\"AACAPwAAAMAAAAA/\"");
}

}  // namespace
}  // namespace tandem::server
