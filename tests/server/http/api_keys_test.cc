#include "server/http/api_keys.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::server {
namespace {

Request With(const std::string& authorization) {
  Request request;
  request.headers.emplace_back("authorization", authorization);
  return request;
}

// "ok", or the reason of the refusal.
std::string Verdict(const ApiKeys& keys, const Request& request, Access access) {
  const auto error = keys.Check(request, access);
  return error ? error->reason() : "ok";
}

TEST(ApiKeys, EachKeyOpensItsRoutes) {
  const ApiKeys keys({"one", "two"}, "root", "watch");
  struct Row {
    const char* token;
    const char* open;
    const char* api;
    const char* admin;
    const char* metrics;
  };
  const Row rows[] = {
      {"one", "ok", "ok", "insufficient_permissions", "insufficient_permissions"},
      {"two", "ok", "ok", "insufficient_permissions", "insufficient_permissions"},
      {"root", "ok", "ok", "ok", "ok"},
      {"watch", "ok", "invalid_api_key", "invalid_api_key", "ok"},
      {"wrong", "ok", "invalid_api_key", "invalid_api_key", "invalid_api_key"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.token);
    const Request request = With("Bearer " + std::string(row.token));
    EXPECT_EQ(Verdict(keys, request, Access::kOpen), row.open);
    EXPECT_EQ(Verdict(keys, request, Access::kApiKey), row.api);
    EXPECT_EQ(Verdict(keys, request, Access::kAdminKey), row.admin);
    EXPECT_EQ(Verdict(keys, request, Access::kMetricsKey), row.metrics);
  }
}

TEST(ApiKeys, WithoutKeysAllButAdministrationIsOpen) {
  const ApiKeys keys({}, std::nullopt);

  EXPECT_EQ(Verdict(keys, Request(), Access::kApiKey), "ok");
  EXPECT_EQ(Verdict(keys, With("Bearer anything"), Access::kApiKey), "ok");
  EXPECT_EQ(Verdict(keys, Request(), Access::kMetricsKey), "ok");
  EXPECT_EQ(Verdict(keys, Request(), Access::kAdminKey), "admin_disabled");
}

TEST(ApiKeys, OnlyABearerTokenIsAKey) {
  const ApiKeys keys({"key"}, std::nullopt);
  for (const char* good : {"Bearer key", "bearer key", "BEARER key"}) {
    EXPECT_EQ(Verdict(keys, With(good), Access::kApiKey), "ok") << good;
  }
  for (const char* bad : {"key", "Basic key", "Bearer", "Bearer ", "Bearer key key", "Bearer  key",
                          "Bearer key\t", "Bearer\tkey", ""}) {
    const auto error = keys.Check(With(bad), Access::kApiKey);
    ASSERT_TRUE(error.has_value()) << bad;
    EXPECT_NE(std::string(error->what()).find("missing"), std::string::npos) << bad;
  }
  Request twice = With("Bearer key");
  twice.headers.emplace_back("authorization", "Bearer key");
  EXPECT_EQ(Verdict(keys, twice, Access::kApiKey), "invalid_api_key");
}

TEST(ApiKeys, EveryWrongKeyGetsTheSameWords) {
  const ApiKeys keys({"a-long-key"}, "root");
  const std::string first = keys.Check(With("Bearer a-long-kez"), Access::kApiKey)->what();

  for (const char* wrong : {"a", "a-long-key-and-more", "A-LONG-KEY", "\xff\xfe"}) {
    EXPECT_EQ(keys.Check(With("Bearer " + std::string(wrong)), Access::kApiKey)->what(), first);
  }
  EXPECT_EQ(first.find("long"), std::string::npos);
}

TEST(ApiKeys, EachOfThousandsIsFoundAndNoOther) {
  std::vector<std::string> many;
  for (int i = 0; i < 5000; ++i) many.push_back("key-" + std::to_string(i));
  const ApiKeys keys(many, std::nullopt);

  for (const std::string& key : many) {
    ASSERT_EQ(Verdict(keys, With("Bearer " + key), Access::kApiKey), "ok") << key;
    ASSERT_EQ(Verdict(keys, With("Bearer x" + key), Access::kApiKey), "invalid_api_key") << key;
  }
}

TEST(ApiKeys, NewKeysReplaceTheOldOnesAndLeaveTheAdministratorIn) {
  ApiKeys keys({"old"}, "root");

  keys.SetApiKeys({"new"});

  EXPECT_EQ(Verdict(keys, With("Bearer old"), Access::kApiKey), "invalid_api_key");
  EXPECT_EQ(Verdict(keys, With("Bearer new"), Access::kApiKey), "ok");
  EXPECT_EQ(Verdict(keys, With("Bearer root"), Access::kApiKey), "ok");
}

}  // namespace
}  // namespace tandem::server
