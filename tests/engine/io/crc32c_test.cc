#include "engine/io/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::engine {
namespace {

TEST(Crc32c, IsTheStandardsOne) {
  const std::string text = "123456789";
  EXPECT_EQ(Crc32c(0, std::as_bytes(std::span(text))), 0xE3069283u);
  EXPECT_EQ(Crc32c(Crc32c(0, std::as_bytes(std::span(text).first(3))),
                   std::as_bytes(std::span(text).subspan(3))),
            0xE3069283u);
  const std::string zeros(32, '\0');
  EXPECT_EQ(Crc32c(0, std::as_bytes(std::span(zeros))), 0x8A9136AAu);
}

}  // namespace
}  // namespace tandem::engine
