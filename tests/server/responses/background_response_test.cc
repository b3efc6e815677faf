#include "server/responses/background_response.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace tandem::server {
namespace {

StoredResponse Running() {
  StoredResponse record;
  record.id = "resp_1";
  record.owner = 7;
  record.is_finished = false;
  record.body = R"({"id":"resp_1","status":"queued"})";
  record.input = "[]";
  return record;
}

TEST(BackgroundResponse, EventsAreReadInOrderFromAnyNumber) {
  BackgroundResponse response(Running());
  for (const char* event : {"a", "b", "c"}) response.Append(event);

  EXPECT_EQ(response.Read(1, 100).events, (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(response.Read(0, 1).events, (std::vector<std::string>{"a"}));
  EXPECT_TRUE(response.Read(7, 100).events.empty());
}

TEST(BackgroundResponse, TheEndIsVisibleOnlyOnceItIsStored) {
  BackgroundResponse response(Running());
  response.Append("a");
  StoredResponse record;

  ASSERT_TRUE(response.BeginEnd("last", "{}", &record));
  EXPECT_EQ(response.Read(0, 100).events, (std::vector<std::string>{"a"}));
  EXPECT_NE(response.body(), "{}");
  response.EndNow();

  EXPECT_EQ(response.Read(0, 100).events, (std::vector<std::string>{"a", "last"}));
  EXPECT_TRUE(response.Read(2, 100).is_last);
  EXPECT_EQ(response.body(), "{}");
  EXPECT_EQ(record.events, "a\nlast\n");
  EXPECT_TRUE(record.is_finished);
}

TEST(BackgroundResponse, TheFirstEndDecides) {
  BackgroundResponse response(Running());
  StoredResponse record;
  ASSERT_TRUE(response.BeginFailure("why", &record));

  EXPECT_FALSE(response.BeginEnd("last", "{}", &record));
  response.Append("late");
  response.EndNow();

  EXPECT_NE(response.body().find(R"("status":"failed")"), std::string::npos);
  EXPECT_EQ(response.Read(0, 100).events.size(), 1u);
}

TEST(BackgroundResponse, ACancellationBeforeTheRunIsNotLost) {
  BackgroundResponse response(Running());
  int n_cancels = 0;
  response.Cancel();

  response.SetCancel([&] { ++n_cancels; });
  response.Cancel();

  EXPECT_EQ(n_cancels, 1);
}

TEST(BackgroundResponse, OnEndRunsOnceAlsoAfterTheEnd) {
  BackgroundResponse response(Running());
  int n_ends = 0;
  response.OnEnd([&] { ++n_ends; });
  StoredResponse record;
  response.BeginEnd("last", "{}", &record);
  EXPECT_EQ(n_ends, 0);
  response.EndNow();
  response.EndNow();
  EXPECT_EQ(n_ends, 1);

  response.OnEnd([&] { ++n_ends; });

  EXPECT_EQ(n_ends, 2);
}

TEST(BackgroundResponse, SubscribersHearOfEachChange) {
  BackgroundResponse response(Running());
  int n_changes = 0;
  auto on_change = std::make_shared<std::function<void()>>([&] { ++n_changes; });
  response.Subscribe(on_change);
  response.Append("a");
  response.Append("b");
  on_change.reset();
  response.Append("c");

  EXPECT_EQ(n_changes, 2);
}

TEST(BackgroundResponses, OtherKeysDoNotFindAResponse) {
  BackgroundResponses running;
  running.Add(std::make_shared<BackgroundResponse>(Running()));

  EXPECT_EQ(running.Find("resp_1", 8), nullptr);
  EXPECT_NE(running.Find("resp_1", 7), nullptr);
  running.Remove("resp_1");
  EXPECT_EQ(running.Find("resp_1", 7), nullptr);
}

}  // namespace
}  // namespace tandem::server
