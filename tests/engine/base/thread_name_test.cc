#include "engine/base/thread_name.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <thread>

#include "engine/base/thread_pool.h"

namespace tandem {
namespace {

std::string NameOfThisThread() {
  std::array<char, 16> name{};
  pthread_getname_np(pthread_self(), name.data(), name.size());
  return name.data();
}

TEST(ThreadName, IsWhatTheSystemShows) {
  std::string shown;

  std::thread([&] {
    NameThisThread("tandem-fifteen.");
    shown = NameOfThisThread();
  }).join();

  EXPECT_EQ(shown, "tandem-fifteen.");
}

TEST(ThreadName, ThatTheSystemWouldCutIsOurBug) {
  EXPECT_THROW(NameThisThread("tandem-sixteen.."), Error);
}

TEST(ThreadName, WorkersOfAPoolAreNumberedAndTheCallerKeepsItsName) {
  const std::string own = NameOfThisThread();
  ThreadPool pool(2);
  std::array<std::string, 2> names;

  // A round often ends before the second worker wakes.
  while (names[1].empty()) {
    pool.ParallelFor(
        64, [&](int64_t, int worker) { names[static_cast<size_t>(worker)] = NameOfThisThread(); });
  }

  EXPECT_EQ(names[1], "tandem-work-1");
  EXPECT_EQ(NameOfThisThread(), own);
}

}  // namespace
}  // namespace tandem
