// The order in which a pool runs the tasks of several clients, and the bounds of its queue.

#include "server/http/request_pool.h"

#include <gtest/gtest.h>

#include <latch>
#include <string>

namespace tandem::server {
namespace {

constexpr uint64_t kNoKey = 0;
constexpr uint64_t kFirstKey = 1;
constexpr uint64_t kSecondKey = 2;

// A pool of one thread, which is busy until the test calls RunAll.
class RequestPoolTest : public testing::Test {
 protected:
  RequestPoolTest() {
    EXPECT_TRUE(pool_.TryPost(kNoKey, [this] {
      entered_.count_down();
      begin_.wait();
    }));
    entered_.wait();
  }
  bool Post(uint64_t client, char name) {
    return pool_.TryPost(client, [this, name] {
      order_ += name;
      if (order_.size() == n_expected_) ended_.count_down();
    });
  }
  std::string RunAll(size_t n_expected) {
    n_expected_ = n_expected;
    begin_.count_down();
    ended_.wait();
    return order_;
  }

  std::latch entered_{1};
  std::latch begin_{1};
  std::latch ended_{1};
  size_t n_expected_ = 0;
  std::string order_;
  RequestPool pool_{{.max_queued = 6, .max_queued_per_client = 3, .name = "test"}};
};

TEST_F(RequestPoolTest, AKeyWaitsForOneTaskOfAnotherKeyNotForAllOfThem) {
  for (const char name : {'a', 'b', 'c'}) EXPECT_TRUE(Post(kFirstKey, name));
  for (const char name : {'x', 'y'}) EXPECT_TRUE(Post(kSecondKey, name));

  EXPECT_EQ(RunAll(5), "axbyc");
}

TEST_F(RequestPoolTest, AKeyGetsOnlyItsPartOfTheQueue) {
  for (const char name : {'a', 'b', 'c'}) EXPECT_TRUE(Post(kFirstKey, name));

  EXPECT_FALSE(Post(kFirstKey, 'd'));
  EXPECT_TRUE(Post(kSecondKey, 'x'));
  EXPECT_EQ(RunAll(4), "axbc");
}

TEST_F(RequestPoolTest, RequestsWithoutAKeyMayFillTheQueue) {
  for (const char name : {'a', 'b', 'c', 'd', 'e', 'f'}) EXPECT_TRUE(Post(kNoKey, name));

  EXPECT_FALSE(Post(kNoKey, 'g'));
  EXPECT_FALSE(Post(kFirstKey, 'x'));
  EXPECT_EQ(RunAll(6), "abcdef");
}

}  // namespace
}  // namespace tandem::server
