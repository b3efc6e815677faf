#include "server/blobs/object_blobs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/base/attempt.h"
#include "engine/base/disk_full.h"
#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "tests/server/blobs/object_server.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using tests::HubReply;
using tests::HubRequest;
using tests::Reply;

class ObjectBlobsTest : public testing::Test {
 protected:
  fs::path Write(const std::string& name, const std::string& text) const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return dir_ / name;
  }
  static std::string Text(const fs::path& path) {
    return engine::ReadWholeFile(path, size_t{1} << 20);
  }
  template <class Action>
  static Error Refusal(const Action& action) {
    const auto error = ErrorOf(action);
    if (!error) ADD_FAILURE() << "it was not refused";
    return error.value_or(Error(ErrorCode::kInternal, ""));
  }
  static bool Says(const Error& error, const std::string& text) {
    return std::string(error.what()).find(text) != std::string::npos;
  }

  tests::TemporaryDir dir_;
  tests::ObjectServer server_;
  std::shared_ptr<BlobStore> blobs_ = server_.Blobs();
};

TEST_F(ObjectBlobsTest, ABlobOfSeveralPartsIsFetchedWithItsHash) {
  std::string text(4500, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i % 23);
  const std::string hash = blobs_->Put("files/one", Write("one", text));
  EXPECT_EQ(server_.At("pre/files/one"), text);
  EXPECT_EQ(server_.n_uploads(), 0u);
  EXPECT_EQ(blobs_->UrlOf("files/one"), "s3://bucket/pre/files/one");

  blobs_->Fetch("files/one", {4500, hash}, dir_ / "back");
  EXPECT_EQ(Text(dir_ / "back"), text);
  blobs_->Remove("files/one");
  EXPECT_TRUE(server_.Keys().empty());
  blobs_->Remove("files/one");
}

TEST_F(ObjectBlobsTest, AnEmptyBlobIsABlob) {
  const std::string hash = blobs_->Put("files/none", Write("none", ""));
  blobs_->Fetch("files/none", {0, hash}, dir_ / "back");
  EXPECT_EQ(Text(dir_ / "back"), "");
}

TEST_F(ObjectBlobsTest, OtherBytesThanThoseOfTheUploadAreRefused) {
  const std::string hash = blobs_->Put("files/one", Write("one", "hello"));
  server_.Set("pre/files/one", "jello");
  Error error = Refusal([&] { blobs_->Fetch("files/one", {5, hash}, dir_ / "back"); });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_TRUE(Says(error, "s3://bucket/pre/files/one has the SHA-256")) << error.what();
  EXPECT_FALSE(fs::exists(dir_ / "back"));

  server_.Set("pre/files/one", "hello!");
  error = Refusal([&] { blobs_->Fetch("files/one", {5, hash}, dir_ / "back"); });
  EXPECT_TRUE(Says(error, "has 6 bytes, not 5")) << error.what();

  server_.Erase("pre/files/one");
  error = Refusal([&] { blobs_->Fetch("files/one", {5, hash}, dir_ / "back"); });
  EXPECT_TRUE(Says(error, "does not exist: restore the object")) << error.what();
}

// A client must not take a refusal of the store for a refusal of its own key.
TEST_F(ObjectBlobsTest, RefusalsAndOutagesNameTheUrlAndAreUnavailable) {
  for (const int status : {403, 500, 503}) {
    server_.SetFault([&](const HubRequest& request) {
      return request.method == "PUT"
                 ? HubReply{Reply(status, "", "<Error><Code>Denied</Code></Error>")}
                 : HubReply{};
    });
    const Error error = Refusal([&] { blobs_->Put("files/one", Write("one", "hello")); });
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << status;
    EXPECT_EQ(error.reason(), kBlobStoreUnavailableReason) << status;
    EXPECT_TRUE(Says(error, "PUT s3://bucket/pre/files/one: status " + std::to_string(status)))
        << error.what();
    EXPECT_FALSE(Says(error, "SECRET")) << error.what();
  }
  EXPECT_TRUE(server_.Keys().empty());

  const auto closed = [] {  // a port that nobody listens on
    const tests::HubServer server([](const HubRequest&) { return HubReply{}; });
    return server.url();
  }();
  engine::ObjectOptions options;
  options.http.endpoint = closed;
  options.http.max_attempts = 1;
  ObjectBlobs away({engine::StoreKind::kS3, "bucket", ""}, options);
  const Error error = Refusal([&] { away.Put("files/one", dir_ / "one"); });
  EXPECT_EQ(error.reason(), kBlobStoreUnavailableReason);
}

TEST_F(ObjectBlobsTest, AnUploadThatBreaksOffLeavesNoObjectAndNoParts) {
  server_.SetFault([](const HubRequest& request) {
    return request.target.find("partNumber=3") == std::string::npos ? HubReply{}
                                                                    : HubReply{Reply(403, "", "")};
  });
  Refusal([&] { blobs_->Put("files/one", Write("one", std::string(4500, 'x'))); });
  EXPECT_TRUE(server_.Keys().empty());
  EXPECT_EQ(server_.n_uploads(), 0u);
}

TEST_F(ObjectBlobsTest, RemovalEndsTheUploadOfAKilledProcess) {
  server_.BeginUpload("pre/files/one");
  blobs_->Remove("files/one");
  EXPECT_EQ(server_.n_uploads(), 0u);
}

TEST_F(ObjectBlobsTest, ATransientFaultIsRepeated) {
  int n = 0;
  server_.SetFault(
      [&](const HubRequest&) { return ++n % 2 == 1 ? HubReply{Reply(503, "", "")} : HubReply{}; });
  const std::string hash = blobs_->Put("files/one", Write("one", "hello"));
  blobs_->Fetch("files/one", {5, hash}, dir_ / "back");
  EXPECT_EQ(Text(dir_ / "back"), "hello");
}

TEST_F(ObjectBlobsTest, AFullDiskOfTheCacheIsToldAsSuch) {
  const std::string hash = blobs_->Put("files/one", Write("one", "hello"));
  const Error error = [&] {
    const tests::FullDisk full;
    return Refusal([&] { blobs_->Fetch("files/one", {5, hash}, dir_ / "back"); });
  }();
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_EQ(error.reason(), kDiskFullReason);
  EXPECT_TRUE(Says(error, "fetch of s3://bucket/pre/files/one")) << error.what();
  EXPECT_TRUE(Says(error, "lower --blob-cache")) << error.what();
  blobs_->Fetch("files/one", {5, hash}, dir_ / "back");
}

TEST_F(ObjectBlobsTest, ATreeIsFetchedOnceAndByItsHashes) {
  Write("tree/a.bin", "first");
  Write("tree/sub/b.bin", std::string(2500, 'b'));
  blobs_->PutTree("jobs/j/adapter", dir_ / "tree");
  blobs_->FetchTree("jobs/j/adapter", dir_ / "back");
  EXPECT_EQ(Text(dir_ / "back/a.bin"), "first");
  EXPECT_EQ(Text(dir_ / "back/sub/b.bin").size(), 2500u);

  // It is there, so nothing is asked.
  server_.SetFault([](const HubRequest&) { return HubReply{Reply(403, "", "")}; });
  blobs_->FetchTree("jobs/j/adapter", dir_ / "back");
  server_.SetFault({});

  server_.Set("pre/jobs/j/adapter/a.bin", "fir5t");
  const Error error = Refusal([&] { blobs_->FetchTree("jobs/j/adapter", dir_ / "again"); });
  EXPECT_EQ(error.code(), ErrorCode::kDataLoss);
  EXPECT_TRUE(Says(error, "first in a.bin")) << error.what();
  EXPECT_FALSE(fs::exists(dir_ / "again"));
}

TEST_F(ObjectBlobsTest, AHalfUploadedTreeIsNoTree) {
  Write("tree/a.bin", "first");
  server_.SetFault([](const HubRequest& request) {
    return request.method == "PUT" && request.target.find("a.bin") != std::string::npos
               ? HubReply{Reply(403, "", "")}
               : HubReply{};
  });
  Refusal([&] { blobs_->PutTree("jobs/j/adapter", dir_ / "tree"); });
  server_.SetFault({});
  Refusal([&] { blobs_->FetchTree("jobs/j/adapter", dir_ / "back"); });
  EXPECT_FALSE(fs::exists(dir_ / "back"));
  // The same job publishes again.
  server_.BeginUpload("pre/jobs/j/adapter/a.bin");
  blobs_->PutTree("jobs/j/adapter", dir_ / "tree");
  blobs_->FetchTree("jobs/j/adapter", dir_ / "back");
  EXPECT_EQ(Text(dir_ / "back/a.bin"), "first");
  EXPECT_EQ(server_.n_uploads(), 0u);
}

TEST_F(ObjectBlobsTest, AllBelowANameIsRemovedAndNothingBesideIt) {
  for (const char* key :
       {"pre/jobs/j/c/1", "pre/jobs/j/c/2/x", "pre/jobs/j/cd", "pre/jobs/k/c/1"}) {
    server_.Set(key, "x");
  }
  blobs_->RemoveBelow("jobs/j/c");
  EXPECT_EQ(server_.Keys(), (std::vector<std::string>{"pre/jobs/j/cd", "pre/jobs/k/c/1"}));
}

TEST_F(ObjectBlobsTest, AStopEndsTransfers) {
  blobs_->Stop();
  const Error error = Refusal([&] { blobs_->Put("files/one", Write("one", "hello")); });
  EXPECT_EQ(error.code(), ErrorCode::kCancelled);
}

TEST(OpenBlobStore, AnythingButTheUrlOfABucketIsRefused) {
  for (const char* url : {"", "/srv/blobs", "http://bucket/x", "s3://", "s3:///x"}) {
    EXPECT_TRUE(ErrorOf({ErrorCode::kInvalidArgument}, [&] { OpenBlobStore(url); })) << url;
  }
}

}  // namespace
}  // namespace tandem::server
