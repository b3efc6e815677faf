#include "server/responses/response_store.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/attempt.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kNow = 1'800'000'000;
constexpr int64_t kDay = 24 * 3600;

StoredResponse Record(const std::string& id, std::optional<int64_t> owner = {}) {
  StoredResponse record;
  record.id = id;
  record.owner = owner;
  record.created_at = kNow;
  record.body = R"({"id":")" + id + R"(","status":"completed"})";
  record.input = "[]";
  record.events = "one\ntwo\n";
  return record;
}

// With `true` the store is on disk.
class ResponseStoreTest : public testing::TestWithParam<bool> {
 protected:
  ResponseStore::Options Options(int64_t max_responses = 100) {
    ResponseStore::Options options;
    if (GetParam()) options.data_dir = dir_.path();
    options.max_responses = max_responses;
    options.now = [this] { return now_; };
    return options;
  }
  tests::TemporaryDir dir_;
  int64_t now_ = kNow;
};

TEST_P(ResponseStoreTest, FindsWhatWasPut) {
  ResponseStore store(Options());
  store.Put(Record("resp_1"));

  const auto found = store.Find("resp_1", std::nullopt, true);

  ASSERT_TRUE(found);
  EXPECT_EQ(found->body, Record("resp_1").body);
  EXPECT_EQ(found->events, "one\ntwo\n");
  EXPECT_FALSE(store.Find("resp_2", std::nullopt));
}

TEST_P(ResponseStoreTest, OtherKeysNeitherFindNorDelete) {
  ResponseStore store(Options());
  store.Put(Record("resp_1", 7));

  EXPECT_FALSE(store.Find("resp_1", 8));
  EXPECT_FALSE(store.Delete("resp_1", 8));
  EXPECT_TRUE(store.Find("resp_1", 7));
  EXPECT_TRUE(store.Find("resp_1", std::nullopt));
}

TEST_P(ResponseStoreTest, ADeletedResponseIsUnknown) {
  ResponseStore store(Options());
  store.Put(Record("resp_1"));

  EXPECT_TRUE(store.Delete("resp_1", std::nullopt));

  EXPECT_FALSE(store.Find("resp_1", std::nullopt));
  EXPECT_FALSE(store.Delete("resp_1", std::nullopt));
}

TEST_P(ResponseStoreTest, PutReplacesTheBody) {
  ResponseStore store(Options());
  store.Put(Record("resp_1"));
  StoredResponse newer = Record("resp_1");
  newer.body = "{}";

  store.Put(newer);

  EXPECT_EQ(store.Find("resp_1", std::nullopt)->body, "{}");
}

TEST_P(ResponseStoreTest, TheOldestGoBeyondTheLimit) {
  ResponseStore store(Options(2));

  for (const char* id : {"resp_1", "resp_2", "resp_3"}) store.Put(Record(id));

  EXPECT_FALSE(store.Find("resp_1", std::nullopt));
  EXPECT_TRUE(store.Find("resp_2", std::nullopt));
  EXPECT_TRUE(store.Find("resp_3", std::nullopt));
}

TEST_P(ResponseStoreTest, AResponseExpiresAfterThirtyDays) {
  ResponseStore store(Options());
  store.Put(Record("resp_1"));

  now_ = kNow + 30 * kDay;
  EXPECT_TRUE(store.Find("resp_1", std::nullopt));
  now_ = kNow + 30 * kDay + 1;
  EXPECT_FALSE(store.Find("resp_1", std::nullopt));
}

TEST_P(ResponseStoreTest, StopRunsThePostedTasks) {
  ResponseStore store(Options());
  bool has_run = false;
  store.Post([&] { has_run = true; });

  store.Stop();

  EXPECT_TRUE(has_run);
  EXPECT_FALSE(store.Post([] {}));
}

TEST_P(ResponseStoreTest, TheBytesAreBounded) {
  ResponseStore::Options options = Options();
  options.max_memory_bytes = 1000;
  options.max_bytes = 1000;
  ResponseStore store(options);
  StoredResponse large = Record("resp_1");
  large.input = std::string(600, ' ');
  store.Put(large);
  large.id = "resp_2";

  store.Put(large);

  EXPECT_FALSE(store.Find("resp_1", std::nullopt));
  EXPECT_TRUE(store.Find("resp_2", std::nullopt));
}

INSTANTIATE_TEST_SUITE_P(MemoryAndDisk, ResponseStoreTest, testing::Bool());

TEST(ResponseStoreOnDisk, ARestartKeepsResponsesAndFailsUnfinishedOnes) {
  const tests::TemporaryDir dir;
  const ResponseStore::Options options{.data_dir = dir.path(), .now = [] { return kNow; }};
  {
    ResponseStore store(options);
    store.Put(Record("resp_done"));
    StoredResponse running = Record("resp_running");
    running.is_finished = false;
    store.Put(running);
  }

  ResponseStore store(options);

  EXPECT_EQ(store.Find("resp_done", std::nullopt)->body, Record("resp_done").body);
  const auto failed = store.Find("resp_running", std::nullopt);
  ASSERT_TRUE(failed);
  EXPECT_TRUE(failed->is_finished);
  EXPECT_EQ(Json::parse(failed->body)["status"], "failed");
  EXPECT_EQ(Json::parse(failed->body)["error"]["code"], "server_error");
}

TEST(ResponseStoreOnDisk, AFullDiskIsInsufficientStorageAndKeepsWhatWasThere) {
  const tests::TemporaryDir dir;
  ResponseStore store({.data_dir = dir.path(), .now = [] { return kNow; }});
  store.Put(Record("resp_1"));
  StoredResponse large = Record("resp_2");
  large.input = std::string(1 << 20, ' ');
  std::optional<Error> error;
  {
    const tests::FullDisk full;
    error = ErrorOf([&] { store.Put(large); });
  }

  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), "insufficient_storage");
  EXPECT_TRUE(store.Find("resp_1", std::nullopt));
  EXPECT_FALSE(store.Find("resp_2", std::nullopt));
  store.Put(large);
  EXPECT_TRUE(store.Find("resp_2", std::nullopt));
}

TEST(ResponseStoreOnDisk, TheLimitKeepsUnfinishedResponses) {
  const tests::TemporaryDir dir;
  ResponseStore store({.data_dir = dir.path(), .max_responses = 1, .now = [] { return kNow; }});
  StoredResponse running = Record("resp_running");
  running.is_finished = false;
  store.Put(running);

  store.Put(Record("resp_1"));
  store.Put(Record("resp_2"));

  EXPECT_TRUE(store.Find("resp_running", std::nullopt));
  EXPECT_FALSE(store.Find("resp_1", std::nullopt));
}

}  // namespace
}  // namespace tandem::server
