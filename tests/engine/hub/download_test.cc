#include "engine/hub/download.h"

#include <gtest/gtest.h>

#include <atomic>
#include <system_error>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

TEST(StartWorkers, TakesTheThreadsThatThereAre) {
  std::atomic<int> n_run{0};
  int n_asked = 0;
  const auto start = [&] {
    if (++n_asked == 3) throw std::system_error(EAGAIN, std::generic_category());
    return std::jthread([&] { ++n_run; });
  };

  std::vector<std::jthread> threads = StartWorkers(8, start);

  EXPECT_EQ(threads.size(), 2);
  EXPECT_EQ(n_asked, 3);
  threads.clear();
  EXPECT_EQ(n_run, 2);
}

TEST(StartWorkers, NeedsOneThread) {
  try {
    StartWorkers(
        8, []() -> std::jthread { throw std::system_error(EAGAIN, std::generic_category()); });
    ADD_FAILURE() << "there was none";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  }
}

}  // namespace
}  // namespace tandem::engine
