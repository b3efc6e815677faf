#include "engine/hub/pull.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/hub/api.h"
#include "tests/engine/hub/pull_fixture.h"

// Files that a pull downloads, their sources, and pulls without downloads.
namespace tandem::engine {
namespace {

TEST_F(PullTest, FilesArriveWhereOtherToolsLookForThem) {
  Start();
  const fs::path path = Pull();

  const fs::path folder = dir_ / "models--org--name";
  EXPECT_EQ(path, folder / "snapshots" / kCommit);
  ExpectPulled(path);
  EXPECT_EQ(ReadWholeFile(folder / "refs" / "main", 100), kCommit);
  EXPECT_TRUE(fs::exists(folder / "blobs" / Sha256Text(files_["model.safetensors"])));
  EXPECT_TRUE(fs::exists(folder / "blobs" / "etag-config.json"));
}

TEST_F(PullTest, TheTokenStaysAtTheHub) {
  Start();
  Pull();

  int n_with = 0;
  int n_elsewhere = 0;
  for (const HubRequest& request : server_->requests()) {
    const bool has_token = request.fields.contains("authorization");
    n_with += has_token;
    if (request.target.starts_with("/cdn/")) {
      ++n_elsewhere;
      EXPECT_TRUE(request.fields.at("host").starts_with("localhost:"));
      EXPECT_FALSE(has_token) << request.target;
    } else {
      EXPECT_EQ(request.fields.at("authorization"), "Bearer " + kToken) << request.target;
    }
  }
  EXPECT_GT(n_with, 0);
  EXPECT_GT(n_elsewhere, 1) << "a large file is fetched in pieces";
}

TEST_F(PullTest, ATokenThatHasLeftDoesNotComeBack) {
  // hub -> elsewhere -> hub: a request that the other host causes must carry no token.
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (request.target.starts_with("/cdn/") && !request.target.ends_with("back")) {
      return HubReply{
          Reply(302, "Location: " + server_->url() + "/cdn/model.safetensors?back\r\n", "")};
    }
    return std::nullopt;
  };
  Start();
  ExpectPulled(Pull());

  for (const HubRequest& request : server_->requests()) {
    if (request.target.ends_with("?back")) {
      EXPECT_FALSE(request.fields.contains("authorization"));
      EXPECT_TRUE(request.fields.at("host").starts_with("127.0.0.1:"));
    }
  }
}

TEST_F(PullTest, ASecondPullFetchesNothing) {
  Start();
  Pull();
  const size_t before = server_->requests().size();

  ExpectPulled(Pull());

  EXPECT_EQ(server_->requests().size(), before + 1);
}

TEST_F(PullTest, AnswersInChunksAreReadLikeOthers) {
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (request.method == "HEAD") return std::nullopt;
    if (request.target.starts_with("/api/")) return HubReply{ChunkedReply(200, "", List())};
    if (!request.target.ends_with("config.json")) return std::nullopt;
    return HubReply{ChunkedReply(200, "ETag: \"etag-config.json\"\r\n", files_.at("config.json"))};
  };
  files_["config.json"] = Random(60'000, 6);
  Start();
  ExpectPulled(Pull());
}

TEST_F(PullTest, AnEmptyFileIsAFile) {
  files_["tokenizer_config.json"] = "";
  Start();
  ExpectPulled(Pull());
}

TEST_F(PullTest, AnEndpointMayHaveAPath) {
  prefix_ = "/mirrors/hf";
  Start();
  ExpectPulled(Pull());
  for (const HubRequest& request : server_->requests()) {
    EXPECT_TRUE(request.target.starts_with("/mirrors/hf/") || request.target.starts_with("/cdn/"))
        << request.target;
  }
}

TEST_F(PullTest, AModelThatIsWholeNeedsNothingWritten) {
  Start();
  const fs::path path = Pull();
  // A file at the folder's path: not even root can create the folder.
  fs::remove_all(dir_ / ".locks");
  std::ofstream(dir_ / ".locks") << "";
  EXPECT_EQ(Pull(), path);
}

TEST_F(PullTest, OfflineTakesWhatIsThereOrSaysWhatIsMissing) {
  Start();
  options_.offline = true;
  EXPECT_NE(Refusal(ErrorCode::kNotFound).find("never been pulled"), std::string::npos);

  options_.offline = false;
  const fs::path path = Pull();
  const size_t n_requests = server_->requests().size();
  options_.offline = true;
  EXPECT_EQ(Pull(), path);
  EXPECT_EQ(server_->requests().size(), n_requests);

  fs::remove(path / "config.json");
  EXPECT_NE(Refusal(ErrorCode::kNotFound).find("config.json of commit"), std::string::npos);
}

TEST_F(PullTest, WithoutANetworkTheCacheIsGoodEnough) {
  Start();
  const fs::path path = Pull();
  on_request_ = [](const HubRequest&) { return HubReply{"", true}; };
  EXPECT_EQ(Pull(), path);

  fs::remove(path / "model.safetensors");
  Refusal(ErrorCode::kUnavailable);
}

TEST_F(PullTest, ABusyHubIsNotWaitedForWhenTheCacheIsGoodEnough) {
  Start();
  const fs::path path = Pull();
  const size_t n_requests = server_->requests().size();
  on_request_ = [](const HubRequest&) { return HubReply{Reply(429, "Retry-After: 60\r\n", "")}; };
  EXPECT_EQ(Pull(), path);
  EXPECT_EQ(server_->requests().size(), n_requests + 1);
}

TEST_F(PullTest, AnOldModelIsNotTakenForTheNewOne) {
  Start();
  Pull();
  options_.max_attempts = 2;
  commit_ = std::string(40, 'd');
  files_["model.safetensors"] = Random(1 << 20, 7);
  on_request_ = [](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    return HubReply{Reply(503, "", "")};
  };
  Refusal(ErrorCode::kUnavailable);

  // A hub that refuses is not unreachable.
  on_request_ = [](const HubRequest&) { return HubReply{Reply(451, "", "")}; };
  Refusal(ErrorCode::kPermissionDenied);

  AnswerAsUsual();
  ExpectPulled(Pull());
}

TEST(RepoInfo, FindsEveryFileAndNoOther) {
  const ordered_json json{
      {"sha", kCommit},
      {"siblings", {{{"rfilename", "b"}}, {{"rfilename", "c/a"}}, {{"rfilename", "a"}}}}};
  const RepoInfo info = ParseRepoInfo(json.dump(), "list");
  for (const char* name : {"a", "b", "c/a"}) {
    ASSERT_NE(info.Find(name), nullptr) << name;
    EXPECT_EQ(info.Find(name)->name, name);
  }
  for (const char* name : {"", "0", "aa", "c", "d"}) EXPECT_EQ(info.Find(name), nullptr) << name;
}

TEST_F(PullTest, TheIndexSaysWhichWeightsAreTheModels) {
  files_.erase("model.safetensors");
  files_["a.safetensors"] = Random(1000, 3);
  files_["b.safetensors"] = Random(1000, 3);  // equal contents are one blob
  files_["model.safetensors.index.json"] =
      R"({"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})";
  Start();
  files_["consolidated.safetensors"] = Random(100, 4);
  const fs::path path = Pull();

  EXPECT_FALSE(fs::exists(path / "consolidated.safetensors"));
  files_.erase("consolidated.safetensors");
  ExpectPulled(path);
  EXPECT_EQ(fs::read_symlink(path / "a.safetensors"), fs::read_symlink(path / "b.safetensors"));

  options_.offline = true;
  fs::remove(path / "b.safetensors");
  EXPECT_NE(Refusal(ErrorCode::kNotFound).find("b.safetensors of commit"), std::string::npos);
}

TEST(PulledPath, WhatExistsOrIsNoNameStaysItself) {
  const tests::TemporaryDir dir;
  EXPECT_EQ(PulledPath(dir.path().string()), dir.path().string());
  for (const char* text : {"", "tandem-stories", "/no/such/dir", "./a/b", "a/b/c"}) {
    EXPECT_EQ(PulledPath(text), text);
  }
}

}  // namespace
}  // namespace tandem::engine
