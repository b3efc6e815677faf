#include "training/step/paged_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "engine/base/attempt.h"

namespace tandem::training {
namespace {

// Resident pages of all shared mappings.
int64_t SharedPages() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  int64_t shared = 0;
  file >> size >> resident >> shared;
  return shared;
}

TEST(PagedMemoryTest, PagesComeWithWritesAndGoWithDrop) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  PagedMemory memory(kBytes);
  const int64_t before = SharedPages();
  std::fill_n(memory.data(), kBytes, std::byte{7});
  EXPECT_GE(SharedPages() - before, kBytes / 4096);
  memory.Drop(0, kBytes / 2);
  EXPECT_LE(SharedPages() - before, kBytes / 4096 / 2 + 64);
  EXPECT_EQ(memory.data()[0], std::byte{0});
  EXPECT_EQ(memory.data()[kBytes / 2 - 1], std::byte{0});
  EXPECT_EQ(memory.data()[kBytes / 2], std::byte{7});
}

TEST(PagedMemoryTest, DropTakesAnyRange) {
  for (const auto& [begin, end] :
       {std::pair{0, 0}, std::pair{5, 9}, std::pair{4095, 4097}, std::pair{1, 12287},
        std::pair{4096, 8192}, std::pair{100, 20000}}) {
    PagedMemory memory(20000);
    std::fill_n(memory.data(), 20000, std::byte{1});
    memory.Drop(begin, end);
    for (int64_t i = 0; i < 20000; ++i) {
      ASSERT_EQ(memory.data()[i], static_cast<std::byte>(i < begin || i >= end ? 1 : 0))
          << begin << " " << i;
    }
  }
}

TEST(PagedMemoryTest, TooManyAddressesAreAnError) {
  const auto error = ErrorOf([] { PagedMemory memory(int64_t{1} << 60); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace tandem::training
