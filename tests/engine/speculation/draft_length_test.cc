#include "engine/speculation/draft_length.h"

#include <gtest/gtest.h>

namespace tandem::engine {
namespace {

TEST(DraftLength, DoublesWhileEverythingIsAccepted) {
  DraftLength length;
  for (const int64_t expected : {4, 8, 16, 16}) {
    EXPECT_EQ(length.Next(), expected);
    length.Observe(expected, expected);
  }
}

TEST(DraftLength, FallsToWhatWasAccepted) {
  DraftLength length;
  length.Observe(4, 2);
  EXPECT_EQ(length.Next(), 3);
  length.Observe(3, 0);
  EXPECT_EQ(length.Next(), 1);
}

TEST(DraftLength, PausesLongerAfterEachFailureAndRecovers) {
  DraftLength length;
  length.Observe(4, 0);
  length.Observe(2, 0);
  for (const int64_t pause : {2, 4, 8, 16, 32, 64, 64}) {
    ASSERT_EQ(length.Next(), 1);
    length.Observe(1, 0);
    for (int64_t i = 0; i < pause; ++i) ASSERT_EQ(length.Next(), 0) << pause;
  }
  ASSERT_EQ(length.Next(), 1);
  length.Observe(1, 1);
  EXPECT_EQ(length.Next(), 2);
  length.Observe(2, 0);
  length.Observe(1, 0);
  EXPECT_EQ(length.Next(), 0);
  EXPECT_EQ(length.Next(), 0);
  EXPECT_EQ(length.Next(), 1);
}

TEST(DraftLength, AShortDraftDoesNotShortenALongOne) {
  DraftLength length;
  length.Observe(4, 4);
  length.Observe(1, 1);
  EXPECT_EQ(length.Next(), 8);
}

}  // namespace
}  // namespace tandem::engine
