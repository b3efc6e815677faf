#include "server/app/follow_task.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "server/app/publish_lock.h"

namespace tandem::server {
namespace {

// A pool of one thread, which the test holds.
class HeldPool {
 public:
  explicit HeldPool(size_t max_queued)
      : pool({.n_threads = 1, .max_queued = max_queued, .name = "held"}) {
    std::promise<void> begun;
    pool.TryPost(0, [&begun, released = released_.get_future().share()] {
      begun.set_value();
      released.wait();
    });
    begun.get_future().wait();
  }
  // Waits for the queued tasks.
  void Release() {
    released_.set_value();
    std::promise<void> done;
    while (!pool.TryPost(0, [&done] { done.set_value(); })) std::this_thread::yield();
    done.get_future().wait();
  }

 private:
  std::promise<void> released_;

 public:
  RequestPool pool;
};

TEST(FollowTask, ManyChangesCostOneRun) {
  HeldPool held(8);
  std::atomic<int> n_runs{0};
  FollowTask task(held.pool, "test", [&] { ++n_runs; });

  for (int i = 0; i < 100; ++i) task.Post();
  held.Release();

  EXPECT_EQ(n_runs, 1);
}

TEST(FollowTask, AFullPoolIsAnErrorThatPasses) {
  HeldPool held(1);
  std::atomic<int> n_runs{0};
  FollowTask first(held.pool, "first", [] {});
  FollowTask task(held.pool, "test", [&] { ++n_runs; });
  first.Post();

  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(ErrorOf({ErrorCode::kUnavailable}, [&] { task.Post(); })) << i;
  }
  held.Release();
  task.Post();
  while (n_runs == 0) std::this_thread::yield();
}

TEST(FollowTask, AFailedRunDoesNotEndTheNextOnes) {
  HeldPool held(4);
  std::atomic<int> n_runs{0};
  FollowTask task(held.pool, "test", [&] {
    ++n_runs;
    throw Error(ErrorCode::kUnavailable, "the database is away");
  });
  task.Post();
  held.Release();
  task.Post();
  while (n_runs < 2) std::this_thread::yield();
}

TEST(PublishLock, MayBeTriedWithoutAWait) {
  std::mutex mutex;
  std::atomic<std::thread::id> owner{};
  const PublishLock lock(mutex, owner);
  EXPECT_EQ(owner.load(), std::this_thread::get_id());

  std::thread([&] {
    const PublishLock other(mutex, owner, std::try_to_lock);
    EXPECT_FALSE(other.owns());
  }).join();
  // The attempt leaves the owner alone.
  EXPECT_EQ(owner.load(), std::this_thread::get_id());
}

}  // namespace
}  // namespace tandem::server
