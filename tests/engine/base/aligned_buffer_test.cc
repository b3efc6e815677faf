#include "engine/base/aligned_buffer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "engine/base/error.h"

namespace tandem {
namespace {

// On both sides of 4 MiB, from which a buffer is a mapping of its own.
constexpr size_t kSizes[] = {1, 63, 64, 65, 4096, (4u << 20) - 1, 4u << 20, (4u << 20) + 1};

TEST(AlignedBuffer, BeginsAtAMultipleOf64AndIsZero) {
  for (const size_t bytes : kSizes) {
    const AlignedBuffer buffer(bytes);

    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u) << bytes;
    EXPECT_EQ(buffer.size(), bytes);
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte b) {
      return b == std::byte{0};
    })) << bytes;
  }
}

TEST(AlignedBuffer, KeepsWhatIsWrittenToItsLastByte) {
  for (const size_t bytes : kSizes) {
    AlignedBuffer buffer(bytes);

    buffer.data()[bytes - 1] = std::byte{7};

    EXPECT_EQ(std::as_const(buffer).data()[bytes - 1], std::byte{7});
  }
}

TEST(AlignedBuffer, IsEmptyOnceMovedFrom) {
  for (const size_t bytes : kSizes) {
    AlignedBuffer source(bytes);
    source.data()[0] = std::byte{9};

    AlignedBuffer target(std::move(source));
    AlignedBuffer assigned(3);
    assigned = std::move(target);

    EXPECT_EQ(source.size(), 0u);
    EXPECT_EQ(source.data(), nullptr);
    EXPECT_EQ(target.size(), 0u);
    EXPECT_EQ(assigned.size(), bytes);
    EXPECT_EQ(assigned.data()[0], std::byte{9});
  }
}

TEST(AlignedBuffer, OfNoBytesHoldsNothing) {
  EXPECT_EQ(AlignedBuffer().size(), 0u);
  EXPECT_EQ(AlignedBuffer(0).size(), 0u);
}

TEST(AlignedBuffer, SaysUnavailableWhenMemoryCannotBeHad) {
  for (const size_t bytes : {std::numeric_limits<size_t>::max(), size_t{1} << 62}) {
    try {
      const AlignedBuffer buffer(bytes);
      FAIL() << "allocated " << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tandem
