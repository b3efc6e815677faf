#include "engine/objects/object_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/url.h"
#include "engine/objects/xml_reader.h"
#include "tests/engine/hub/hub_server.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

// A bucket in memory that lists, reads, writes and removes whole objects. It refuses requests after
// the first `n_allowed` removals.
class TreeBucket {
 public:
  HubReply Handle(const HubRequest& request) {
    const std::lock_guard lock(mutex_);
    const size_t mark = request.target.find('?');
    const std::string path = PercentDecode(request.target.substr(0, mark)).value_or("");
    const std::string key = path.substr(std::min(path.size(), std::string("/bucket/").size()));
    if (request.method == "GET" && key.empty()) return List(request.target.substr(mark + 1));
    if (request.method == "PUT") {
      objects[key] = request.body;
      return {Reply(200, "ETag: \"e\"\r\n", "")};
    }
    if (request.method == "DELETE") {
      if (n_allowed == 0) return {Reply(403, "", "")};
      --n_allowed;
      objects.erase(key);
      return {Reply(204, "", "")};
    }
    const auto found = objects.find(key);
    if (found == objects.end()) return {Reply(404, "", "")};
    return {Reply(200, "ETag: \"e\"\r\n", found->second)};
  }

  std::map<std::string, std::string> objects;
  int n_allowed = 1000;

 private:
  HubReply List(const std::string& query) const {
    const size_t begin = query.find("prefix=") + 7;
    const std::string prefix =
        PercentDecode(query.substr(begin, query.find('&', begin) - begin)).value_or("");
    std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [key, content] : objects) {
      if (!key.starts_with(prefix)) continue;
      body += "<Contents><Key>" + XmlEscaped(key) + "</Key><Size>" +
              std::to_string(content.size()) + "</Size><ETag>\"e\"</ETag></Contents>";
    }
    return {Reply(200, "", body + "</ListBucketResult>")};
  }

  std::mutex mutex_;
};

class ObjectTreeTest : public ::testing::Test {
 protected:
  ObjectTreeTest() {
    ObjectOptions options;
    options.http.endpoint = server_.url();
    options.http.connections = 1;
    options.http.max_attempts = 1;
    options.keys = {"ID", "SECRET", ""};
    store_ = std::make_unique<ObjectStore>(ObjectUrl{StoreKind::kS3, "bucket", ""}, options);
    client_ = std::make_unique<ObjectClient>(*store_);
  }

  void Write(const std::string& name, const std::string& text = "x") const {
    fs::create_directories((dir_ / name).parent_path());
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }
  void Publish(IfObjects if_objects = IfObjects::kRefuse) {
    PublishTree(*store_, dir_.path(), "t/", if_objects, [](uint64_t) {});
  }
  // The message of the refusal.
  template <class Action>
  static std::string Refusal(ErrorCode code, const Action& action) {
    const auto error = ErrorOf({code}, action);
    if (!error) ADD_FAILURE() << "it was not refused";
    return error ? error->what() : "";
  }
  std::string RefusalOfDirectory() const {
    return Refusal(ErrorCode::kUnsupported, [&] { FilesToPublish(dir_.path()); });
  }

  tests::TemporaryDir dir_;
  TreeBucket bucket_;
  HubServer server_{[this](const HubRequest& request) { return bucket_.Handle(request); }};
  std::unique_ptr<ObjectStore> store_;
  std::unique_ptr<ObjectClient> client_;
};

TEST_F(ObjectTreeTest, APublishedTreeIsListedAndCanBeRemoved) {
  Write("a.bin");
  Write("b/c.bin", "four");
  Publish();

  const ObjectTree tree = ListTree(*client_, "t/");
  ASSERT_EQ(tree.files.size(), 2u);
  EXPECT_EQ(tree.files[1].key, "t/b/c.bin");

  RemoveTree(*client_, "t/");
  EXPECT_TRUE(bucket_.objects.empty());
  RemoveTree(*client_, "t/");  // leaves no manifest behind
  EXPECT_TRUE(bucket_.objects.empty());
}

TEST_F(ObjectTreeTest, ATreeThatWasRemovedInPartIsNotCompleteAndCanBeRemovedAgain) {
  for (const char* name : {"a", "b", "z"}) Write(name);
  for (int n_removed = 0; n_removed <= 3; ++n_removed) {
    Publish();
    bucket_.n_allowed = n_removed;
    Refusal(ErrorCode::kPermissionDenied, [&] { RemoveTree(*client_, "t/"); });

    EXPECT_NE(Refusal(ErrorCode::kFailedPrecondition, [&] { ListTree(*client_, "t/"); })
                  .find("is being removed"),
              std::string::npos)
        << n_removed;

    bucket_.n_allowed = 1000;
    RemoveTree(*client_, "t/");
    EXPECT_TRUE(bucket_.objects.empty()) << n_removed;
  }
}

TEST_F(ObjectTreeTest, ATreeOfOtherToolsIsMarkedBeforeItsRemoval) {
  bucket_.objects = {{"t/a", "x"}, {"t/b", "x"}};
  bucket_.n_allowed = 1;
  Refusal(ErrorCode::kPermissionDenied, [&] { RemoveTree(*client_, "t/"); });

  Refusal(ErrorCode::kFailedPrecondition, [&] { ListTree(*client_, "t/"); });
  bucket_.n_allowed = 1000;
  Write("a");
  Publish();  // does not refuse the place
  EXPECT_EQ(ListTree(*client_, "t/").files.size(), 1u);
}

TEST_F(ObjectTreeTest, ManifestsThatLieAreRefused) {
  const auto refusal_of = [&](const std::string& text) {
    bucket_.objects = {{"t/a", "x"}, {std::string("t/") + kUploadManifest, text}};
    return Refusal(ErrorCode::kDataLoss, [&] { ListTree(*client_, "t/"); });
  };
  const auto with_files = [](const std::string& files) {
    return R"({"format":"tandem-upload","version":1,"state":"complete","files":)" + files + "}";
  };
  EXPECT_NE(refusal_of("[]").find("not the manifest"), std::string::npos);
  EXPECT_NE(refusal_of("{").find("at byte"), std::string::npos);
  EXPECT_NE(refusal_of(with_files("{}")).find("no list"), std::string::npos);
  EXPECT_NE(refusal_of(with_files("[1]")).find("not a file"), std::string::npos);
  EXPECT_NE(refusal_of(with_files(R"([{"name":"b","bytes":1}])")).find("does not exist"),
            std::string::npos);
  EXPECT_NE(refusal_of(with_files(R"([{"name":"a","bytes":2}])")).find("it has 1"),
            std::string::npos);
  // A parser that recurses, or keeps every value, would not survive these.
  refusal_of(with_files(std::string(1'000'000, '[')));
  std::string many = "[1";
  for (size_t i = 0; i < 4 * kMaxTreeFiles; ++i) many += ",1";
  EXPECT_NE(refusal_of(with_files(many + "]")).find("values"), std::string::npos);
}

TEST_F(ObjectTreeTest, FilesThatCannotBeUploadedAreNamedBeforeTheFirstRequest) {
  Write("real/a");
  fs::create_symlink(dir_ / "real/a", dir_ / "link-to-a");  // its content is uploaded
  EXPECT_EQ(FilesToPublish(dir_.path()).size(), 2u);

  fs::create_directory_symlink(dir_ / "real", dir_ / "linked");
  EXPECT_NE(RefusalOfDirectory().find("link to a directory"), std::string::npos);
  fs::remove(dir_ / "linked");

  Write("latin-\xe9");
  EXPECT_NE(RefusalOfDirectory().find("not UTF-8"), std::string::npos);
  fs::remove(dir_ / "latin-\xe9");

  Write("a\\b");
  EXPECT_NE(RefusalOfDirectory().find("backslash"), std::string::npos);
  fs::remove(dir_ / "a\\b");

  Write(kUploadManifest);
  EXPECT_NE(RefusalOfDirectory().find("manifest"), std::string::npos);
  fs::remove(dir_ / kUploadManifest);

  const std::string too_many =
      Refusal(ErrorCode::kUnsupported, [&] { FilesToPublish(dir_.path(), 1); });
  EXPECT_NE(too_many.find("more than 1 files"), std::string::npos) << too_many;
  EXPECT_TRUE(server_.requests().empty());
}

}  // namespace
}  // namespace tandem::engine
