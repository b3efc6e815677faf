#include "engine/objects/object_client.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <mutex>
#include <sstream>

#include "engine/base/error.h"
#include "engine/objects/transfer.h"
#include "tests/engine/hub/hub_server.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;
using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

ObjectOptions FastOptions(const HubServer& server) {
  ObjectOptions options;
  options.http.endpoint = server.url();
  options.http.connections = 3;
  options.http.first_backoff = std::chrono::milliseconds(1);
  options.http.max_attempts = 3;
  options.http.idle_timeout = std::chrono::milliseconds(5000);
  options.keys = {"THEKEY", "THESECRET", "THESESSION"};
  return options;
}

const ObjectUrl kBucket{StoreKind::kS3, "bucket", ""};

template <typename Function>
std::string FaultText(ErrorCode code, const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    const std::string text = error.what();
    EXPECT_EQ(text.find("THESECRET"), std::string::npos) << text;
    EXPECT_EQ(text.find("THESESSION"), std::string::npos) << text;
    return text;
  }
  ADD_FAILURE() << "there was no error";
  return {};
}

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// An object of this content behind a server that understands ranges.
HubReply Ranged(const HubRequest& request, const std::string& content, const std::string& etag) {
  const auto range = request.fields.find("range");
  if (range == request.fields.end()) return {Reply(200, "ETag: " + etag + "\r\n", content)};
  size_t first = 0;
  size_t last = 0;
  std::sscanf(range->second.c_str(), "bytes=%zu-%zu", &first, &last);
  return {Reply(206,
                "ETag: " + etag + "\r\nContent-Range: bytes " + std::to_string(first) + "-" +
                    std::to_string(last) + "/" + std::to_string(content.size()) + "\r\n",
                content.substr(first, last + 1 - first))};
}

std::string ErrorXml(const std::string& code, const std::string& message) {
  return "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><Message>" + message +
         "</Message></Error>";
}

std::string ReadText(ObjectClient& client, const ObjectInfo& info, uint64_t begin, size_t n) {
  std::string out(n, '\0');
  client.ReadRange(info, begin, std::span(out));
  return out;
}

TEST(ObjectClient, SignsEveryRequestAndSendsTheSessionToken) {
  HubServer server([](const HubRequest&) { return HubReply{Reply(200, "ETag: \"e\"\r\n", "")}; });
  ObjectStore store(kBucket, FastOptions(server));

  ObjectClient(store).Put("a b/c", "bytes");

  const HubRequest request = server.requests().at(0);
  EXPECT_EQ(request.method, "PUT");
  EXPECT_EQ(request.target, "/bucket/a%20b/c");
  EXPECT_EQ(request.body, "bytes");
  EXPECT_TRUE(
      request.fields.at("authorization").starts_with("AWS4-HMAC-SHA256 Credential=THEKEY/"));
  EXPECT_EQ(request.fields.at("x-amz-security-token"), "THESESSION");
  EXPECT_EQ(request.fields.at("x-amz-content-sha256"), "UNSIGNED-PAYLOAD");
}

TEST(ObjectClient, SignsBodiesWhereOthersMayReadThem) {
  HubServer server([](const HubRequest&) { return HubReply{Reply(200, "ETag: \"e\"\r\n", "")}; });
  const auto signs = [&](const std::string& endpoint, std::optional<bool> wanted = {},
                         const std::string& proxy = "") {
    ObjectOptions options = FastOptions(server);
    options.http.endpoint = endpoint;
    options.http.http_proxy = proxy;
    options.signs_bodies = wanted;
    return ObjectStore(kBucket, options).signs_bodies();
  };
  EXPECT_FALSE(signs("https://store.example"));
  EXPECT_FALSE(signs("http://localhost:9000"));
  EXPECT_FALSE(signs("http://127.0.0.1:9000"));
  EXPECT_TRUE(signs("http://127.0.0.1.example"));
  EXPECT_TRUE(signs("http://192.168.1.7:9000"));
  EXPECT_TRUE(signs("http://127.0.0.1:9000", {}, "http://proxy.example:3128"));
  EXPECT_TRUE(signs("https://store.example", true));
  EXPECT_FALSE(signs("http://store.example", false));

  ObjectOptions options = FastOptions(server);
  options.signs_bodies = true;
  ObjectStore store(kBucket, options);
  ObjectClient client(store);
  client.Put("key", "bytes");
  const std::string large(700'000, 'x');  // several pieces
  client.PutPart("key", "id", 1, ObjectBody::Of(large));
  EXPECT_EQ(server.requests().at(0).fields.at("x-amz-content-sha256"),
            "277089d91c0bdf4f2e6862ba7e4a07605119431f5d13f726dd352b06f1b206a9");
  EXPECT_EQ(server.requests().at(1).fields.at("x-amz-content-sha256"),
            "09f143a886696ba31189656dffc5d4cd14effc15ad33d00066ebe5d70b3649ff");
  EXPECT_EQ(server.requests().at(1).body, large);
}

std::string HttpTime(int64_t from_now_s) {
  const std::time_t time = std::time(nullptr) + from_now_s;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[64];
  std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  return text;
}

// The time of the signature, in seconds from now.
int64_t SignedFromNow(const HubRequest& request) {
  std::tm parts{};
  strptime(request.fields.at("x-amz-date").c_str(), "%Y%m%dT%H%M%SZ", &parts);
  return timegm(&parts) - std::time(nullptr);
}

TEST(ObjectClient, AfterARefusalOfTheTimeSignaturesFollowTheStore) {
  for (const std::string method : {"GET", "HEAD"}) {
    HubServer server([&](const HubRequest& request) {
      const std::string date = "Date: " + HttpTime(7200) + "\r\n";
      if (std::abs(SignedFromNow(request) - 7200) < 900) {
        return HubReply{Reply(200, date + "ETag: \"e\"\r\n", request.method == "HEAD" ? "" : "ok")};
      }
      return HubReply{
          Reply(403, date, method == "HEAD" ? "" : ErrorXml("RequestTimeTooSkewed", "too far"))};
    });
    ObjectStore store(kBucket, FastOptions(server));
    ObjectClient client(store);

    if (method == "GET") {
      EXPECT_EQ(client.Read("key", 100), "ok");
    } else {
      EXPECT_TRUE(client.Find("key").has_value());
    }
    EXPECT_EQ(server.requests().size(), 2u);
    EXPECT_NEAR(static_cast<double>(store.clock_ahead_s), 7200, 5);
    // Another connection of the same store does not ask first.
    EXPECT_EQ(ObjectClient(store).Find("other").has_value(), true);
    EXPECT_EQ(server.requests().size(), 3u);
  }
}

TEST(ObjectClient, AClockThatCannotBeFollowedIsNamed) {
  const auto refusal_with = [](const std::string& fields) {
    HubServer server([&](const HubRequest&) {
      return HubReply{Reply(403, fields, ErrorXml("RequestTimeTooSkewed", "too far"))};
    });
    ObjectStore store(kBucket, FastOptions(server));
    std::string text =
        FaultText(ErrorCode::kPermissionDenied, [&] { ObjectClient(store).Put("key", "x"); });
    return std::to_string(server.requests().size()) + " " + text;
  };
  const std::string never_set = refusal_with("Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n");
  EXPECT_TRUE(never_set.starts_with("1 ")) << never_set;
  EXPECT_TRUE(Contains(never_set, "set this machine's clock, which is ")) << never_set;
  EXPECT_TRUE(Contains(never_set, "s ahead of the store's")) << never_set;
  EXPECT_TRUE(refusal_with("").starts_with("1 "));
  EXPECT_TRUE(refusal_with("Date: yesterday\r\n").starts_with("1 "));
  // Another refusal after the change is final.
  const std::string stubborn = refusal_with("Date: " + HttpTime(-3600) + "\r\n");
  EXPECT_TRUE(stubborn.starts_with("2 ")) << stubborn;
}

// A refusal of HEAD gives no reason, so the clock may be it or not.
TEST(ObjectClient, ARefusalThatTheClockDoesNotExplainIsOneOfPermission) {
  const auto refusal_with = [](int64_t skew_s, bool has_keys, size_t n_requests) {
    HubServer server([&](const HubRequest&) {
      return HubReply{Reply(403, "Date: " + HttpTime(skew_s) + "\r\n", "")};
    });
    ObjectOptions options = FastOptions(server);
    if (!has_keys) options.keys = {};
    ObjectStore store(kBucket, options);
    std::string text =
        FaultText(ErrorCode::kPermissionDenied, [&] { ObjectClient(store).Find("key"); });
    EXPECT_EQ(server.requests().size(), n_requests) << text;
    return text;
  };
  EXPECT_FALSE(Contains(refusal_with(0, true, 1), "clock"));
  // The second request has the store's time, so the clock is not the reason.
  EXPECT_FALSE(Contains(refusal_with(7200, true, 2), "store's"));
  EXPECT_FALSE(Contains(refusal_with(7200, false, 1), "store's"));
  const std::string never_set = refusal_with(int64_t{10} * 24 * 3600, true, 1);
  EXPECT_TRUE(Contains(never_set, "; or set this machine's clock, which is ")) << never_set;
  EXPECT_TRUE(Contains(never_set, "s behind the store's")) << never_set;
}

TEST(ObjectClient, WithoutKeysRequestsAreNotSigned) {
  HubServer server([](const HubRequest&) {
    return HubReply{Reply(403, "", ErrorXml("AccessDenied", "Access Denied"))};
  });
  ObjectOptions options = FastOptions(server);
  options.keys = {};
  ObjectStore store(kBucket, options);

  const std::string text =
      FaultText(ErrorCode::kPermissionDenied, [&] { ObjectClient(store).Read("key", 100); });

  EXPECT_EQ(server.requests().at(0).fields.count("authorization"), 0u);
  EXPECT_TRUE(Contains(text, "set AWS_ACCESS_KEY_ID")) << text;
}

TEST(ObjectClient, ARefusalNamesBucketKeyStatusAndRemedy) {
  HubServer server([](const HubRequest&) {
    return HubReply{
        Reply(403, "", ErrorXml("AccessDenied", "no THESECRET for THEKEY, THESESSION"))};
  });
  ObjectStore store(kBucket, FastOptions(server));

  const std::string text =
      FaultText(ErrorCode::kPermissionDenied, [&] { ObjectClient(store).Put("key", "x"); });

  EXPECT_TRUE(Contains(text, "PUT s3://bucket/key: status 403 AccessDenied")) << text;
  EXPECT_TRUE(Contains(text, "permission")) << text;
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(ObjectClient, SecretsAreFoundBeforeTheTextIsCut) {
  std::string said(1'195, '.');  // the text was cut after 1200 bytes
  HubServer server([&](const HubRequest&) {
    return HubReply{Reply(403, "", ErrorXml("THESECRET", "THESESSIONTHEKEY" + said + "THESECRET"))};
  });
  ObjectOptions options = FastOptions(server);
  options.keys.access_key_id = "key";  // within the mark that replaces it
  ObjectStore store(kBucket, options);

  const std::string text =
      FaultText(ErrorCode::kPermissionDenied, [&] { ObjectClient(store).Put("key", "x"); });

  EXPECT_TRUE(Contains(text, "status 403 [key] '[key]")) << text;
  EXPECT_FALSE(Contains(text, "THESE")) << text;
}

TEST(ObjectClient, AnotherRegionIsNamed) {
  HubServer server([](const HubRequest&) {
    return HubReply{
        Reply(301, "x-amz-bucket-region: eu-west-1\r\nLocation: http://127.0.0.1:1/\r\n", "")};
  });
  ObjectStore store(kBucket, FastOptions(server));

  const std::string text =
      FaultText(ErrorCode::kFailedPrecondition, [&] { ObjectClient(store).Read("key", 100); });

  EXPECT_TRUE(Contains(text, "'eu-west-1'")) << text;
  EXPECT_EQ(server.requests().size(), 1u);
}

TEST(ObjectClient, BusyServersAreAskedAgainAFewTimes) {
  std::atomic<int> n{0};
  HubServer server([&](const HubRequest&) {
    const int status = n == 0 ? 503 : n == 1 ? 429 : 200;
    ++n;
    return HubReply{Reply(status, "Retry-After: 0\r\nETag: \"e\"\r\n", "ok")};
  });
  ObjectStore store(kBucket, FastOptions(server));
  EXPECT_EQ(ObjectClient(store).Read("key", 100), "ok");
  EXPECT_EQ(server.requests().size(), 3u);

  HubServer broken([](const HubRequest&) {
    return HubReply{Reply(500, "", ErrorXml("InternalError", "try again"))};
  });
  ObjectStore other(kBucket, FastOptions(broken));
  const std::string text =
      FaultText(ErrorCode::kUnavailable, [&] { ObjectClient(other).Read("key", 100); });
  EXPECT_TRUE(Contains(text, "status 500 InternalError")) << text;
  EXPECT_TRUE(Contains(text, "(3 attempts)")) << text;
  EXPECT_EQ(broken.requests().size(), 3u);
}

TEST(ObjectClient, ALongRetryAfterIsAnError) {
  HubServer server(
      [](const HubRequest&) { return HubReply{Reply(503, "Retry-After: 9999\r\n", "")}; });
  ObjectStore store(kBucket, FastOptions(server));
  const std::string text =
      FaultText(ErrorCode::kUnavailable, [&] { ObjectClient(store).Read("key", 100); });
  EXPECT_TRUE(Contains(text, "9999 s")) << text;
}

TEST(ObjectClient, ACutAnswerIsContinuedWhereItEnded) {
  const std::string content(300'000, 'x');
  std::atomic<int> n{0};
  HubServer server([&](const HubRequest& request) {
    HubReply reply = Ranged(request, content, "\"e\"");
    if (n++ == 0) {
      reply.bytes.resize(reply.bytes.size() - 100'000);
      reply.cut = true;
    }
    return reply;
  });
  ObjectStore store(kBucket, FastOptions(server));
  ObjectClient client(store);

  EXPECT_EQ(ReadText(client, {"key", content.size(), "\"e\""}, 0, content.size()), content);

  ASSERT_EQ(server.requests().size(), 2u);
  EXPECT_EQ(server.requests()[1].fields.at("range"), "bytes=200000-299999");
  EXPECT_EQ(server.requests()[1].fields.at("if-match"), "\"e\"");
}

TEST(ObjectClient, AChangedObjectIsRefused) {
  HubServer answers_412([](const HubRequest&) {
    return HubReply{Reply(412, "", ErrorXml("PreconditionFailed", "changed"))};
  });
  HubServer ignores([](const HubRequest& request) { return Ranged(request, "01234", "\"new\""); });
  for (const HubServer* server : {&answers_412, &ignores}) {
    ObjectStore store(kBucket, FastOptions(*server));
    ObjectClient client(store);
    const std::string text = FaultText(ErrorCode::kDataLoss, [&] {
      ReadText(client, {"key", 5, "\"e\""}, 1, 3);
    });
    EXPECT_TRUE(Contains(text, "changed while it was read")) << text;
  }
}

TEST(ObjectClient, AnswersOfAnotherRangeOrLengthAreRefused) {
  const auto refusal_of = [](const std::string& fields, int status, const std::string& body) {
    HubServer server([&](const HubRequest&) {
      return HubReply{
          "HTTP/1.1 " + std::to_string(status) + " S\r\nETag: \"e\"\r\n" + fields + "\r\n" + body,
          true};
    });
    ObjectStore store(kBucket, FastOptions(server));
    ObjectClient client(store);
    return FaultText(ErrorCode::kDataLoss, [&] { ReadText(client, {"key", 10, "\"e\""}, 2, 3); });
  };
  const std::string right = "Content-Range: bytes 2-4/10\r\n";
  EXPECT_NE(refusal_of("Content-Range: bytes 3-5/10\r\nContent-Length: 3\r\n", 206, "abc"), "");
  EXPECT_NE(refusal_of("Content-Range: bytes 2-4/11\r\nContent-Length: 3\r\n", 206, "abc"), "");
  EXPECT_NE(refusal_of("Content-Length: 10\r\n", 200, "0123456789"), "");
  EXPECT_NE(refusal_of(right + "Content-Length: 4\r\n", 206, "abcd"), "");
  EXPECT_NE(refusal_of(right + "Content-Length: 99999999999999999999\r\n", 206, "abc"), "");
  EXPECT_NE(refusal_of(right, 206, "abc"), "");
}

std::string ListPage(const std::string& entries, const std::string& more = "") {
  return "<ListBucketResult><EncodingType>url</EncodingType>" + entries +
         (more.empty() ? "<IsTruncated>false</IsTruncated>"
                       : "<IsTruncated>true</IsTruncated><NextContinuationToken>" + more +
                             "</NextContinuationToken>") +
         "</ListBucketResult>";
}

std::string Entry(const std::string& key, const std::string& size = "5") {
  return "<Contents><Key>" + key + "</Key><Size>" + size +
         "</Size><ETag>&quot;e&quot;</ETag></Contents>";
}

TEST(ObjectClient, ListsAllPages) {
  HubServer server([](const HubRequest& request) {
    const bool is_second = request.target.find("continuation-token=a%2Bb") != std::string::npos;
    return HubReply{Reply(
        200, "",
        is_second ? ListPage(Entry("p/z%2Fu+v")) : ListPage(Entry("p/a") + Entry("p/b"), "a+b"))};
  });
  ObjectStore store(kBucket, FastOptions(server));

  const std::vector<ObjectInfo> objects = ObjectClient(store).List("p/", 10);

  ASSERT_EQ(objects.size(), 3u);
  EXPECT_EQ(objects[2].key, "p/z/u v");
  EXPECT_EQ(objects[2].size, 5u);
  EXPECT_EQ(objects[2].etag, "\"e\"");
  EXPECT_EQ(server.requests().size(), 2u);
}

TEST(ObjectClient, ListsThatLieAreRefused) {
  const auto refusal_of = [](const std::string& body) {
    HubServer server([&](const HubRequest&) { return HubReply{Reply(200, "", body)}; });
    ObjectStore store(kBucket, FastOptions(server));
    return FaultText(ErrorCode::kDataLoss, [&] { ObjectClient(store).List("p/", 3); });
  };
  EXPECT_TRUE(Contains(refusal_of("<html>login</html>"), "not a list"));
  EXPECT_TRUE(Contains(refusal_of("login"), "not valid XML"));
  EXPECT_TRUE(Contains(refusal_of(ListPage(Entry("q/a"))), "not below the prefix"));
  EXPECT_TRUE(Contains(refusal_of(ListPage(Entry("p/b") + Entry("p/a"))), "order"));
  EXPECT_TRUE(Contains(refusal_of(ListPage(Entry("p/b", "-1"))), "valid size"));
  EXPECT_TRUE(Contains(refusal_of(ListPage(Entry("p/b", "99999999999999999999"))), "valid size"));
  EXPECT_TRUE(Contains(refusal_of(ListPage(Entry("p/a"), "same")), "order"));
  EXPECT_TRUE(Contains(refusal_of(ListPage("", "same")), "cut"));
  EXPECT_TRUE(
      Contains(refusal_of(ListPage(Entry("p/a") + Entry("p/b") + Entry("p/c") + Entry("p/d"))),
               "more than 3"));
  EXPECT_TRUE(Contains(refusal_of(std::string((16 << 20) + 1, ' ')), "limit"));
}

TEST(ObjectClient, AMissingBucketIsNotAMissingObject) {
  HubServer server([](const HubRequest& request) {
    const bool has_bucket = request.target.find("/gone") == std::string::npos;
    return HubReply{Reply(404, "", ErrorXml(has_bucket ? "NoSuchKey" : "NoSuchBucket", "no"))};
  });
  ObjectStore store(kBucket, FastOptions(server));
  EXPECT_EQ(ObjectClient(store).Read("key", 10), std::nullopt);
  ObjectClient(store).Delete("key");
  ObjectStore gone({StoreKind::kS3, "gone", ""}, FastOptions(server));
  FaultText(ErrorCode::kNotFound, [&] { ObjectClient(gone).Read("key", 10); });
}

TEST(ObjectClient, AnUploadMayFailAfterItsGoodStatus) {
  HubServer server(
      [](const HubRequest&) { return HubReply{Reply(200, "", ErrorXml("InvalidPart", "no"))}; });
  ObjectStore store(kBucket, FastOptions(server));
  const std::string text = FaultText(ErrorCode::kFailedPrecondition, [&] {
    ObjectClient(store).FinishUpload("key", "id", {"\"a\""});
  });
  EXPECT_TRUE(Contains(text, "InvalidPart")) << text;
}

// A store in memory, with faults.
class StoreInMemory {
 public:
  HubReply Handle(const HubRequest& request) {
    const std::lock_guard lock(mutex_);
    const size_t mark = request.target.find('?');
    const std::string path = request.target.substr(0, mark);
    const std::string query = mark == std::string::npos ? "" : request.target.substr(mark + 1);
    if (request.method == "POST" && query == "uploads=") {
      ++n_begun;
      return {Reply(200, "", "<R><UploadId>id</UploadId></R>")};
    }
    if (request.method == "PUT" && query.starts_with("partNumber=")) {
      const int number = std::stoi(query.substr(11));
      if (number == refused_part) return {Reply(403, "", ErrorXml("AccessDenied", "no"))};
      parts_[number] = request.body;
      return {Reply(200, "ETag: \"p\"\r\n", "")};
    }
    if (request.method == "POST") {
      for (const auto& [number, bytes] : parts_) objects[path] += bytes;
      return {Reply(200, "", "<CompleteMultipartUploadResult/>")};
    }
    if (request.method == "DELETE") {
      ++n_aborted;
      return {Reply(204, "", "")};
    }
    if (request.method == "PUT") {
      objects[path] = request.body;
      return {Reply(200, "ETag: \"p\"\r\n", "")};
    }
    return Ranged(request, objects[path], "\"e\"");
  }

  std::map<std::string, std::string> objects;
  int refused_part = 0;
  int n_begun = 0;
  int n_aborted = 0;

 private:
  std::mutex mutex_;  // guards all
  std::map<int, std::string> parts_;
};

class Transfers : public ::testing::Test {
 protected:
  Transfers() : server_([this](const HubRequest& request) { return store_.Handle(request); }) {
    std::string text = (fs::temp_directory_path() / "tandem-transfer-XXXXXX").string();
    dir_ = mkdtemp(text.data());
    options_ = FastOptions(server_);
    options_.segment_bytes = 10'000;
    options_.part_bytes = 10'000;
    for (size_t i = 0; i < 123'456; ++i) content_.push_back(static_cast<char>(i * 31 / 7));
  }
  ~Transfers() override { fs::remove_all(dir_); }

  fs::path WriteFile(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::binary) << text;
    return dir_ / name;
  }
  static std::string ReadFile(const fs::path& path) {
    std::ostringstream out;
    out << std::ifstream(path, std::ios::binary).rdbuf();
    return out.str();
  }

  fs::path dir_;
  ObjectOptions options_;
  std::string content_;
  StoreInMemory store_;
  HubServer server_;
  std::atomic<uint64_t> n_bytes_{0};
  const OnObjectBytes count_ = [this](uint64_t n) { n_bytes_ += n; };
};

TEST_F(Transfers, LargeFilesGoInPartsAndSmallOnesInOneRequest) {
  ObjectStore store(kBucket, options_);

  UploadFiles(store, {{WriteFile("large", content_), "large"}, {WriteFile("empty", ""), "empty"}},
              count_);

  EXPECT_EQ(store_.objects.at("/bucket/large"), content_);
  EXPECT_EQ(store_.objects.at("/bucket/empty"), "");
  EXPECT_EQ(store_.n_begun, 1);
  EXPECT_EQ(store_.n_aborted, 0);
  EXPECT_EQ(n_bytes_, content_.size());
}

TEST_F(Transfers, FilesAreClosedWhenTheyAreSent) {
  ObjectStore store(kBucket, options_);
  std::vector<FileToUpload> files;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "file-" + std::to_string(i);
    files.push_back({WriteFile(name, i % 10 == 0 ? content_.substr(0, 20'001) : "x"), name});
  }
  const auto n_open = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  const auto before = n_open();
  std::atomic<int64_t> most{0};

  UploadFiles(store, files, [&](uint64_t) { most = std::max<int64_t>(most, n_open()); });

  // Two ends of each connection, its event, and the files in work.
  EXPECT_LT(most, before + 40);
}

TEST_F(Transfers, ARefusedPartEndsTheUploadAndRemovesItsParts) {
  store_.refused_part = 5;
  ObjectStore store(kBucket, options_);

  FaultText(ErrorCode::kPermissionDenied, [&] {
    UploadFiles(store, {{WriteFile("large", content_), "large"}}, count_);
  });

  EXPECT_EQ(store_.objects.count("/bucket/large"), 0u);
  EXPECT_EQ(store_.n_aborted, 1);
}

TEST_F(Transfers, FetchesInSegmentsAndResumesAtTheSizeOfTheFile) {
  store_.objects["/bucket/large"] = content_;
  store_.objects["/bucket/empty"] = "";
  WriteFile("large.incomplete", content_.substr(0, 45'000));
  ObjectStore store(kBucket, options_);

  FetchObjects(store,
               {{{"large", content_.size(), "\"e\""}, dir_ / "large"},
                {{"empty", 0, "\"e\""}, dir_ / "empty"}},
               count_);

  EXPECT_EQ(ReadFile(dir_ / "large"), content_);
  EXPECT_EQ(ReadFile(dir_ / "empty"), "");
  EXPECT_FALSE(fs::exists(dir_ / "large.incomplete"));
  EXPECT_EQ(n_bytes_, content_.size());
  std::vector<std::string> ranges;
  for (const HubRequest& request : server_.requests()) ranges.push_back(request.fields.at("range"));
  EXPECT_EQ(ranges.size(), 8u);
  EXPECT_NE(std::find(ranges.begin(), ranges.end(), "bytes=45000-54999"), ranges.end());
}

TEST_F(Transfers, AChangeDuringAFetchLeavesNoFile) {
  store_.objects["/bucket/large"] = content_;
  ObjectStore store(kBucket, options_);

  FaultText(ErrorCode::kDataLoss, [&] {
    FetchObjects(store, {{{"large", content_.size(), "\"old\""}, dir_ / "large"}}, count_);
  });

  EXPECT_FALSE(fs::exists(dir_ / "large"));
}

TEST_F(Transfers, AStopEndsAFetch) {
  store_.objects["/bucket/large"] = content_;
  std::stop_source stop;
  stop.request_stop();
  ObjectStore store(kBucket, options_, stop.get_token());

  FaultText(ErrorCode::kCancelled, [&] {
    FetchObjects(store, {{{"large", content_.size(), "\"e\""}, dir_ / "large"}}, count_);
  });
}

}  // namespace
}  // namespace tandem::engine
