// Adapters and aliases change while many streams run: each stream has one version.

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/app/app_adapters_fixture.h"

namespace tandem::server {
namespace {

constexpr int kTokens = 200;

// One streamed answer.
struct Stream {
  int status = 0;
  std::string code;    // of a refusal
  std::string answer;  // text and log-probabilities, joined: the bits of the model's output
  bool is_whole = false;
};

Stream ParseStream(const RawClient::Reply& reply) {
  Stream stream;
  stream.status = reply.status;
  if (reply.status != 200) {
    const Json body = Json::parse(reply.body, nullptr, false);
    if (body.is_object()) stream.code = body["error"]["code"].get<std::string>();
    return stream;
  }
  std::string text;
  Json logprobs = Json::array();
  std::string finish;
  for (size_t at = 0; at < reply.body.size();) {
    const size_t end = reply.body.find("\n\n", at);
    if (end == std::string::npos) return stream;
    const std::string data = reply.body.substr(at + 6, end - at - 6);
    at = end + 2;
    if (data == "[DONE]") {
      stream.is_whole = reply.complete && finish == "length" && at == reply.body.size();
      break;
    }
    const Json event = Json::parse(data, nullptr, false);
    if (!event.is_object() || event.contains("error") || event["choices"].empty()) return stream;
    const Json& choice = event["choices"][0];
    text += choice["delta"].value("content", "");
    if (choice.contains("logprobs") && choice["logprobs"].is_object()) {
      for (const Json& token : choice["logprobs"]["content"]) logprobs.push_back(token);
    }
    if (choice["finish_reason"].is_string()) finish = choice["finish_reason"];
  }
  stream.answer = text + logprobs.dump();
  return stream;
}

class AppAdaptersUnderLoad : public AppAdaptersTest {
 protected:
  static void SetUpTestSuite() {
    AppAdaptersTest::SetUpTestSuite();
    tests::WriteRandomAdapter(directory_->path() / "tiny", 16, 3, directory_->path() / "three");
  }
  AppAdaptersUnderLoad() {
    StartApp(WithAdmin());
    known_["tiny"] = Ended("tiny");
    for (const char* version : kVersions) {
      Load(version, version);
      known_[version] = Ended(version);
      Admin("/admin/adapters/unload", {{"name", version}});
    }
    std::set<std::string> different;
    for (const auto& [name, answer] : known_) different.insert(answer);
    EXPECT_EQ(different.size(), known_.size()) << "answers that tell nothing apart";
  }

  static std::string Request(const std::string& model) {
    Json body = Chat("hello");
    body["model"] = model;
    body["max_tokens"] = kTokens;
    body["ignore_eos"] = true;
    body["logprobs"] = true;
    body["stream"] = true;
    return Post("/v1/chat/completions", body.dump());
  }
  Stream Ask(const std::string& model) { return ParseStream(AppTest::Ask(Request(model))); }
  std::string Ended(const std::string& model) {
    const Stream stream = Ask(model);
    EXPECT_TRUE(stream.is_whole) << model << " " << stream.status << " " << stream.code;
    return stream.answer;
  }
  // The version that gives this answer; empty if none does.
  std::string VersionOf(const std::string& answer) const {
    for (const auto& [version, known] : known_) {
      if (known == answer) return version;
    }
    return "";
  }
  void SetAlias(const std::string& name, const std::string& target) {
    EXPECT_EQ(Put("/admin/aliases/" + name, {{"target", target}}).status, 200);
  }

  static constexpr std::array kVersions = {"one", "two", "three"};
  std::map<std::string, std::string> known_;  // by version: directory of the adapter, or "tiny"
};

// Replies that the clients have received.
struct Seen {
  std::mutex mutex;                                       // guards the rest
  std::map<std::string, std::set<std::string>> versions;  // by name
  std::vector<std::string> faults;
  int n_streams = 0;
  int n_crossed = 0;  // streams during which something changed
  int n_absent = 0;   // streams refused because the name was gone
};

TEST_F(AppAdaptersUnderLoad, EveryStreamIsOfOneVersionAndNoneFails) {
  const std::map<std::string, std::set<std::string>> allowed = {{"tiny", {"tiny"}},
                                                                {"still", {"one"}},
                                                                {"blue", {"two"}},
                                                                {"prod", {"one", "two"}},
                                                                {"swap", {"one", "two", "three"}},
                                                                {"come", {"one", "two", "three"}}};
  Load("still", "one");
  Load("blue", "two");
  Load("swap", "one");
  SetAlias("prod", "still");
  std::atomic<bool> is_over{false};
  std::atomic<int> n_changes{0};
  Seen seen;
  std::vector<std::thread> clients;
  for (size_t client = 0; client < 6; ++client) {
    clients.emplace_back([&, client] {
      auto next = allowed.begin();
      std::advance(next, client);
      while (!is_over) {
        const auto& [name, versions] = *next;
        const int changes = n_changes;
        const Stream stream = Ask(name);
        const std::string version = VersionOf(stream.answer);
        const std::lock_guard lock(seen.mutex);
        ++seen.n_streams;
        if (stream.status == 404 && stream.code == "model_not_found" && name == "come") {
          ++seen.n_absent;
        } else if (!stream.is_whole || versions.count(version) == 0) {
          seen.faults.push_back(name + ": " + std::to_string(stream.status) + " " + stream.code +
                                " '" + version + "'");
        } else {
          seen.versions[name].insert(version);
          seen.n_crossed += changes != n_changes ? 1 : 0;
        }
        if (++next == allowed.end()) next = allowed.begin();
      }
    });
  }
  // A client that changes something gets the new answer at once.
  const auto has_seen_enough = [&] {
    const std::lock_guard lock(seen.mutex);
    return seen.versions == allowed && seen.n_streams >= 60 && seen.n_crossed >= 20 &&
           seen.n_absent > 0;
  };
  const auto step = [&](const auto& change) {
    change();
    ++n_changes;
  };
  int round = 0;
  for (; round < 500 && (round < 6 || !has_seen_enough()); ++round) {
    const std::string version = kVersions[static_cast<size_t>(round) % kVersions.size()];
    const std::string next = round % 2 == 0 ? "blue" : "still";
    step([&] { Load("swap", version, true); });
    EXPECT_EQ(VersionOf(Ended("swap")), version);
    step([&] { Load("come", version); });
    EXPECT_EQ(VersionOf(Ended("come")), version);
    std::string previous;
    step([&] { previous = Member(Put("/admin/aliases/prod", {{"target", next}}), "previous"); });
    EXPECT_EQ(VersionOf(Ended("prod")), next == "blue" ? "two" : "one");
    step([&] { SetAlias("prod", previous); });
    EXPECT_EQ(VersionOf(Ended("prod")), previous == "blue" ? "two" : "one");
    step([&] { SetAlias("prod", next); });
    step([&] { EXPECT_EQ(Admin("/admin/adapters/unload", {{"name", "come"}}).status, 200); });
    EXPECT_EQ(Ask("come").code, "model_not_found");
  }
  is_over = true;
  for (std::thread& client : clients) client.join();

  EXPECT_EQ(seen.faults, std::vector<std::string>());
  EXPECT_TRUE(has_seen_enough()) << round << " rounds, " << seen.n_streams << " streams, "
                                 << seen.n_crossed << " crossed, " << seen.n_absent << " absent";
  WaitUntilIdle();
}

TEST_F(AppAdaptersUnderLoad, AStreamEndsOnTheWeightsItBeganWith) {
  Load("swap", "one");
  Load("gone", "two");
  Load("blue", "three");
  SetAlias("prod", "gone");
  const std::array<std::pair<const char*, const char*>, 3> streams = {
      {{"swap", "one"}, {"gone", "two"}, {"prod", "two"}}};
  // Repeats until all streams still run after the last change.
  for (int round = 0; round < 200; ++round) {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (const auto& [name, version] : streams) {
      clients.push_back(std::make_unique<RawClient>(app_->port()));
      clients.back()->Send(Request(name));
    }
    for (const auto& client : clients) ASSERT_TRUE(client->ReadUntil("\"content\":"));
    Load("swap", "two", true);
    SetAlias("prod", "blue");
    EXPECT_EQ(Admin("/admin/adapters/unload", {{"name", "gone"}}).status, 200);
    const bool all_ran = Stats().requests_running == 3;
    for (size_t i = 0; i < clients.size(); ++i) {
      const Stream stream = ParseStream(clients[i]->Read());
      EXPECT_TRUE(stream.is_whole) << streams[i].first;
      EXPECT_EQ(VersionOf(stream.answer), streams[i].second) << streams[i].first;
    }
    EXPECT_EQ(VersionOf(Ended("swap")), "two");
    EXPECT_EQ(VersionOf(Ended("prod")), "three");
    EXPECT_EQ(Ask("gone").code, "model_not_found");
    if (all_ran) return;
    Load("swap", "one", true);
    Load("gone", "two");
    SetAlias("prod", "gone");
  }
  ADD_FAILURE() << "no stream ever lasted as long as the changes";
}

}  // namespace
}  // namespace tandem::server
