#include "server/models/model_registry.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::server {
namespace {

std::shared_ptr<ServedModel> Named(const std::string& id) {
  auto model = std::make_shared<ServedModel>();
  model->id = id;
  return model;
}

std::shared_ptr<ServedModel> Tuned(const std::string& id) {
  auto model = Named(id);
  model->owned_by = "user";
  return model;
}

void Serve(ModelRegistry& registry, const std::shared_ptr<ServedModel>& model,
           const std::vector<std::string>& aliases = {}) {
  std::vector<NameClaim> names;
  names.push_back(model->is_tuned() ? registry.TryClaimTuned(model->id).value()
                                    : registry.Claim(model->id));
  for (const std::string& alias : aliases) names.push_back(registry.Claim(alias));
  registry.Publish(model, std::move(names));
}

bool IsTaken(ModelRegistry& registry, const std::string& name) {
  try {
    registry.Claim(name);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
    return true;
  }
}

TEST(ModelName, NoSegmentOfANameIsEmptyOrMeansADirectory) {
  for (const char* good : {"a", "...", ".a", "a.b", "org/model:tag", "a/.b/c-1_2", "a:.."}) {
    EXPECT_TRUE(IsModelName(good)) << good;
  }
  for (const char* bad : {"", ".", "..", "../x", "x/..", "a/../b", "a/./b", "/a", "a/", "a//b",
                          "a b", "a\\b", "\xc3\xa4"}) {
    EXPECT_FALSE(IsModelName(bad)) << bad;
  }
  EXPECT_TRUE(IsModelName(std::string(128, 'a')));
  EXPECT_FALSE(IsModelName(std::string(129, 'a')));
}

TEST(ModelRegistry, ANameIsGivenAwayOnce) {
  ModelRegistry registry(false);
  {
    NameClaim claim = registry.Claim("a");
    EXPECT_TRUE(IsTaken(registry, "a"));
    EXPECT_TRUE(registry.IsClaimed("a"));
    EXPECT_FALSE(registry.Contains("a"));
    NameClaim moved = std::move(claim);
    EXPECT_TRUE(IsTaken(registry, "a"));
  }
  EXPECT_FALSE(IsTaken(registry, "a"));

  Serve(registry, Named("a"), {"b"});

  EXPECT_FALSE(registry.IsClaimed("a"));
  EXPECT_TRUE(IsTaken(registry, "a"));
  EXPECT_TRUE(IsTaken(registry, "b"));
  registry.Remove(*registry.Look("b"), nullptr);
  EXPECT_FALSE(IsTaken(registry, "a"));
  EXPECT_FALSE(IsTaken(registry, "b"));
}

TEST(ModelRegistry, AJobTakesTheNameOfWhatAJobMadeAndOfNobodyElse) {
  ModelRegistry registry(false);
  Serve(registry, Named("given"));
  Serve(registry, Tuned("tuned"), {"job-1"});
  const NameClaim coming = registry.Claim("coming");

  EXPECT_FALSE(registry.TryClaimTuned("given"));
  EXPECT_FALSE(registry.TryClaimTuned("coming"));
  EXPECT_FALSE(registry.TryClaimTuned("job-1")) << "an alias is no id";
  EXPECT_TRUE(registry.TryClaimTuned("new"));
  const std::optional<NameClaim> again = registry.TryClaimTuned("tuned");
  ASSERT_TRUE(again);
  EXPECT_FALSE(registry.TryClaimTuned("tuned")) << "two jobs";
  registry.Remove(*registry.Look("tuned"), nullptr);
  EXPECT_TRUE(IsTaken(registry, "tuned")) << "kept for who is about to publish it";
}

TEST(ModelRegistry, AModelThatHasLeftIsNotTakenForItsSuccessor) {
  ModelRegistry registry(false);
  Serve(registry, Tuned("a"));
  const auto old = registry.Look("a");
  Serve(registry, Tuned("a"));

  EXPECT_FALSE(registry.Remove(*old, [] { FAIL() << "was not there"; }));
  EXPECT_TRUE(registry.Contains("a"));
}

TEST(ModelRegistry, AnIdleModelThatIsUsedAgainStays) {
  ModelRegistry registry(false);
  Serve(registry, Named("a"));
  const auto model = registry.Look("a");
  const auto since = registry.IdleSince(*model);
  ASSERT_TRUE(since);

  auto request = registry.Find("a");
  EXPECT_FALSE(registry.Remove(*model, nullptr, "", since)) << "in use";
  request.reset();
  EXPECT_FALSE(registry.Remove(*model, nullptr, "", since)) << "used since";

  EXPECT_TRUE(registry.Remove(*model, nullptr, "", registry.IdleSince(*model)));
  EXPECT_TRUE(registry.empty());
}

TEST(ModelRegistry, ARemovedModelEndsWithItsLastRequest) {
  ModelRegistry registry(false);
  std::weak_ptr<const ServedModel> watched;
  {
    const auto model = Named("a");
    watched = model;
    Serve(registry, model, {"b"});
  }
  auto first = registry.Find("a");
  auto second = registry.Find("b");
  std::promise<void> gone;

  EXPECT_TRUE(registry.Remove(*registry.Look("b"), [&] { gone.set_value(); }));
  EXPECT_FALSE(registry.Remove(*first, nullptr));  // all names at once
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
  Serve(registry, Tuned("a"), {"job-1"});
  const auto old = registry.Find("job-1");

  Serve(registry, Tuned("a"), {"job-2"});

  EXPECT_EQ(old->id, "a");
  EXPECT_NE(registry.Find("a").get(), old.get());
  EXPECT_FALSE(registry.Contains("job-1"));
  EXPECT_EQ(registry.List().size(), 2u);
}

TEST(ModelRegistry, LeasesMayOutliveIt) {
  std::shared_ptr<const ServedModel> lease;
  {
    ModelRegistry registry(true);
    Serve(registry, Named("a"));
    lease = registry.Find("whatever");
    EXPECT_TRUE(registry.Remove(*lease, [] { FAIL() << "there is still a lease"; }));
  }
  lease.reset();
}

TEST(ModelRegistry, AModelIsIdleFromItsLastRequestOn) {
  using Clock = std::chrono::steady_clock;
  ModelRegistry registry(false);
  const auto before = Clock::now();
  Serve(registry, Named("a"), {"b"});
  const auto model = registry.Look("a");
  const auto idle = [&] { return registry.IdleSince(*model); };
  EXPECT_GE(*idle(), before) << "a new model has its time";

  auto request = registry.Find("b");
  EXPECT_FALSE(idle());
  auto more = registry.Find("a");
  request.reset();
  EXPECT_FALSE(idle());
  const auto last = Clock::now();
  more.reset();

  const auto idle_since = idle();
  ASSERT_TRUE(idle_since);
  EXPECT_GE(*idle_since, last);
  registry.Look("b");
  registry.List();
  EXPECT_EQ(idle(), idle_since) << "looking is no request";
  registry.Remove(*model, nullptr);
  EXPECT_FALSE(idle());
}

TEST(ModelRegistry, AdaptersKeepTheirBaseAndLeaveWithIt) {
  ModelRegistry registry(false);
  Serve(registry, Named("base"));
  std::weak_ptr<const ServedModel> adapter_watched;
  {
    const auto adapter = Named("tuned");
    adapter->base = registry.Look("base");
    adapter_watched = adapter;
    Serve(registry, adapter, {"alias"});
  }
  auto request = registry.Find("alias");
  EXPECT_FALSE(registry.IdleSince(*registry.Look("base"))) << "who uses an adapter uses its base";
  std::promise<void> gone;
  auto is_gone = gone.get_future();

  registry.Remove(
      *registry.Look("base"), [&] { gone.set_value(); }, "it was unloaded");

  EXPECT_TRUE(registry.empty());
  EXPECT_EQ(is_gone.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  EXPECT_EQ(request->base->id, "base");
  request.reset();
  is_gone.wait();
  EXPECT_TRUE(adapter_watched.expired());
  EXPECT_THROW(registry.Find("tuned"), Error);
}

TEST(ModelRegistry, AnAliasIsSwitchedInOneStepAndFollowsItsTargetsName) {
  ModelRegistry registry(true);
  Serve(registry, Tuned("first"));
  Serve(registry, Tuned("second"), {"other-name"});

  EXPECT_EQ(registry.SetAlias("prod", "first"), std::nullopt);
  const auto running = registry.Find("prod");
  EXPECT_EQ(registry.SetAlias("prod", "other-name"), "first");

  EXPECT_EQ(running->id, "first") << "who runs on the old target ends on it";
  EXPECT_EQ(registry.Find("prod")->id, "second");
  EXPECT_EQ(registry.Look("prod")->id, "second");
  EXPECT_EQ(registry.SetAlias("prod", "second"), "other-name");
  const auto before = registry.Find("prod");
  Serve(registry, Tuned("second"));
  EXPECT_NE(registry.Find("prod"), before) << "another model has the target's name by now";
  ASSERT_EQ(registry.List().size(), 3U);
  EXPECT_EQ(registry.List().back().name, "prod");

  registry.Remove(*registry.Look("second"), nullptr, "it was unloaded");

  EXPECT_THROW(registry.Find("prod"), Error) << "an alias never means just any model";
  EXPECT_EQ(registry.List().size(), 1U);
  ASSERT_EQ(registry.Aliases().size(), 1U);
  EXPECT_FALSE(registry.Aliases().front().is_served);
  EXPECT_EQ(registry.RemoveAlias("prod"), "second");
  EXPECT_EQ(registry.RemoveAlias("prod"), std::nullopt);
  EXPECT_EQ(registry.Find("prod")->id, "first") << "any name means the first model";
}

TEST(ModelRegistry, AnAliasTakesNoNameAndGivesNoneAway) {
  ModelRegistry registry(false);
  Serve(registry, Named("a"), {"b"});
  const NameClaim claim = registry.Claim("coming");
  const auto code = [&](const std::string& name, const std::string& target) {
    try {
      registry.SetAlias(name, target);
    } catch (const Error& error) {
      return error.reason();
    }
    return std::string("set");
  };

  EXPECT_EQ(code("a", "a"), "already_exists");
  EXPECT_EQ(code("b", "a"), "already_exists");
  EXPECT_EQ(code("coming", "a"), "already_exists");
  EXPECT_EQ(code("prod", "nobody"), "model_not_found");
  EXPECT_EQ(code("prod", "a"), "set");
  EXPECT_EQ(code("next", "prod"), "invalid_value");
  EXPECT_TRUE(IsTaken(registry, "prod"));
  EXPECT_EQ(registry.TryClaimTuned("prod"), std::nullopt);
}

TEST(ModelRegistry, AnAdapterReplacesAnAdapterAndNothingElse) {
  ModelRegistry registry(false);
  Serve(registry, Named("base"));
  const auto adapter = [&](const std::string& name) {
    auto model = Named(name);
    model->base = registry.Look("base");
    return model;
  };
  const auto publish = [&](const std::shared_ptr<ServedModel>& model) {
    std::vector<NameClaim> names;
    names.push_back(registry.ClaimForAdapter(model->id));
    registry.Publish(model, std::move(names));
  };
  publish(adapter("style"));
  const auto running = registry.Find("style");

  publish(adapter("style"));

  EXPECT_NE(registry.Find("style"), running);
  EXPECT_THROW(registry.ClaimForAdapter("base"), Error);
  {
    const NameClaim claim = registry.ClaimForAdapter("style");
    EXPECT_THROW(registry.ClaimForAdapter("style"), Error) << "two at a time";
  }
  // The base leaves while an adapter of it is being made.
  auto late = adapter("late");
  registry.Remove(*registry.Look("base"), nullptr, "it was unloaded");
  EXPECT_THROW(publish(late), Error);
  EXPECT_FALSE(registry.IsClaimed("late"));
  EXPECT_FALSE(registry.Contains("late"));
}

TEST(ModelRegistry, AViewerNeverLearnsOfAnotherOwnersModel) {
  ModelRegistry registry(false);
  std::vector<Viewer> viewers;
  registry.SetLoader([&](const std::string&, const Viewer& viewer) { viewers.push_back(viewer); });
  Serve(registry, Named("base"));
  for (const auto& [name, owner] : {std::pair{"ft:mine", int64_t{-4}}, {"ft:theirs", 9}}) {
    auto model = Tuned(name);
    model->owner = owner;
    Serve(registry, model);
  }
  const Viewer me = -4;

  EXPECT_EQ(registry.Find("ft:mine", me)->id, "ft:mine");
  EXPECT_EQ(registry.Look("base", me)->id, "base");
  EXPECT_EQ(registry.List(me).size(), 2u);
  EXPECT_EQ(registry.List().size(), 3u);
  EXPECT_EQ(registry.List(0).size(), 1u);
  EXPECT_EQ(registry.Find(std::nullopt, 0)->id, "base");
  EXPECT_THROW(registry.Look("ft:theirs", me), Error);
  const auto words = [&](const std::string& name) -> std::string {
    try {
      registry.Find(name, me);
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), "model_not_found");
      return error.what();
    }
    return "found";
  };
  EXPECT_EQ(words("ft:theirs"), "model 'ft:theirs' is not served here; served are: base, ft:mine");
  // The same words for a name that nobody has, which the loader may look for.
  EXPECT_EQ(words("ft:nobody"), "model 'ft:nobody' is not served here; served are: base, ft:mine");
  EXPECT_EQ(viewers, std::vector<Viewer>{me});
  // An administrator's alias shares its target.
  registry.SetAlias("prod", "ft:theirs");
  EXPECT_EQ(registry.Find("prod", me)->id, "ft:theirs");
}

TEST(ModelRegistry, NamesThatNoModelHasMayBeLoaded) {
  ModelRegistry registry(false);
  std::vector<std::string> asked;
  registry.SetLoader([&](const std::string& name, const Viewer&) {
    asked.push_back(name);
    if (name == "broken") throw Error(ErrorCode::kUnavailable, "not now");
    if (name.starts_with("late")) Serve(registry, Named(name));
  });
  Serve(registry, Named("there"));

  EXPECT_EQ(registry.Find("there")->id, "there");
  EXPECT_TRUE(asked.empty());
  EXPECT_EQ(registry.Find("late-1")->id, "late-1");
  EXPECT_EQ(registry.Look("late-2")->id, "late-2");
  EXPECT_EQ(registry.Find("late-1")->id, "late-1");  // already published
  registry.SetAlias("short", "late-3");
  EXPECT_EQ(registry.Find("short")->id, "late-3");
  registry.SetAlias("early", "late-4", true);
  EXPECT_FALSE(registry.Contains("late-4"));
  EXPECT_EQ(registry.Find("early")->id, "late-4");
  EXPECT_THROW(registry.Find("nobody"), Error);
  EXPECT_THROW(registry.Find("broken"), Error);
  EXPECT_EQ(asked,
            (std::vector<std::string>{"late-1", "late-2", "late-3", "late-4", "nobody", "broken"}));
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
  Serve(registry, Named("a"), {"alias"});
  Serve(registry, Named("b"));
  registry.Remove(*registry.Look("a"), nullptr, "it was unloaded");

  EXPECT_EQ(message("a"),
            "model_not_found: model 'a' is not served here: it was unloaded; served are: b");
  EXPECT_EQ(message("alias"),
            "model_not_found: model 'alias' is not served here: it was unloaded; served are: b");
  EXPECT_EQ(registry.Find("a")->id, "b") << "where any name means the first model";
  registry.Remove(*registry.Look("b"), nullptr);
  EXPECT_EQ(message("b"), "model_not_found: model 'b' is not served here; no model is loaded");
  EXPECT_THROW(registry.Find("b"), Error);
  EXPECT_THROW(registry.Find(std::nullopt), Error);
  Serve(registry, Named("a"));
  EXPECT_EQ(message("a"), "");
  registry.Remove(*registry.Look("a"), nullptr);
  EXPECT_EQ(message("a"), "model_not_found: model 'a' is not served here; no model is loaded");
}

}  // namespace
}  // namespace tandem::server
