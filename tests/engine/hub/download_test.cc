#include "engine/hub/download.h"

#include <gtest/gtest.h>

#include "engine/base/attempt.h"

namespace tandem::engine {
namespace {

TEST(StartWorkers, TakesTheThreadsThatThereAre) {
  int n_asked = 0;
  StartWorkers(8, [&] {
    if (++n_asked == 3) throw Error(ErrorCode::kResourceExhausted, "no more threads");
  });
  EXPECT_EQ(n_asked, 3);
}

TEST(StartWorkers, NeedsOneThread) {
  const auto error = ErrorOf(
      [] { StartWorkers(8, [] { throw Error(ErrorCode::kResourceExhausted, "no thread"); }); });
  ASSERT_TRUE(error) << "there was none";
  EXPECT_EQ(error->code(), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::engine
