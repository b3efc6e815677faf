#include "server/handlers/model_registry.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

namespace tandem::server {
namespace {

std::shared_ptr<ServedModel> Named(const std::string& id) {
  auto model = std::make_shared<ServedModel>();
  model->id = id;
  return model;
}

TEST(ModelRegistry, ARemovedModelEndsWithItsLastRequest) {
  ModelRegistry registry(false);
  std::weak_ptr<const ServedModel> watched;
  {
    const auto model = Named("a");
    watched = model;
    registry.Add(model, {"b"});
  }
  auto first = registry.Find("a");
  auto second = registry.Find("b");
  std::promise<void> gone;

  EXPECT_TRUE(registry.Remove("b", [&] { gone.set_value(); }));
  EXPECT_FALSE(registry.Remove("a", nullptr));  // all names at once
  EXPECT_FALSE(registry.Contains("a"));
  first.reset();
  EXPECT_EQ(second->id, "a");
  EXPECT_FALSE(watched.expired());
  second.reset();
  gone.get_future().wait();

  EXPECT_TRUE(watched.expired());
}

TEST(ModelRegistry, AModelPublishedAgainLeavesTheOldOneToItsRequests) {
  ModelRegistry registry(false);
  registry.Publish(Named("a"), {"job-1"});
  const auto old = registry.Find("job-1");

  registry.Publish(Named("a"), {"job-2"});

  EXPECT_EQ(old->id, "a");
  EXPECT_NE(registry.Find("a").get(), old.get());
  EXPECT_FALSE(registry.Contains("job-1"));
  EXPECT_EQ(registry.List().size(), 2u);
}

TEST(ModelRegistry, LeasesMayOutliveIt) {
  std::shared_ptr<const ServedModel> lease;
  {
    ModelRegistry registry(true);
    registry.Add(Named("a"));
    lease = registry.Find("whatever");
    EXPECT_TRUE(registry.Remove("a", [] { FAIL() << "there is still a lease"; }));
  }
  lease.reset();
}

TEST(ModelRegistry, AModelIsIdleFromItsLastRequestOn) {
  using Clock = std::chrono::steady_clock;
  ModelRegistry registry(false);
  const auto before = Clock::now();
  registry.Add(Named("a"), {"b"});
  EXPECT_GE(*registry.IdleSince("a"), before) << "a new model has its time";

  auto request = registry.Find("b");
  EXPECT_FALSE(registry.IdleSince("a"));
  auto more = registry.Find("a");
  request.reset();
  EXPECT_FALSE(registry.IdleSince("a"));
  const auto last = Clock::now();
  more.reset();

  const auto idle_since = registry.IdleSince("a");
  ASSERT_TRUE(idle_since);
  EXPECT_GE(*idle_since, last);
  registry.Look("b");
  registry.List();
  EXPECT_EQ(registry.IdleSince("a"), idle_since) << "looking is no request";
  EXPECT_FALSE(registry.IdleSince("nobody"));
}

TEST(ModelRegistry, AdaptersKeepTheirBaseAndLeaveWithIt) {
  ModelRegistry registry(false);
  registry.Add(Named("base"));
  std::weak_ptr<const ServedModel> adapter_watched;
  {
    const auto adapter = Named("tuned");
    adapter->base = registry.Look("base");
    adapter_watched = adapter;
    registry.Add(adapter, {"alias"});
  }
  auto request = registry.Find("alias");
  EXPECT_FALSE(registry.IdleSince("base")) << "who uses an adapter uses its base";
  std::promise<void> gone;
  auto is_gone = gone.get_future();

  registry.Remove(
      "base", [&] { gone.set_value(); }, "it was unloaded");

  EXPECT_TRUE(registry.empty());
  EXPECT_EQ(is_gone.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(request->base->id, "base");
  request.reset();
  is_gone.wait();
  EXPECT_TRUE(adapter_watched.expired());
  EXPECT_THROW(registry.Find("tuned"), Error);
}

TEST(ModelRegistry, SaysWhyAModelIsNotThereAnyMore) {
  ModelRegistry registry(true);
  const auto message = [&](const std::string& name) -> std::string {
    try {
      registry.Look(name);
    } catch (const Error& error) {
      return error.reason() + ": " + error.what();
    }
    return "";
  };
  EXPECT_EQ(message("a"), "model_loading: no model is loaded yet");
  registry.Add(Named("a"));
  registry.Add(Named("b"));
  registry.Remove("a", nullptr, "it was unloaded");

  EXPECT_EQ(message("a"),
            "model_not_found: model 'a' is not served here: it was unloaded; served are: b");
  EXPECT_EQ(registry.Find("a")->id, "b") << "where any name means the first model";
  registry.Remove("b", nullptr);
  EXPECT_EQ(message("b"), "model_not_found: model 'b' is not served here; no model is loaded");
  EXPECT_THROW(registry.Find("b"), Error);
  EXPECT_THROW(registry.Find(std::nullopt), Error);
  registry.Add(Named("a"));
  EXPECT_EQ(message("a"), "");
  registry.Remove("a", nullptr);
  EXPECT_EQ(message("a"), "model_not_found: model 'a' is not served here; no model is loaded");
}

}  // namespace
}  // namespace tandem::server
