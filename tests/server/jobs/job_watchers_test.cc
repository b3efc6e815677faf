#include "server/jobs/job_watchers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <utility>

namespace tandem::server {
namespace {

TEST(JobWatchers, OnlyWatchersOfThatJobAreCalledUntilTheyCancel) {
  const auto watchers = std::make_shared<JobWatchers>();
  int a = 0;
  int b = 0;
  JobSubscription on_a = watchers->Add("a", [&] { ++a; });
  const JobSubscription on_b = watchers->Add("b", [&] { ++b; });

  watchers->Notify("a");
  on_a.Cancel();
  watchers->Notify("a");
  watchers->Notify("b");

  EXPECT_EQ(a, 1);
  EXPECT_EQ(b, 1);
}

TEST(JobWatchers, CallbackMayCancelItselfAndOthers) {
  const auto watchers = std::make_shared<JobWatchers>();
  int calls = 0;
  std::optional<JobSubscription> first;
  std::optional<JobSubscription> second;
  first = watchers->Add("a", [&] {
    ++calls;
    first.reset();
    second.reset();
  });
  second = watchers->Add("a", [&] { ++calls; });

  watchers->Notify("a");
  watchers->Notify("a");

  EXPECT_EQ(calls, 1);
}

TEST(JobWatchers, CancelWaitsForACallUnderWay) {
  const auto watchers = std::make_shared<JobWatchers>();
  std::promise<void> entered;
  std::promise<void> leave;
  std::atomic<bool> left = false;
  JobSubscription subscription = watchers->Add("a", [&] {
    entered.set_value();
    leave.get_future().wait();
    left = true;
  });
  auto notify = std::async(std::launch::async, [&] { watchers->Notify("a"); });
  entered.get_future().wait();

  auto cancel = std::async(std::launch::async, [&] {
    subscription.Cancel();
    return left.load();
  });
  leave.set_value();

  EXPECT_TRUE(cancel.get()) << "Cancel returned while the callback was running";
  notify.get();
}

TEST(JobWatchers, ThrowingCallbackDoesNotKeepOthersFromBeingCalled) {
  const auto watchers = std::make_shared<JobWatchers>();
  int calls = 0;
  const JobSubscription bad = watchers->Add("a", [] { throw std::runtime_error("on purpose"); });
  const JobSubscription good = watchers->Add("a", [&] { ++calls; });

  watchers->Notify("a");

  EXPECT_EQ(calls, 1);
}

TEST(JobWatchers, SubscriptionMayOutliveTheWatchersOwner) {
  auto watchers = std::make_shared<JobWatchers>();
  JobSubscription subscription = watchers->Add("a", [] {});
  watchers.reset();

  JobSubscription moved = std::move(subscription);
  moved.Cancel();
}

}  // namespace
}  // namespace tandem::server
