#include "engine/tokenizer/files/json_value.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

// transformers writes 10^30 as the maximum length if none is known.
TEST(JsonDocument, IntegersOfMoreThan64BitsAreTheDoublesTheyMean) {
  const JsonDocument document = JsonDocument::Parse(
      R"({"model_max_length": 1000000000000000019884624838656, "least": -100000000000000000000,)"
      R"( "text": "say \"1000000000000000019884624838656\" \\", "small": 7,)"
      R"( "fraction": 0.10000000000000000000001, "power": 1e-00000000000000000000002,)"
      R"( "last": 18446744073709551616})",
      "t");
  const JsonValue root = document.root();

  EXPECT_EQ(root.Find("model_max_length")->AsNumber(), 1e30);
  EXPECT_FALSE(root.Find("model_max_length")->AsInt());
  EXPECT_EQ(root.Find("least")->AsNumber(), -1e20);
  EXPECT_EQ(root.Find("text")->AsString(), R"(say "1000000000000000019884624838656" \)");
  EXPECT_EQ(root.Find("small")->AsInt(), 7);
  EXPECT_EQ(root.Find("fraction")->AsNumber(), 0.1);
  EXPECT_EQ(root.Find("power")->AsNumber(), 0.01);
  EXPECT_EQ(root.Find("last")->AsNumber(), 0x1p64);
}

TEST(JsonDocument, WhatIsNoNumberStaysRefused) {
  for (const char* text : {"[01]", "[1e999]", "[100000000000000000000000x]", "[-]",
                           "[00000000000000000000001]", "[1.]"}) {
    EXPECT_THROW(JsonDocument::Parse(text, "t"), Error) << text;
  }
}

}  // namespace
}  // namespace tandem::engine
