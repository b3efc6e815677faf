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

TEST(ApiKeys, TheHeaderOfAnthropicsClientsCarriesAKeyToo) {
  const ApiKeys keys({"one"}, "root");
  const auto verdict = [&](const Headers& headers, Access access = Access::kApiKey) {
    Request request;
    request.headers = headers;
    return Verdict(keys, request, access);
  };
  EXPECT_EQ(verdict({{"x-api-key", "one"}}), "ok");
  EXPECT_EQ(verdict({{"x-api-key", "root"}}, Access::kAdminKey), "ok");
  EXPECT_EQ(verdict({{"authorization", "Bearer one"}, {"x-api-key", "two"}}), "ok");
  EXPECT_EQ(verdict({{"authorization", "Basic b25l"}, {"x-api-key", "one"}}), "ok");
  EXPECT_EQ(verdict({{"authorization", "Bearer two"}, {"x-api-key", "one"}}), "invalid_api_key");
  EXPECT_EQ(verdict({{"x-api-key", "one"}, {"x-api-key", "one"}}), "invalid_api_key");
  for (const char* bad : {"", "two", "Bearer one", "one ", " one"}) {
    EXPECT_EQ(verdict({{"x-api-key", bad}}), "invalid_api_key") << bad;
  }
  Request request;
  request.headers = {{"x-api-key", "one"}};
  EXPECT_EQ(keys.ClientOf(request), keys.ClientOf(With("Bearer one")));
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

TEST(ApiKeys, TheScopesOfAClientEndWithItsKey) {
  ApiKeys keys({"a"}, "root");
  const uint64_t a = DigestOfKey("a")[0], b = DigestOfKey("b")[0];
  keys.SetManagedKeys({{DigestOfKey("b"), {Scope::kInfer, Scope::kAdmin}, std::nullopt}}, true);

  EXPECT_EQ(keys.ScopesOfClient(a), (Scopes{Scope::kInfer, Scope::kTrain}));
  EXPECT_EQ(keys.ScopesOfClient(b), (Scopes{Scope::kInfer, Scope::kAdmin}));
  EXPECT_TRUE(keys.ScopesOfClient(0).empty());
  EXPECT_TRUE(keys.ScopesOfClient(DigestOfKey("root")[0]).empty());

  keys.SetManagedKeys({{DigestOfKey("b"), {Scope::kInfer}, 1}}, true);
  keys.SetApiKeys({});
  EXPECT_TRUE(keys.ScopesOfClient(a).empty()) << "removed";
  EXPECT_TRUE(keys.ScopesOfClient(b).empty()) << "expired";
}

TEST(ApiKeys, AManagedKeyOpensTheRoutesOfItsScopesAndNoOthers) {
  struct Row {
    Scopes scopes;
    const char* infer;
    const char* train;
    const char* admin;
  };
  constexpr const char* kNo = "insufficient_permissions";
  const Row rows[] = {{{Scope::kInfer}, "ok", kNo, kNo},
                      {{Scope::kTrain}, kNo, "ok", kNo},
                      {{Scope::kAdmin}, kNo, kNo, "ok"},
                      {{Scope::kInfer, Scope::kTrain}, "ok", "ok", kNo}};
  for (const Row& row : rows) {
    ApiKeys keys({"flag"}, "root");
    keys.SetManagedKeys({{DigestOfKey("managed"), row.scopes, {}}}, true);
    const Request request = With("Bearer managed");
    EXPECT_EQ(Verdict(keys, request, Access::kApiKey), row.infer);
    EXPECT_EQ(Verdict(keys, request, Access::kTrainKey), row.train);
    EXPECT_EQ(Verdict(keys, request, Access::kAdminKey), row.admin);
    EXPECT_EQ(Verdict(keys, With("Bearer flag"), Access::kApiKey), "ok");
    EXPECT_EQ(Verdict(keys, With("Bearer flag"), Access::kTrainKey), "ok");
    EXPECT_EQ(Verdict(keys, With("Bearer root"), Access::kTrainKey), "ok");
    EXPECT_NE(keys.ClientOf(request), 0u);
    EXPECT_NE(keys.ClientOf(request), keys.ClientOf(With("Bearer flag")));
  }
}

TEST(ApiKeys, AnAdministratorsManagedKeyNeedsAServerWithAdministration) {
  ApiKeys keys({}, std::nullopt);
  keys.SetManagedKeys({{DigestOfKey("managed"), {Scope::kAdmin}, {}}}, true);
  EXPECT_EQ(Verdict(keys, With("Bearer managed"), Access::kAdminKey), "admin_disabled");

  keys.EnableAdmin();
  EXPECT_EQ(Verdict(keys, With("Bearer managed"), Access::kAdminKey), "ok");
  EXPECT_EQ(Verdict(keys, Request(), Access::kAdminKey), "invalid_api_key");
  EXPECT_TRUE(keys.HasAdminScope(With("Bearer managed")));
  EXPECT_FALSE(keys.IsAdmin(With("Bearer managed")));
}

TEST(ApiKeys, ExpiredRevokedAndWrongKeysGetTheSameAnswer) {
  ApiKeys keys({}, std::nullopt);
  keys.SetManagedKeys({{DigestOfKey("good"), {Scope::kInfer}, int64_t{1} << 40},
                       {DigestOfKey("expired"), {Scope::kInfer}, 1},
                       {DigestOfKey("revoked"), {Scope::kInfer}, {}}},
                      true);
  EXPECT_EQ(Verdict(keys, With("Bearer revoked"), Access::kApiKey), "ok");
  keys.SetManagedKeys({{DigestOfKey("good"), {Scope::kInfer}, int64_t{1} << 40},
                       {DigestOfKey("expired"), {Scope::kInfer}, 1}},
                      true);

  EXPECT_EQ(Verdict(keys, With("Bearer good"), Access::kApiKey), "ok");
  const std::string wrong = keys.Check(With("Bearer wrong"), Access::kApiKey)->what();
  for (const char* key : {"expired", "revoked"}) {
    const Request request = With("Bearer " + std::string(key));
    EXPECT_EQ(keys.Check(request, Access::kApiKey)->what(), wrong);
    EXPECT_EQ(keys.Check(request, Access::kApiKey)->reason(), "invalid_api_key");
    EXPECT_EQ(keys.ClientOf(request), 0u);
    EXPECT_FALSE(keys.HasAnyKey(request));
  }
}

TEST(ApiKeys, RevokingTheLastManagedKeyDoesNotOpenTheServer) {
  ApiKeys keys({}, std::nullopt);
  keys.SetManagedKeys({}, false);
  EXPECT_EQ(Verdict(keys, Request(), Access::kApiKey), "ok");
  keys.SetManagedKeys({{DigestOfKey("only"), {Scope::kInfer}, {}}}, true);
  keys.SetManagedKeys({}, false);
  EXPECT_EQ(Verdict(keys, Request(), Access::kApiKey), "invalid_api_key");
  EXPECT_EQ(Verdict(keys, Request(), Access::kTrainKey), "invalid_api_key");
}

}  // namespace
}  // namespace tandem::server
