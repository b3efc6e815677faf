#include "engine/hub/redacted.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::engine {
namespace {

TEST(Redacted, ReplacesEverySecret) {
  EXPECT_EQ(Redacted("no ID for SECRET, SECRET", {"ID", "SECRET", ""}, "[key]"),
            "no [key] for [key], [key]");
  EXPECT_EQ(Redacted("", {"ID"}, "[key]"), "");
  EXPECT_EQ(Redacted("text", {""}, "[key]"), "text");
}

// A search of the replaced text would find it again without end.
TEST(Redacted, EndsForASecretWithinTheMark) {
  for (const std::string secret : {"key", "[key]", "e", "]"}) {
    EXPECT_EQ(Redacted("a " + secret + secret + "!", {secret}, "[key]"), "a [key][key]!");
  }
}

TEST(Redacted, TakesTheLongerOfTwoThatBeginTogether) {
  EXPECT_EQ(Redacted("KEYANDMORE", {"KEY", "KEYANDMORE"}, "#"), "#");
  EXPECT_EQ(Redacted("KEYAND", {"KEY", "KEYANDMORE"}, "#"), "#AND");
}

}  // namespace
}  // namespace tandem::engine
