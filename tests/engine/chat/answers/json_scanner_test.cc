#include "engine/chat/answers/json_scanner.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

namespace tandem::engine {
namespace {

bool AcceptsJson(std::string_view text) {
  JsonScanner scanner;
  auto status = JsonScanner::Status::kMore;
  for (const char byte : text) status = scanner.Feed(byte);
  return status == JsonScanner::Status::kDone;
}

TEST(JsonScanner, AgreesWithAParserOnRandomTexts) {
  static constexpr std::string_view kPieces[] = {
      "{",    "}", "[",    "]", ",", ":",    "\"a\"", "1",      "-0", "1.5", "2e-3",
      "true", " ", "null", "0", ".", "\"\\", "\\u00", "\"\n\"", "\"", "01"};
  int n_accepted = 0;
  for (uint64_t seed = 0; seed < 60000; ++seed) {
    std::mt19937_64 random(seed);
    // Within a list, every value has an end.
    std::string text = "[";
    for (size_t n = random() % 7; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    text += "]";

    const bool accepts = nlohmann::json::accept(text);
    n_accepted += accepts ? 1 : 0;
    ASSERT_EQ(AcceptsJson(text), accepts) << "seed " << seed << ": " << text;
  }
  EXPECT_GT(n_accepted, 1000);
}

TEST(JsonScanner, RefusesTheLevelBeyondSixtyFour) {
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };

  EXPECT_TRUE(AcceptsJson(nested(64)));
  EXPECT_FALSE(AcceptsJson(nested(65)));
}

}  // namespace
}  // namespace tandem::engine
