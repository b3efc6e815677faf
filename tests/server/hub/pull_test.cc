#include "server/hub/pull.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/atomic_write.h"
#include "engine/io/sha256.h"
#include "server/hub/api.h"
#include "server/hub/cache.h"
#include "tests/server/hub/hub_server.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

const std::string kCommit(40, 'c');
const std::string kToken = "hf_secret_token";
const HubReference kModel{"org/name", "main", ""};

std::string Sha256Text(const std::string& text) {
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

std::string Random(size_t n_bytes, uint32_t seed) {
  std::string bytes(n_bytes, '\0');
  for (char& c : bytes) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return bytes;
}

// The part of `text` that a Range field asks for, as a whole answer.
std::string RangeReply(const HubRequest& request, const std::string& text) {
  const auto it = request.fields.find("range");
  if (it == request.fields.end()) return Reply(200, "ETag: \"cdn\"\r\n", text);
  size_t first = 0;
  size_t last = 0;
  std::sscanf(it->second.c_str(), "bytes=%zu-%zu", &first, &last);
  last = std::min(last, text.size() - 1);
  return Reply(206,
               "ETag: \"cdn\"\r\nContent-Range: bytes " + std::to_string(first) + "-" +
                   std::to_string(last) + "/" + std::to_string(text.size()) + "\r\n",
               text.substr(first, last - first + 1));
}

// A hub with one model whose large file lies on another host: the same server by another name.
class PullTest : public testing::Test {
 protected:
  PullTest() {
    files_["config.json"] = "{}";
    files_["model.safetensors"] = Random(1 << 20, 1);
  }

  void Start() {
    server_ = std::make_unique<HubServer>([this](const HubRequest& request) {
      Meet();
      std::optional<HubReply> reply;
      if (on_request_) reply = on_request_(request);
      if (!reply) reply = Answer(request);
      Meet();
      return *reply;
    });
    options_.endpoint = server_->url();
    options_.cache_dir = dir_.path();
    options_.token = kToken;
    options_.segment_bytes = 64 << 10;
    options_.first_backoff = std::chrono::milliseconds(1);
    options_.idle_timeout = std::chrono::milliseconds(5000);
  }

  HubReply Answer(const HubRequest& request) const {
    const std::string& target = request.target;
    if (target.starts_with("/api/models/org/name/revision/main")) return {Reply(200, "", List())};
    const std::string resolve = "/org/name/resolve/" + kCommit + "/";
    const std::string cdn = "/cdn/";
    const bool is_head = request.method == "HEAD";
    if (target.starts_with(resolve)) {
      const std::string name = target.substr(resolve.size());
      const auto file = files_.find(name);
      if (file == files_.end()) return {Reply(404, "X-Error-Code: EntryNotFound\r\n", "")};
      if (!name.ends_with(".safetensors")) {
        return {Reply(200, "ETag: \"etag-" + name + "\"\r\n", file->second, is_head)};
      }
      return {Reply(302,
                    "Location: " + server_->url("localhost") + cdn + name +
                        "?signature=secret\r\nX-Linked-Etag: \"" + Sha256Text(file->second) +
                        "\"\r\nX-Linked-Size: " + std::to_string(file->second.size()) + "\r\n",
                    "")};
    }
    if (target.starts_with(cdn)) {
      const std::string name = target.substr(cdn.size(), target.find('?') - cdn.size());
      return {RangeReply(request, files_.at(name))};
    }
    return {Reply(404, "", "")};
  }

  std::string List() const {
    ordered_json json{{"sha", kCommit}, {"siblings", ordered_json::array()}};
    for (const auto& [name, text] : files_) {
      ordered_json file{{"rfilename", name}, {"size", text.size()}};
      if (name.ends_with(".safetensors")) file["lfs"] = {{"sha256", Sha256Text(text)}};
      json["siblings"].push_back(file);
    }
    return json.dump();
  }

  // Tests change what the server says between pulls, while nobody asks it. ThreadSanitizer does not
  // see that the requests come between; this it sees.
  void Meet() { const std::lock_guard lock(meeting_); }

  fs::path Pull(std::stop_token stop = {}) {
    Meet();
    const auto meet_again = [this](void*) { Meet(); };
    const std::unique_ptr<void, decltype(meet_again)> at_end(this, meet_again);
    return PullModel(kModel, options_, nullptr, std::move(stop));
  }

  std::string Refusal(ErrorCode code) {
    try {
      Pull();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      EXPECT_EQ(std::string(error.what()).find(kToken), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "it was pulled";
    return {};
  }

  // Bytes of the large file that are on disk.
  uint64_t Arrived() const {
    const HubCache cache(dir_.path(), "org/name");
    std::error_code absent;
    const auto size =
        fs::file_size(cache.IncompletePath(Sha256Text(files_.at("model.safetensors"))), absent);
    return absent ? 0 : size;
  }

  void ExpectPulled(const fs::path& path) {
    for (const auto& [name, text] : files_) {
      EXPECT_TRUE(engine::ReadWholeFile(path / name, 1 << 24) == text) << name;
      EXPECT_TRUE(fs::is_symlink(path / name)) << name;
    }
  }

  std::mutex meeting_;  // guards nothing
  tests::TemporaryDir dir_;
  std::map<std::string, std::string> files_;
  std::function<std::optional<HubReply>(const HubRequest&)> on_request_;
  std::unique_ptr<HubServer> server_;
  HubOptions options_;
};

TEST_F(PullTest, FilesArriveWhereOtherToolsLookForThem) {
  Start();
  const fs::path path = Pull();

  const fs::path folder = dir_ / "models--org--name";
  EXPECT_EQ(path, folder / "snapshots" / kCommit);
  ExpectPulled(path);
  EXPECT_EQ(engine::ReadWholeFile(folder / "refs" / "main", 100), kCommit);
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
  // hub -> elsewhere -> hub: what the other host makes us ask of the hub is not our question.
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

TEST_F(PullTest, CutConnectionsGoOnFromWhereTheyEnded) {
  std::atomic<int> n_cut{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/") || n_cut++ % 2 == 1) return std::nullopt;
    const std::string whole = RangeReply(request, files_.at("model.safetensors"));
    return HubReply{whole.substr(0, whole.size() - 1000), true};
  };
  Start();

  ExpectPulled(Pull());
  EXPECT_GT(n_cut, 16);
}

TEST_F(PullTest, AServerWithoutRangesIsReadAsAWhole) {
  std::atomic<int> n_asked{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    const std::string& text = files_.at("model.safetensors");
    std::string whole = Reply(200, "", text);
    if (n_asked++ == 0) return HubReply{whole.substr(0, whole.size() / 2), true};
    return HubReply{whole};
  };
  Start();

  ExpectPulled(Pull());
  EXPECT_EQ(n_asked, 2);
}

TEST_F(PullTest, TheBeginningThatIsThereIsNotAskedForAgain) {
  Start();
  const std::string& text = files_["model.safetensors"];
  const HubCache cache(dir_.path(), "org/name");
  cache.CreateFolders();
  std::ofstream(cache.IncompletePath(Sha256Text(text)), std::ios::binary)
      << text.substr(0, 1000000);

  ExpectPulled(Pull());

  for (const HubRequest& request : server_->requests()) {
    if (!request.target.starts_with("/cdn/")) continue;
    EXPECT_EQ(request.fields.at("range"), "bytes=1000000-1048575");
  }
}

TEST_F(PullTest, AWrongBeginningIsFetchedAgain) {
  Start();
  const std::string& text = files_["model.safetensors"];
  const HubCache cache(dir_.path(), "org/name");
  cache.CreateFolders();
  std::ofstream(cache.IncompletePath(Sha256Text(text))) << std::string(1000000, 'x');

  ExpectPulled(Pull());
}

TEST_F(PullTest, WrongBytesAreRefusedAndNotKept) {
  Start();
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    return HubReply{RangeReply(request, Random(1 << 20, 2))};
  };

  const std::string what = Refusal(ErrorCode::kDataLoss);

  EXPECT_NE(what.find("model.safetensors: its sha256 is "), std::string::npos) << what;
  const HubCache cache(dir_.path(), "org/name");
  const std::string etag = Sha256Text(files_["model.safetensors"]);
  EXPECT_FALSE(fs::exists(cache.BlobPath(etag)));
  EXPECT_EQ(fs::file_size(cache.IncompletePath(etag)), 0);
  EXPECT_FALSE(cache.FileSize(kCommit, "model.safetensors").has_value());
}

TEST_F(PullTest, LiesAboutSizesAreRefused) {
  Start();
  const struct {
    const char* what;
    std::function<std::string(const HubRequest&, const std::string&)> reply;
  } lies[] = {
      {"another part",
       [](const HubRequest&, const std::string& text) {
         return Reply(206, "Content-Range: bytes 5-65540/1048576\r\n", text.substr(5, 65536));
       }},
      {"another total",
       [](const HubRequest&, const std::string& text) {
         return Reply(206, "Content-Range: bytes 0-65535/9\r\n", text.substr(0, 65536));
       }},
      {"no range", [](const HubRequest&,
                      const std::string& text) { return Reply(206, "", text.substr(0, 65536)); }},
      {"a shorter file", [](const HubRequest&, const std::string&) { return Reply(200, "", "x"); }},
      {"endless chunks",
       [](const HubRequest&, const std::string&) {
         const std::string text = Random(1 << 20, 9);
         return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n" + text +
                "\r\n100000\r\n" + text + "\r\n0\r\n\r\n";
       }},
      {"compressed",
       [](const HubRequest&, const std::string& text) {
         return Reply(200, "Content-Encoding: gzip\r\n", text);
       }},
      {"no HTTP",
       [](const HubRequest&, const std::string&) { return std::string("SSH-2.0-x\r\n\r\n"); }},
      {"an endless head",
       [](const HubRequest&, const std::string&) {
         return "HTTP/1.1 200 OK\r\nX: " + std::string(300000, 'a');
       }},
  };
  for (const auto& lie : lies) {
    SCOPED_TRACE(lie.what);
    on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
      if (!request.target.starts_with("/cdn/")) return std::nullopt;
      return HubReply{lie.reply(request, files_.at("model.safetensors")), true};
    };
    Refusal(ErrorCode::kDataLoss);
    const HubCache cache(dir_.path(), "org/name");
    EXPECT_FALSE(cache.FileSize(kCommit, "model.safetensors").has_value());
  }
}

TEST_F(PullTest, ContradictionsOfTheHubAreRefused) {
  Start();
  for (const char* field : {"X-Linked-Size: 5", "X-Linked-Etag: \"0123\""}) {
    const std::string other(64, 'a');
    on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
      if (request.method != "HEAD" || !request.target.ends_with(".safetensors")) {
        return std::nullopt;
      }
      const std::string etag =
          std::string(field).starts_with("X-Linked-E") ? "X-Linked-Etag: \"" + other + "\"" : field;
      return HubReply{Reply(302, "Location: /cdn/x\r\nETag: \"x\"\r\n" + etag + "\r\n", "")};
    };
    // A redirect on the hub's own host is followed, so the answer behind it says the same.
    const auto inner = on_request_;
    on_request_ = [&, inner](const HubRequest& request) -> std::optional<HubReply> {
      if (request.target == "/cdn/x") return HubReply{Reply(200, "", "", true)};
      return inner(request);
    };
    EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("contradicts itself"), std::string::npos);
  }
}

TEST_F(PullTest, NamesThatLeadElsewhereAreRefused) {
  for (const char* name : {"../../x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors",
                           "a\\..\\x.safetensors", "x\n.safetensors", ".."}) {
    const ordered_json json{{"sha", kCommit}, {"siblings", {{{"rfilename", name}}}}};
    EXPECT_THROW(ParseRepoInfo(json.dump(), "list"), Error) << name;
  }
  for (const char* text :
       {"", "[]", "{}", R"({"sha":"main","siblings":[]})", R"({"sha":"../../x","siblings":[]})"}) {
    EXPECT_THROW(ParseRepoInfo(text, "list"), Error) << text;
  }
  const std::string head = R"({"sha":")" + kCommit + R"(","siblings":)";
  for (const char* text :
       {"{}}", "[1]}", R"([{"rfilename":7}]})", R"([{"rfilename":"a","size":-1}]})",
        R"([{"rfilename":"a","size":1e300}]})", R"([{"rfilename":"a"},{"rfilename":"a"}]})",
        R"([{"rfilename":"a","lfs":{"sha256":"../x"}}]})",
        R"([{"rfilename":"a","blobId":"x"}]})"}) {
    EXPECT_THROW(ParseRepoInfo(head + text, "list"), Error) << text;
  }
}

TEST_F(PullTest, RedirectsEnd) {
  Start();
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/api/")) return std::nullopt;
    return HubReply{Reply(307, "Location: " + request.target + "\r\n", "")};
  };
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("more than 10 redirects"), std::string::npos);
  EXPECT_EQ(server_->requests().size(), 11);

  for (const char* location : {"file:///etc/passwd", "ftp://h/", "http://u:p@h/", "http://a b/"}) {
    on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
      return HubReply{Reply(302, std::string("Location: ") + location + "\r\n", "")};
    };
    Refusal(ErrorCode::kDataLoss);
  }
}

TEST_F(PullTest, RefusalsSayWhatToDo) {
  Start();
  const struct {
    int status;
    const char* fields;
    ErrorCode code;
    const char* with;
    const char* without;
  } cases[] = {
      {401, "X-Error-Code: GatedRepo\r\n", ErrorCode::kPermissionDenied, "approval can take",
       "then set HF_TOKEN"},
      {403, "X-Error-Code: GatedRepo\r\n", ErrorCode::kPermissionDenied,
       "accept its licence at {}/org/name", "accept its licence at {}/org/name"},
      {401, "X-Error-Code: RepoNotFound\r\n", ErrorCode::kNotFound, "token in use may read it",
       "set HF_TOKEN to a token"},
      {404, "X-Error-Code: RepoNotFound\r\n", ErrorCode::kNotFound, "has no model org/name",
       "has no model org/name"},
      {404, "X-Error-Code: RevisionNotFound\r\n", ErrorCode::kNotFound, "no revision 'main'",
       "{}/org/name/tree/main"},
      {403, "X-Error-Message: forbidden for hf_secret_token\r\n", ErrorCode::kPermissionDenied,
       "(forbidden for [token])", "status 403"},
      {418, "", ErrorCode::kUnavailable, "status 418", "status 418"},
  };
  for (const auto& c : cases) {
    on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
      return HubReply{Reply(c.status, c.fields, "a page")};
    };
    for (const bool has_token : {true, false}) {
      if (!has_token && c.status == 403 && std::string(c.fields).find("[") == std::string::npos &&
          std::string(c.fields).find("forbidden") != std::string::npos) {
        continue;  // there is no token to hide
      }
      options_.token = has_token ? kToken : "";
      std::string expected = has_token ? c.with : c.without;
      if (const size_t at = expected.find("{}"); at != std::string::npos) {
        expected.replace(at, 2, options_.endpoint);
      }
      EXPECT_NE(Refusal(c.code).find(expected), std::string::npos) << expected;
    }
  }
  options_.token = kToken;
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    return HubReply{
        Reply(401, "X-Error-Message: Invalid credentials in Authorization header\r\n", "")};
  };
  EXPECT_NE(Refusal(ErrorCode::kUnauthenticated).find("refuses the token"), std::string::npos);
}

TEST_F(PullTest, BusyHubsAreAskedAgainAndNotForever) {
  std::atomic<int> n_busy{0};
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    if (n_busy++ < 3) return HubReply{Reply(n_busy == 1 ? 429 : 503, "Retry-After: 0\r\n", "")};
    return std::nullopt;
  };
  Start();
  ExpectPulled(Pull());

  fs::remove_all(dir_ / "models--org--name");
  n_busy = -1000;
  EXPECT_NE(Refusal(ErrorCode::kUnavailable).find("(6 attempts)"), std::string::npos);
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    return HubReply{Reply(429, "Retry-After: 999\r\n", "")};
  };
  EXPECT_NE(Refusal(ErrorCode::kUnavailable).find("999 s"), std::string::npos);
}

TEST_F(PullTest, AnExpiredPlaceIsLookedUpAgain) {
  std::atomic<int> n_asked{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/") || n_asked++ != 1) return std::nullopt;
    return HubReply{Reply(403, "", "expired")};
  };
  Start();

  ExpectPulled(Pull());
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

TEST_F(PullTest, TheIndexSaysWhichWeightsAreTheModels) {
  files_.erase("model.safetensors");
  files_["a.safetensors"] = Random(1000, 3);
  files_["b.safetensors"] = Random(1000, 3);  // the same bytes are one blob
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

TEST_F(PullTest, AnIndexThatNamesWhatIsNotListedIsRefused) {
  files_.erase("model.safetensors");
  files_["a.safetensors"] = "x";
  files_["model.safetensors.index.json"] = R"({"weight_map":{"x":"other.safetensors"}})";
  Start();
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("names other.safetensors"), std::string::npos);
}

TEST_F(PullTest, AStopKeepsWhatHasArrived) {
  std::stop_source stop;
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    const auto range = request.fields.at("range");
    if (range == "bytes=0-65535") return std::nullopt;
    for (int i = 0; i < 1000 && Arrived() < 65536; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    stop.request_stop();
    return HubReply{"HTTP/1.1 206 Partial Content\r\n"};  // and no more
  };
  Start();
  try {
    Pull(stop.get_token());
    ADD_FAILURE() << "it was pulled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(Arrived(), 65536);

  on_request_ = nullptr;
  ExpectPulled(Pull());
}

TEST(PullProgress, IsOneLineForPeople) {
  PullStatus status;
  status.name = "org/name";
  status.bytes_total = 3 << 20;
  status.bytes_done = 1 << 20;
  status.bytes_per_s = 1 << 10;
  status.seconds_left = 2048;
  EXPECT_EQ(DescribeProgress(status),
            "[ 33 %] 1.0 MiB of 3.0 MiB, 1.0 KiB/s, 34 min left (org/name)");
}

TEST(PulledPath, WhatExistsOrIsNoNameStaysItself) {
  const tests::TemporaryDir dir;
  EXPECT_EQ(PulledPath(dir.path().string()), dir.path().string());
  for (const char* text : {"", "tandem-stories", "/no/such/dir", "./a/b", "a/b/c"}) {
    EXPECT_EQ(PulledPath(text), text);
  }
}

}  // namespace
}  // namespace tandem::server
