#include "server/admission/rate_limiter.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

RateLimiter::TimePoint At(std::chrono::milliseconds time) {
  return RateLimiter::TimePoint(1000s + time);
}

std::map<std::string, std::string> HeadersAt(RateLimiter& limiter, uint64_t client,
                                             std::chrono::milliseconds time) {
  const Headers headers = limiter.HeadersOf(client, At(time));
  return {headers.begin(), headers.end()};
}

TEST(RateLimiter, AMinutesWorthOfRequestsMayComeAtOnceThenOneAtATime) {
  RateLimiter limiter({.requests = 60});
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(limiter.TakeRequest(1, At(0ms)));

  const auto wait_s = limiter.TakeRequest(1, At(0ms));
  ASSERT_TRUE(wait_s);
  EXPECT_NEAR(*wait_s, 1, 1e-6);
  EXPECT_TRUE(limiter.TakeRequest(1, At(900ms)));
  EXPECT_FALSE(limiter.TakeRequest(1, At(1000ms)));
  EXPECT_TRUE(limiter.TakeRequest(1, At(1000ms)));
}

TEST(RateLimiter, OneKeyTakesNothingFromAnother) {
  RateLimiter limiter({.requests = 2});
  limiter.TakeRequest(1, At(0ms));
  limiter.TakeRequest(1, At(0ms));
  EXPECT_TRUE(limiter.TakeRequest(1, At(0ms)));
  EXPECT_FALSE(limiter.TakeRequest(2, At(0ms)));
  EXPECT_FALSE(limiter.TakeRequest(0, At(0ms)));
}

TEST(RateLimiter, UnusedTokensComeBackButNeverMoreThanAMinutesWorth) {
  RateLimiter limiter({.tokens = 600});
  EXPECT_FALSE(limiter.TakeTokens(1, 600, At(0ms)));
  EXPECT_NEAR(*limiter.TakeTokens(1, 100, At(0ms)), 10, 1e-6);
  limiter.SettleTokens(1, 600, 10, At(0ms));
  EXPECT_FALSE(limiter.TakeTokens(1, 590, At(0ms)));
  limiter.SettleTokens(1, 100'000, 0, At(0ms));
  EXPECT_EQ(HeadersAt(limiter, 1, 0ms).at("x-ratelimit-remaining-tokens"), "600");
}

TEST(RateLimiter, ARequestThatUsesMoreThanItsChargePaysTheRest) {
  RateLimiter limiter({.tokens = 600});
  EXPECT_FALSE(limiter.TakeTokens(1, 100, At(0ms)));
  limiter.SettleTokens(1, 100, 250, At(0ms));
  EXPECT_EQ(HeadersAt(limiter, 1, 0ms).at("x-ratelimit-remaining-tokens"), "350");
}

TEST(RateLimiter, MoreThanAMinutesWorthIsTakenFromAFullBucketOnly) {
  RateLimiter limiter({.tokens = 60});
  EXPECT_FALSE(limiter.TakeTokens(1, 90, At(0ms)));
  // Thirty tokens below zero: ninety seconds until it is full.
  EXPECT_NEAR(*limiter.TakeTokens(1, 90, At(0ms)), 90, 1e-6);
  EXPECT_TRUE(limiter.TakeTokens(1, 1, At(30s)));
  EXPECT_FALSE(limiter.TakeTokens(1, 1, At(31s)));
}

TEST(RateLimiter, HeadersNameTheLimitsThatThereAre) {
  RateLimiter requests({.requests = 40});
  requests.TakeRequest(1, At(0ms));
  EXPECT_EQ(HeadersAt(requests, 1, 0ms),
            (std::map<std::string, std::string>{{"x-ratelimit-limit-requests", "40"},
                                                {"x-ratelimit-remaining-requests", "39"},
                                                {"x-ratelimit-reset-requests", "1.5s"}}));
  RateLimiter tokens({.tokens = 60});
  tokens.TakeTokens(1, 75, At(0ms));
  EXPECT_EQ(HeadersAt(tokens, 1, 500ms),
            (std::map<std::string, std::string>{{"x-ratelimit-limit-tokens", "60"},
                                                {"x-ratelimit-remaining-tokens", "0"},
                                                {"x-ratelimit-reset-tokens", "74.5s"}}));
  RateLimiter none({});
  EXPECT_FALSE(none.TakeRequest(1, At(0ms)));
  EXPECT_TRUE(none.HeadersOf(1, At(0ms)).empty());
}

TEST(RateLimiter, DurationsAreShort) {
  EXPECT_EQ(DurationText(0), "0s");
  EXPECT_EQ(DurationText(-1), "0s");
  EXPECT_EQ(DurationText(1.5), "1.5s");
  EXPECT_EQ(DurationText(100), "100s");
  EXPECT_EQ(DurationText(0.0129), "0.013s");
}

}  // namespace
}  // namespace tandem::server
