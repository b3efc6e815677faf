#include "server/wire/field_reader.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace tandem::server {
namespace {

std::string ObjectOf(int n_names) {
  std::string text = "{";
  for (int i = 0; i < n_names; ++i) {
    text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":0";
  }
  return text + "}";
}

std::string Refusal(const std::string& text) {
  try {
    ParseJsonObject(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.reason(), "invalid_json");
    return error.what();
  }
  return "";
}

TEST(ParseJsonObjectTest, AnObjectMayHaveSixteenThousandNamesAndNoMore) {
  EXPECT_EQ(ParseJsonObject(ObjectOf(16 << 10)).size(), size_t{16} << 10);

  EXPECT_NE(Refusal(ObjectOf((16 << 10) + 1)).find("an object with more than 16384 fields"),
            std::string::npos);
}

TEST(ParseJsonObjectTest, ABodyMayHaveAMillionValuesAndNoMore) {
  const auto numbers = [](int n) {
    std::string text = "{\"a\":[0";
    for (int i = 1; i < n; ++i) text += ",0";
    return text + "]}";
  };
  // The object and the array are values too.
  EXPECT_EQ(ParseJsonObject(numbers((1 << 20) - 2))["a"].size(), (size_t{1} << 20) - 2);

  EXPECT_NE(Refusal(numbers((1 << 20) - 1)).find("more than 1048576 values"), std::string::npos);
}

TEST(ParseJsonObjectTest, ABodyMayHaveSixtyFourLevelsAndNoMore) {
  const auto nested = [](int depth) {
    std::string text = "{\"a\":";
    text.append(static_cast<size_t>(depth - 1), '[');
    text.append(static_cast<size_t>(depth - 1), ']');
    return text + "}";
  };
  EXPECT_EQ(Refusal(nested(64)), "");

  EXPECT_NE(Refusal(nested(65)).find("nesting deeper than 64 levels"), std::string::npos);
}

TEST(ParseJsonObjectTest, ANameThatStandsTwiceInAnObjectIsRefused) {
  EXPECT_NE(Refusal(R"({"model":"a","model":"b"})").find("duplicate name"), std::string::npos);
}

TEST(ParseJsonObjectTest, NothingMayFollowTheObjectNotEvenBehindANul) {
  EXPECT_NE(Refusal(std::string("{}\0{", 4)), "");
  EXPECT_NE(Refusal("{} {}"), "");
}

}  // namespace
}  // namespace tandem::server
