#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "engine/hub/api.h"
#include "tests/engine/hub/pull_fixture.h"

// Refused pulls, and their messages.
namespace tandem::engine {
namespace {

TEST_F(PullTest, AnotherFileAtTheNewPlaceIsRefused) {
  has_hashes_ = false;
  std::atomic<int> n_located{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (request.target.starts_with("/cdn/")) return HubReply{Reply(403, "", "expired")};
    if (request.method != "HEAD" || !request.target.ends_with(".safetensors")) return std::nullopt;
    const std::string etag = n_located++ == 0 ? "one" : "another";
    return HubReply{Reply(302,
                          "Location: " + server_->url("localhost") + "/cdn/x\r\nX-Linked-Etag: \"" +
                              etag + "\"\r\nX-Linked-Size: 1048576\r\n",
                          "")};
  };
  Start();
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("changed on the hub during the download"),
            std::string::npos);
}

TEST_F(PullTest, AnotherCommitThanTheOneNamedIsRefused) {
  Start();
  model_.revision = std::string(40, 'd');
  const std::string what = Refusal(ErrorCode::kDataLoss);
  EXPECT_NE(
      what.find("requested commit " + model_.revision + ", but the hub returned commit " + kCommit),
      std::string::npos)
      << what;
  EXPECT_TRUE(fs::is_empty(dir_.path()));

  model_.revision = kCommit;
  ExpectPulled(Pull());
  EXPECT_TRUE(fs::is_empty(dir_ / "models--org--name" / "refs"));
}

TEST_F(PullTest, WrongBytesAreRefusedAndNotKept) {
  Start();
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    return HubReply{RangeReply(request, Random(1 << 20, 2))};
  };

  const std::string what = Refusal(ErrorCode::kDataLoss);

  EXPECT_NE(what.find("model.safetensors: the sha256 of the download is "), std::string::npos)
      << what;
  EXPECT_NE(what.find("run the same command to fetch it again"), std::string::npos) << what;
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
    // The client follows a redirect within the hub's own host, so its target needs a reply, too.
    const auto inner = on_request_;
    on_request_ = [&, inner](const HubRequest& request) -> std::optional<HubReply> {
      if (request.target == "/cdn/x") return HubReply{Reply(200, "", "", true)};
      return inner(request);
    };
    EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("but serves"), std::string::npos);
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
      {401, "X-Error-Code: RepoNotFound\r\n", ErrorCode::kNotFound,
       "check the name and the token's permissions", "set HF_TOKEN to a token"},
      {404, "X-Error-Code: RepoNotFound\r\n", ErrorCode::kNotFound, "has no model org/name",
       "has no model org/name"},
      {404, "X-Error-Code: RevisionNotFound\r\n", ErrorCode::kNotFound, "no revision 'main'",
       "{}/org/name/tree/main"},
      {403, "X-Error-Message: forbidden for hf_secret_token\r\n", ErrorCode::kPermissionDenied,
       "(forbidden for [token])", "status 403"},
      {407, "", ErrorCode::kPermissionDenied, "status 407", "status 407"},
      {416, "", ErrorCode::kDataLoss, "status 416", "status 416"},
      {418, "", ErrorCode::kFailedPrecondition, "status 418", "status 418"},
      {451, "", ErrorCode::kPermissionDenied, "status 451", "status 451"},
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
  EXPECT_NE(Refusal(ErrorCode::kUnauthenticated).find("rejects the token"), std::string::npos);
}

TEST_F(PullTest, ListsThatDoNotEndAreGivenUp) {
  Start();
  options_.max_attempts = 1;
  options_.answer_timeout = std::chrono::milliseconds(50);
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    return HubReply{Reply(200, "", List()), false, 1};
  };
  std::string what = Refusal(ErrorCode::kDeadlineExceeded);
  EXPECT_NE(what.find("took too long"), std::string::npos) << what;
  EXPECT_NE(what.find(server_->url()), std::string::npos) << what;

  options_.answer_timeout = std::chrono::seconds(120);
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    return HubReply{Reply(200, "", std::string((32 << 20) + 1, ' ')), true};
  };
  what = Refusal(ErrorCode::kDataLoss);
  EXPECT_NE(what.find("larger than the limit of 33554432"), std::string::npos) << what;
  EXPECT_NE(what.find("/api/models/org/name"), std::string::npos) << what;
}

TEST_F(PullTest, AModelOfTooManyFilesIsRefused) {
  Start();
  ordered_json json{{"sha", kCommit}, {"siblings", ordered_json::array()}};
  for (int i = 0; i < 5000; ++i) {
    json["siblings"].push_back({{"rfilename", std::to_string(i) + ".safetensors"}});
  }
  on_request_ = [&](const HubRequest&) -> std::optional<HubReply> {
    return HubReply{Reply(200, "", json.dump())};
  };
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("5000 files, more than the limit of 4096"),
            std::string::npos);
  EXPECT_EQ(server_->requests().size(), 1);
}

TEST_F(PullTest, AnIndexThatNamesWhatIsNotListedIsRefused) {
  files_.erase("model.safetensors");
  files_["a.safetensors"] = "x";
  files_["model.safetensors.index.json"] = R"({"weight_map":{"x":"other.safetensors"}})";
  Start();
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("names other.safetensors"), std::string::npos);
}

}  // namespace
}  // namespace tandem::engine
