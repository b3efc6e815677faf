#include "engine/base/error.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

TEST(Error, ANulInAMessageHidesNothingBehindIt) {
  const Error error(ErrorCode::kInvalidArgument, std::string("no model 'a\0b\0'; try c", 22));
  EXPECT_STREQ(error.what(), "no model 'a\\u0000b\\u0000'; try c");
  EXPECT_STREQ(Error(ErrorCode::kIo, "plain").what(), "plain");
}

}  // namespace
}  // namespace tandem
