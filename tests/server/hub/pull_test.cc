#include "server/hub/pull.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
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
using tests::ChunkedReply;
using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

const std::string kCommit(40, 'c');
const std::string kToken = "hf_secret_token";

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
    options_.endpoint = server_->url() + prefix_;
    options_.cache_dir = dir_.path();
    options_.token = kToken;
    options_.segment_bytes = 64 << 10;
    options_.first_backoff = std::chrono::milliseconds(1);
    options_.idle_timeout = std::chrono::milliseconds(5000);
  }

  HubReply Answer(const HubRequest& request) const {
    const std::string& target = request.target;
    if (target.starts_with(prefix_ + "/api/models/org/name/revision/")) {
      return {Reply(200, "", List())};
    }
    const std::string resolve = prefix_ + "/org/name/resolve/" + commit_ + "/";
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
                        "?signature=secret\r\nX-Linked-Etag: \"" + LargeEtag(file->second) +
                        "\"\r\nX-Linked-Size: " + std::to_string(file->second.size()) + "\r\n",
                    "")};
    }
    if (target.starts_with(cdn)) {
      const std::string name = target.substr(cdn.size(), target.find('?') - cdn.size());
      return {RangeReply(request, files_.at(name))};
    }
    return {Reply(404, "", "")};
  }

  std::string LargeEtag(const std::string& text) const {
    return has_hashes_ ? Sha256Text(text) : "etag-of-a-large-file";
  }

  std::string List() const {
    ordered_json json{{"sha", commit_}, {"siblings", ordered_json::array()}};
    for (const auto& [name, text] : files_) {
      ordered_json file{{"rfilename", name}, {"size", text.size()}};
      if (has_hashes_ && name.ends_with(".safetensors"))
        file["lfs"] = {{"sha256", Sha256Text(text)}};
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
    return PullModel(
        model_, options_, [this](const PullStatus& status) { status_ = status; }, std::move(stop));
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
        fs::file_size(cache.IncompletePath(LargeEtag(files_.at("model.safetensors"))), absent);
    return absent ? 0 : size;
  }

  // As an earlier pull would have left it.
  void LeavePartial(const std::string& bytes) {
    const HubCache cache(dir_.path(), "org/name");
    cache.CreateFolders();
    std::ofstream(cache.IncompletePath(LargeEtag(files_.at("model.safetensors"))), std::ios::binary)
        << bytes;
  }

  // Every request for the large file with these fields; "" where there is none.
  std::vector<std::string> FieldsAtTheCdn(const std::string& name) const {
    std::vector<std::string> values;
    for (const HubRequest& request : server_->requests()) {
      if (!request.target.starts_with("/cdn/")) continue;
      const auto it = request.fields.find(name);
      values.push_back(it == request.fields.end() ? "" : it->second);
    }
    return values;
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
  HubReference model_{"org/name", "main", ""};
  PullStatus status_;  // last reported

  // What the server says, and where.
  std::string prefix_;
  std::string commit_ = kCommit;
  bool has_hashes_ = true;
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
  LeavePartial(files_["model.safetensors"].substr(0, 1000000));

  ExpectPulled(Pull());

  EXPECT_EQ(FieldsAtTheCdn("range"), std::vector<std::string>{"bytes=1000000-1048575"});
  EXPECT_EQ(status_.bytes_done, status_.bytes_total);
}

TEST_F(PullTest, AnAnswerThatCannotBeRightDoesNotCostTheBeginning) {
  Start();
  LeavePartial(files_["model.safetensors"].substr(0, 1000000));
  for (const std::string& page : {std::string("you must log in"), Random((1 << 20) + 1, 5)}) {
    on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
      if (!request.target.starts_with("/cdn/")) return std::nullopt;
      return HubReply{Reply(200, "", page), true};
    };
    EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("announced are"), std::string::npos);
    EXPECT_EQ(Arrived(), 1000000);
  }
  on_request_ = nullptr;

  ExpectPulled(Pull());

  EXPECT_EQ(FieldsAtTheCdn("range").back(), "bytes=1000000-1048575");
}

TEST_F(PullTest, AWholeFileOfUnknownLengthIsDoubtedOnce) {
  std::atomic<int> n_asked{0};
  std::atomic<int> n_whole{1};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/") || ++n_asked > n_whole) return std::nullopt;
    const std::string& text = files_.at("model.safetensors");
    return HubReply{ChunkedReply(200, "", n_whole == 1 ? "you must log in" : text)};
  };
  Start();
  LeavePartial(files_["model.safetensors"].substr(0, 1000000));
  ExpectPulled(Pull());
  EXPECT_EQ(FieldsAtTheCdn("range"),
            (std::vector<std::string>{"bytes=1000000-1048575", "bytes=1000000-1048575"}));

  // A server that insists may be right.
  fs::remove_all(dir_ / "models--org--name");
  LeavePartial(files_["model.safetensors"].substr(0, 1000000));
  n_asked = 0;
  n_whole = 1000;
  ExpectPulled(Pull());
  EXPECT_EQ(n_asked, 2);
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

TEST_F(PullTest, AWholeFileAmongPartsIsAskedForAgain) {
  std::atomic<int> n_asked{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/") || n_asked++ != 3) return std::nullopt;
    return HubReply{Reply(200, "", files_.at("model.safetensors")), true};
  };
  Start();

  ExpectPulled(Pull());

  EXPECT_EQ(n_asked, 17) << "16 parts, and one of them twice";
}

TEST_F(PullTest, ServersOfOneFileNeedNotAgreeOnItsETag) {
  std::atomic<int> n_asked{0};
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    const std::string etag = "\"replica-" + std::to_string(n_asked++ % 3) + "\"";
    const auto condition = request.fields.find("if-range");
    const std::string& text = files_.at("model.safetensors");
    if (condition != request.fields.end() && condition->second != etag) {
      return HubReply{Reply(200, "ETag: " + etag + "\r\n", text), true};
    }
    std::string reply = RangeReply(request, text);
    reply.replace(reply.find("\"cdn\""), 5, etag);
    return HubReply{reply};
  };
  Start();
  ExpectPulled(Pull());
}

TEST_F(PullTest, WithoutAHashThePartsMustBeOfOneETag) {
  has_hashes_ = false;
  Start();

  ExpectPulled(Pull());

  std::vector<std::string> conditions = FieldsAtTheCdn("if-range");
  ASSERT_EQ(conditions.size(), 16);
  EXPECT_EQ(conditions.front(), "");
  conditions.erase(conditions.begin());
  EXPECT_EQ(conditions, std::vector<std::string>(15, "\"cdn\""));
}

TEST_F(PullTest, TheETagOfAPlaceThatWasLeftIsForgotten) {
  // Two parts are asked for at the old place. One finds it expired and goes on at the new place;
  // only then does the other one get its answer, with the old place's ETag.
  has_hashes_ = false;
  options_.connections = 2;
  std::mutex mutex;
  std::condition_variable changed;
  int n_old = 0;
  int n_new = 0;
  const auto wait = [&](std::unique_lock<std::mutex>& lock, const auto& condition) {
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), condition));
  };
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    std::unique_lock lock(mutex);
    if (request.method == "HEAD" && request.target.ends_with(".safetensors")) {
      return HubReply{Reply(302,
                            "Location: " + server_->url("localhost") +
                                (n_old < 3 ? "/cdn/old" : "/cdn/new") +
                                "\r\nX-Linked-Etag: \"etag-of-a-large-file\"\r\n"
                                "X-Linked-Size: 1048576\r\n",
                            "")};
    }
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    const bool is_old = request.target == "/cdn/old";
    const int n = is_old ? ++n_old : ++n_new;
    changed.notify_all();
    if (is_old && n == 2) wait(lock, [&] { return n_old == 3; });
    if (is_old && n == 2) return HubReply{Reply(403, "", "expired")};
    if (is_old && n == 3) wait(lock, [&] { return n_new > 0; });
    if (!is_old && n == 1) wait(lock, [&] { return n_new > 1; });
    std::string reply = RangeReply(request, files_.at("model.safetensors"));
    reply.replace(reply.find("\"cdn\""), 5, is_old ? "\"old\"" : "\"new\"");
    return HubReply{reply};
  };
  Start();

  ExpectPulled(Pull());

  for (const HubRequest& request : server_->requests()) {
    if (request.target != "/cdn/new" || !request.fields.contains("if-range")) continue;
    EXPECT_EQ(request.fields.at("if-range"), "\"new\"");
  }
}

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
  EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("has become another file"), std::string::npos);
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

TEST_F(PullTest, AnotherCommitThanTheOneNamedIsRefused) {
  Start();
  model_.revision = std::string(40, 'd');
  const std::string what = Refusal(ErrorCode::kDataLoss);
  EXPECT_NE(what.find("asked for commit " + model_.revision + ", got commit " + kCommit),
            std::string::npos)
      << what;
  EXPECT_TRUE(fs::is_empty(dir_.path()));

  model_.revision = kCommit;
  ExpectPulled(Pull());
  EXPECT_TRUE(fs::is_empty(dir_ / "models--org--name" / "refs"));
}

TEST_F(PullTest, AModelThatIsWholeNeedsNothingWritten) {
  Start();
  const fs::path path = Pull();
  // A file where a folder would be made: even root makes none there.
  fs::remove_all(dir_ / ".locks");
  std::ofstream(dir_ / ".locks") << "";
  EXPECT_EQ(Pull(), path);
}

TEST_F(PullTest, AWrongBeginningIsFetchedAgain) {
  Start();
  LeavePartial(std::string(1000000, 'x'));

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
  EXPECT_NE(what.find("the same command fetches it again"), std::string::npos) << what;
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

  // Nor is a hub unreachable that says no.
  on_request_ = [](const HubRequest&) { return HubReply{Reply(451, "", "")}; };
  Refusal(ErrorCode::kPermissionDenied);

  on_request_ = nullptr;
  ExpectPulled(Pull());
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
