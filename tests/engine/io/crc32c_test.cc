#include "engine/io/crc32c.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

TEST(Crc32c, TheInstructionAndTheTablesAgree) {
  std::vector<std::byte> bytes;
  uint32_t state = 1;
  for (int i = 0; i < 1000; ++i) {
    bytes.push_back(static_cast<std::byte>(state >> 24));
    state = state * 1664525 + 1013904223;
  }
  for (size_t from = 0; from < 9; ++from) {
    for (size_t n = 0; n < 300; ++n) {
      const auto part = std::span(bytes).subspan(from, n);
      ASSERT_EQ(Crc32c(static_cast<uint32_t>(n), part),
                PortableCrc32c(static_cast<uint32_t>(n), part))
          << from << " " << n;
    }
  }
}

}  // namespace
}  // namespace tandem::engine
