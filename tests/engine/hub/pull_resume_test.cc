#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <set>

#include "tests/engine/hub/pull_fixture.h"

// Pulls that resume: broken connections, moved files, busy hubs.
namespace tandem::engine {
namespace {

TEST_F(PullTest, CutConnectionsGoOnFromWhereTheyEnded) {
  std::mutex mutex;
  std::set<std::string> met;  // ends of ranges; the first answer to each is cut
  on_request_ = [&](const HubRequest& request) -> std::optional<HubReply> {
    if (!request.target.starts_with("/cdn/")) return std::nullopt;
    const std::string range = request.fields.at("range");
    const std::lock_guard lock(mutex);
    if (!met.insert(range.substr(range.find('-'))).second) return std::nullopt;
    const std::string whole = RangeReply(request, files_.at("model.safetensors"));
    return HubReply{whole.substr(0, whole.size() - 1000), true};
  };
  Start();

  ExpectPulled(Pull());
  EXPECT_GE(met.size(), 16u);
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
    EXPECT_NE(Refusal(ErrorCode::kDataLoss).find("but Content-Length is"), std::string::npos);
    EXPECT_EQ(Arrived(), 1000000);
  }
  AnswerAsUsual();

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

  // A server that repeats its claim may be right.
  fs::remove_all(dir_ / "models--org--name");
  LeavePartial(files_["model.safetensors"].substr(0, 1000000));
  n_asked = 0;
  n_whole = 1000;
  ExpectPulled(Pull());
  EXPECT_EQ(n_asked, 2);
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
  // Two parts are requested at the old location. One finds it expired and moves to the new one.
  // Only then does the other get its answer, with the old location's ETag.
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

TEST_F(PullTest, AWrongBeginningIsFetchedAgain) {
  Start();
  LeavePartial(std::string(1000000, 'x'));

  ExpectPulled(Pull());
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
    return HubReply{"HTTP/1.1 206 Partial Content\r\n"};  // the reply ends here
  };
  Start();
  try {
    Pull(stop.get_token());
    ADD_FAILURE() << "it was pulled";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  EXPECT_EQ(Arrived(), 65536);

  AnswerAsUsual();
  ExpectPulled(Pull());
}

}  // namespace
}  // namespace tandem::engine
