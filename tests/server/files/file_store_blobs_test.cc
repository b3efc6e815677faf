#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "server/database/database.h"
#include "server/files/file_store.h"
#include "tests/server/blobs/object_server.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using tests::HubReply;
using tests::HubRequest;
using tests::Reply;

// Replicas with a data directory each. They share one SQLite file by a link.
class FileStoreBlobsTest : public testing::Test {
 protected:
  FileStore& Open(const std::string& name) {
    const fs::path data = dir_ / name;
    fs::create_directories(data);
    if (name != "a" && !fs::exists(data / "tandem.db")) {
      fs::create_symlink(dir_ / "a" / "tandem.db", data / "tandem.db");
    }
    stores_[name].reset();
    stores_[name] = std::make_unique<FileStore>(
        FileStore::Options{.data_dir = data,
                           .blobs = server_.Blobs(),
                           .replica = name,
                           .cache_bytes = 100,
                           .now = [this] { return now_; },
                           .is_in_use = [this](const std::string& id) { return id == in_use_; }});
    return *stores_[name];
  }
  static StoredFile Add(FileStore& store, const std::string& text,
                        std::optional<int64_t> expires_after_s = {}) {
    TemporaryFile file = store.BeginFile();
    file.Write(text);
    return store.Add(std::move(file), {"x.jsonl", "fine-tune", expires_after_s});
  }
  static std::string Text(FileStore& store, const std::string& id) {
    return engine::ReadWholeFile(store.Local(id).path, size_t{1} << 20);
  }
  int64_t Garbage() {
    Database database(dir_ / "a" / "tandem.db");
    Query query = database.Prepare("SELECT COUNT(*) FROM blob_garbage");
    return query.Next() ? query.Int() : -1;
  }
  void Refuse(const std::string& method, const std::string& part) {
    server_.SetFault([=](const HubRequest& request) {
      return request.method == method && request.target.find(part) != std::string::npos
                 ? HubReply{Reply(403, "", "")}
                 : HubReply{};
    });
  }

  tests::TemporaryDir dir_;
  tests::ObjectServer server_;
  int64_t now_ = 1000;
  std::string in_use_;
  std::map<std::string, std::unique_ptr<FileStore>> stores_;
};

TEST_F(FileStoreBlobsTest, AnUploadOfOneIsReadAndDeletedByAnother) {
  FileStore& a = Open("a");
  FileStore& b = Open("b");
  const StoredFile file = Add(a, "hello");
  EXPECT_EQ(server_.Keys(), std::vector<std::string>{"pre/" + file.blob});
  EXPECT_EQ(b.Find(file.id)->sha256, file.sha256);
  EXPECT_EQ(Text(b, file.id), "hello");
  EXPECT_EQ(Text(b, file.id), "hello");
  EXPECT_EQ(server_.Count("GET", file.id), 1u);  // then from the cache
  EXPECT_EQ(Garbage(), 0);

  b.Delete(file.id);
  EXPECT_TRUE(server_.Keys().empty());
  EXPECT_FALSE(a.Find(file.id));
  EXPECT_TRUE(ErrorOf({ErrorCode::kNotFound}, [&] { a.Open(file.id); }));
  EXPECT_EQ(Garbage(), 0);
}

TEST_F(FileStoreBlobsTest, AFailedUploadIsNoFileAndLeavesNothing) {
  FileStore& a = Open("a");
  Refuse("PUT", "files/");
  const auto error = ErrorOf([&] { Add(a, "hello"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), kBlobStoreUnavailableReason);
  EXPECT_TRUE(a.List({}).files.empty());
  EXPECT_TRUE(fs::is_empty(dir_ / "a" / "blobs"));
  server_.SetFault({});
  a.CollectGarbage();
  EXPECT_EQ(Garbage(), 0);
  EXPECT_EQ(Text(a, Add(a, "again").id), "again");
}

TEST_F(FileStoreBlobsTest, TheUploadOfAKilledReplicaIsCollectedByAnother) {
  Open("a");
  // As left between the upload and the row, and during the upload.
  {
    Database database(dir_ / "a" / "tandem.db");
    Query query = database.Prepare(
        "INSERT INTO blob_garbage (name, replica) VALUES ('files/x', 'dead'), ('files/y', 'dead')");
    query.Next();
  }
  server_.Set("pre/files/x", "bytes");
  server_.BeginUpload("pre/files/y");
  const StoredFile kept = Add(*stores_["a"], "kept");
  Open("b").CollectGarbage();
  EXPECT_EQ(server_.Keys(), std::vector<std::string>{"pre/" + kept.blob});
  EXPECT_EQ(server_.n_uploads(), 0u);
  EXPECT_EQ(Garbage(), 0);
}

TEST_F(FileStoreBlobsTest, AnUploadWhoseReplicaWasTakenForGoneIsRefused) {
  FileStore& a = Open("a");
  FileStore& b = Open("b");
  server_.SetFault([&](const HubRequest& request) {
    // During the upload, another replica claims it: this one has no lease.
    if (request.method == "PUT") {
      Database database(dir_ / "a" / "tandem.db");
      Query query = database.Prepare("UPDATE blob_garbage SET replica = NULL");
      query.Next();
    }
    return HubReply{};
  });
  const auto error = ErrorOf([&] { Add(a, "hello"); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), kBlobStoreUnavailableReason);
  EXPECT_TRUE(a.List({}).files.empty());
  server_.SetFault({});
  b.CollectGarbage();
  EXPECT_TRUE(server_.Keys().empty());
}

TEST_F(FileStoreBlobsTest, ADeletionCountsAtOnceAndItsObjectGoesWhenTheStoreIsBack) {
  FileStore& a = Open("a");
  const StoredFile file = Add(a, "hello");
  Refuse("DELETE", "files/");
  a.Delete(file.id);
  EXPECT_FALSE(a.Find(file.id));
  EXPECT_EQ(Garbage(), 1);
  server_.SetFault({});
  Open("b").CollectGarbage();
  EXPECT_TRUE(server_.Keys().empty());
  EXPECT_EQ(Garbage(), 0);
}

TEST_F(FileStoreBlobsTest, AnExpiredFileIsCollected) {
  FileStore& a = Open("a");
  Add(a, "hello", 3600);
  now_ = 5000;
  EXPECT_TRUE(a.List({}).files.empty());
  a.CollectGarbage();
  EXPECT_TRUE(server_.Keys().empty());
}

TEST_F(FileStoreBlobsTest, WorkReadsAFileThatHasExpiredMeanwhile) {
  FileStore& a = Open("a");
  FileStore& b = Open("b");
  in_use_ = Add(a, "hello", 3600).id;
  now_ = 5000;
  EXPECT_FALSE(b.Find(in_use_));
  EXPECT_TRUE(ErrorOf({ErrorCode::kNotFound}, [&] { b.Open(in_use_); }));
  EXPECT_EQ(Text(b, in_use_), "hello");
}

TEST_F(FileStoreBlobsTest, AStoreThatIsAwayCostsOnlyWhatIsNotHere) {
  FileStore& a = Open("a");
  FileStore& b = Open("b");
  const StoredFile file = Add(a, "hello");
  server_.SetFault([](const HubRequest&) { return HubReply{Reply(500, "", "")}; });
  EXPECT_EQ(Text(a, file.id), "hello");
  const auto error = ErrorOf([&] { b.Local(file.id); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), kBlobStoreUnavailableReason);
  server_.SetFault({});
  EXPECT_EQ(Text(b, file.id), "hello");
}

TEST_F(FileStoreBlobsTest, TheCacheKeepsWhatWorkReadsAndNoMoreThanItsBound) {
  FileStore& a = Open("a");
  in_use_ = Add(a, std::string(60, 'u')).id;
  const StoredFile second = Add(a, std::string(60, 's'));
  const StoredFile third = Add(a, std::string(60, 't'));
  const auto is_here = [&](const std::string& id) { return fs::exists(a.PathOf(id)); };
  EXPECT_TRUE(is_here(in_use_) && is_here(third.id));
  EXPECT_FALSE(is_here(second.id));
  EXPECT_EQ(Text(a, second.id), std::string(60, 's'));
}

TEST_F(FileStoreBlobsTest, AStartForgetsCopiesOfFilesThatOthersHaveDeleted) {
  FileStore& a = Open("a");
  FileStore& b = Open("b");
  const StoredFile file = Add(a, "hello");
  b.Delete(file.id);
  Open("a");
  EXPECT_TRUE(fs::is_empty(dir_ / "a" / "blobs"));
}

}  // namespace
}  // namespace tandem::server
