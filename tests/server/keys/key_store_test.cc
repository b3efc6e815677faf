#include "server/keys/key_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/keys/managed_keys.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

std::string WholeFile(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <class Action>
Error KeyError(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

TEST(KeyStore, TheFilesHoldNoKeyAndOnlyTheirOwnerMayReadThem) {
  const tests::TemporaryDir dir;
  const fs::path file = dir.path() / "new" / "keys.db";
  KeyStore store(file);
  const CreatedKey created = store.Create({"alice", {Scope::kInfer}, {}});

  EXPECT_EQ(created.key.size(), 67u);
  EXPECT_EQ(fs::status(file.parent_path()).permissions(), fs::perms(0700));
  int n_files = 0;
  for (const auto& entry : fs::directory_iterator(file.parent_path())) {
    EXPECT_EQ(entry.status().permissions(), fs::perms(0600)) << entry.path();
    EXPECT_EQ(WholeFile(entry.path()).find(created.key.substr(3)), std::string::npos);
    ++n_files;
  }
  EXPECT_GE(n_files, 2);
}

TEST(KeyStore, AKeyIsTheSameForTheNextProcess) {
  const tests::TemporaryDir dir;
  CreatedKey created;
  {
    KeyStore store(dir / "keys.db");
    created = store.Create({"ci", {Scope::kTrain, Scope::kAdmin}, 3600});
  }
  KeyStore store(dir / "keys.db");
  const std::vector<KeyRecord> keys = store.List();

  ASSERT_EQ(keys.size(), 1u);
  EXPECT_EQ(keys[0].id, created.record.id);
  EXPECT_EQ(keys[0].name, "ci");
  EXPECT_EQ(ScopesText(keys[0].scopes), "train,admin");
  EXPECT_EQ(keys[0].digest, DigestOfKey(created.key));
  EXPECT_EQ(keys[0].expires_at, keys[0].created_at + 3600);
  EXPECT_FALSE(keys[0].revoked_at);
}

TEST(KeyStore, ANameThatCouldBreakATableOrALabelIsRefused) {
  const tests::TemporaryDir dir;
  KeyStore store(dir / "keys.db");
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a\nb"), std::string("a\"b"),
        std::string("a\0b", 3), std::string("\x1b[31m"), std::string("\xC3\xA4"),
        std::string("a,b"), std::string("a{}"), std::string("../a"), std::string(65, 'a')}) {
    const Error error = KeyError([&] { store.Create({name, {Scope::kInfer}, {}}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    EXPECT_EQ(error.param(), "name");
  }
  EXPECT_TRUE(store.List().empty());
  store.Create({std::string(64, 'a'), {Scope::kInfer}, {}});
  store.Create({"team-a.ci_2@example", {Scope::kInfer}, {}});
}

TEST(KeyStore, AKeyNeedsAScopeAndAPossibleLifetime) {
  const tests::TemporaryDir dir;
  KeyStore store(dir / "keys.db");
  EXPECT_EQ(KeyError([&] { store.Create({"a", {}, {}}); }).param(), "scopes");
  for (const int64_t seconds : {int64_t{0}, int64_t{-1}, kMaxKeyLifetimeS + 1, INT64_MAX}) {
    EXPECT_EQ(KeyError([&] {
                store.Create({"a", {Scope::kInfer}, seconds});
              }).param(),
              "expires_after_s");
  }
  EXPECT_TRUE(store.List().empty());
}

TEST(KeyStore, ANameIsFreeAgainOnceItsKeyIsRevoked) {
  const tests::TemporaryDir dir;
  KeyStore store(dir / "keys.db");
  const CreatedKey first = store.Create({"a", {Scope::kInfer}, {}});
  EXPECT_EQ(KeyError([&] {
              store.Create({"a", {Scope::kInfer}, {}});
            }).code(),
            ErrorCode::kAlreadyExists);

  EXPECT_EQ(store.Revoke("a").id, first.record.id);
  const CreatedKey second = store.Create({"a", {Scope::kTrain}, {}});

  EXPECT_EQ(KeyError([&] { store.Revoke("b"); }).reason(), "key_not_found");
  EXPECT_TRUE(store.Revoke(first.record.id).revoked_at);  // again
  const std::vector<KeyRecord> keys = store.List();
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_TRUE(keys[0].revoked_at);
  EXPECT_FALSE(keys[1].revoked_at);
  EXPECT_NE(first.key, second.key);
}

TEST(KeyStore, LastUseIsKeptByTheHour) {
  const tests::TemporaryDir dir;
  KeyStore store(dir / "keys.db");
  const KeyRecord key = store.Create({"a", {Scope::kInfer}, {}}).record;
  store.NoteUse(key, 7201);
  EXPECT_EQ(store.List()[0].last_used_at, 7200);
  store.NoteUse(store.List()[0], 3700);  // an older server's clock
  EXPECT_EQ(store.List()[0].last_used_at, 7200);
}

TEST(KeyStore, AFullDiskRefusesANewKeyAndLeavesNone) {
  const tests::TemporaryDir dir;
  KeyStore store(dir / "keys.db");
  store.Create({"a", {Scope::kInfer}, {}});
  {
    const tests::FullDisk full;
    const Error error = KeyError([&] { store.Create({"b", {Scope::kInfer}, {}}); });
    EXPECT_EQ(error.reason(), "insufficient_storage") << error.what();
  }
  EXPECT_EQ(store.List().size(), 1u);
  store.Create({"b", {Scope::kInfer}, {}});
  EXPECT_EQ(KeyStore(dir / "keys.db").List().size(), 2u);
}

TEST(KeyStore, ADatabaseOfJobsIsRefused) {
  const tests::TemporaryDir dir;
  { const Database jobs(dir / "tandem.db"); }
  EXPECT_EQ(KeyError([&] { KeyStore store(dir / "tandem.db"); }).code(), ErrorCode::kDataLoss);
}

class ManagedKeysTest : public testing::Test {
 protected:
  void Start(bool must_exist = false) {
    managed_ = std::make_unique<ManagedKeys>(
        ManagedKeys::Options{.file = file_, .must_exist = must_exist, .interval = kNever}, keys_,
        usage_);
  }
  bool Opens(const std::string& key, Access access = Access::kApiKey) const {
    Request request;
    if (!key.empty()) request.headers.emplace_back("authorization", "Bearer " + key);
    return !keys_.Check(request, access);
  }

  // The tests refresh by hand.
  static constexpr std::chrono::hours kNever{1000};
  const tests::TemporaryDir dir_;
  const fs::path file_ = dir_ / "keys.db";
  ApiKeys keys_{{}, std::nullopt};
  KeyUsage usage_;
  std::unique_ptr<ManagedKeys> managed_;
};

TEST_F(ManagedKeysTest, TheServerNeedsKeysAsSoonAsAnotherProcessHasMadeTheFirst) {
  Start();
  EXPECT_TRUE(Opens(""));
  EXPECT_FALSE(fs::exists(file_));

  KeyStore other(file_);
  managed_->Refresh();
  EXPECT_TRUE(Opens(""));  // no key yet
  const std::string key = other.Create({"a", {Scope::kInfer}, {}}).key;
  managed_->Refresh();

  EXPECT_FALSE(Opens(""));
  EXPECT_TRUE(Opens(key));
  EXPECT_FALSE(Opens(key, Access::kTrainKey));
}

TEST_F(ManagedKeysTest, ARevokedKeyIsRefusedAndTheServerStaysClosed) {
  KeyStore other(file_);
  const std::string key = other.Create({"a", {Scope::kInfer}, {}}).key;
  Start();
  ASSERT_TRUE(Opens(key));

  other.Revoke("a");
  managed_->Refresh();

  EXPECT_FALSE(Opens(key));
  EXPECT_FALSE(Opens(""));
}

TEST_F(ManagedKeysTest, ChangesThroughTheServerApplyAtOnce) {
  Start(true);
  const CreatedKey created = managed_->Create({"a", {Scope::kTrain}, {}});
  EXPECT_TRUE(Opens(created.key, Access::kTrainKey));
  EXPECT_EQ(managed_->List().size(), 1u);

  managed_->Revoke(created.record.id);
  EXPECT_FALSE(Opens(created.key, Access::kTrainKey));
}

TEST_F(ManagedKeysTest, AVanishedFileKeepsTheKnownKeysAndARestoredOneReplacesThem) {
  KeyStore(file_).Create({"old", {Scope::kInfer}, {}});
  fs::copy(file_, dir_ / "backup.db");
  const std::string late = KeyStore(file_).Create({"late", {Scope::kInfer}, {}}).key;
  Start();
  ASSERT_TRUE(Opens(late));

  for (const char* suffix : {"", "-wal", "-shm"}) fs::remove(file_.string() + suffix);
  EXPECT_THROW(managed_->Refresh(), Error);
  EXPECT_TRUE(Opens(late));
  EXPECT_FALSE(Opens(""));

  fs::rename(dir_ / "backup.db", file_);
  managed_->Refresh();
  EXPECT_FALSE(Opens(late));
  EXPECT_EQ(managed_->List().size(), 1u);
}

TEST_F(ManagedKeysTest, ADamagedFileStopsTheStart) {
  std::ofstream(file_) << "this is not a database, and never was one of any kind";
  EXPECT_THROW(Start(), Error);
}

}  // namespace
}  // namespace tandem::server
