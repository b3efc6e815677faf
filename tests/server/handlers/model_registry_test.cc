#include "server/handlers/model_registry.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace tandem::server
