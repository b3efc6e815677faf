#include "bench/load/load_run.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/error.h"

namespace tandem::bench {
namespace {

using Outcome = RequestRecord::Outcome;

std::string Stream(const std::string& events) {
  return "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events;
}

std::string Plain(const std::string& body, const std::string& status = "200 OK") {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

const std::string kText = "data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":null}]}\n\n";
const std::string kEnd =
    "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\n"
    "data: [DONE]\n\n";

// Sends the n-th list of answers on the n-th connection, one per request, and then closes it. Ends
// after the last connection.
class ScriptedServer {
 public:
  explicit ScriptedServer(std::vector<std::vector<std::string>> connections)
      : listener_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(listener_.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.fd(), 16), 0);
    getsockname(listener_.fd(), reinterpret_cast<sockaddr*>(&address), &size);
    target_ = ParseTarget("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "");
    thread_ = std::thread([this, connections = std::move(connections)] {
      for (const auto& answers : connections) Serve(answers);
    });
  }
  ~ScriptedServer() { thread_.join(); }

  const HttpTarget& target() const { return target_; }

 private:
  void Serve(const std::vector<std::string>& answers) {
    const Socket connection(accept(listener_.fd(), nullptr, nullptr));
    for (const std::string& answer : answers) {
      std::string request;
      char buffer[4096];
      // The bodies are far smaller than a read, and end with a brace.
      while (!request.ends_with("}")) {
        const ssize_t got = recv(connection.fd(), buffer, sizeof buffer, 0);
        if (got <= 0) return;
        request.append(buffer, static_cast<size_t>(got));
      }
      // Sends two pieces, so that the client must wait for the rest.
      const size_t half = answer.size() / 2;
      send(connection.fd(), answer.data(), half, MSG_NOSIGNAL);
      std::this_thread::yield();
      send(connection.fd(), answer.data() + half, answer.size() - half, MSG_NOSIGNAL);
    }
  }

  Socket listener_;
  HttpTarget target_;
  std::thread thread_;
};

PromptMaker Prompts(bool stream = true, double abort_fraction = 0) {
  PromptOptions options;
  options.endpoint = PromptOptions::Endpoint::kCompletions;
  options.kind = PromptOptions::Kind::kIds;
  options.model = "m";
  options.prompt_tokens = {3, 3};
  options.output_tokens = {2, 2};
  options.stream = stream;
  options.abort_fraction = abort_fraction;
  return PromptMaker(options, {});
}

LoadRun RunOne(const ScriptedServer& server, const PromptMaker& prompts, int64_t requests = 1) {
  return RunLoad(server.target(), prompts,
                 {.path = "/v1/completions", .streams = 1, .requests = requests, .arrivals = {}});
}

TEST(LoadRun, AStreamedAnswerIsCountedAndTimed) {
  const ScriptedServer server({{Stream(kText + kText + kEnd)}});

  const LoadRun run = RunOne(server, Prompts());

  ASSERT_EQ(run.records.size(), 1u);
  const RequestRecord& record = run.records[0];
  EXPECT_EQ(record.outcome, Outcome::kOk) << record.fault << record.detail;
  EXPECT_EQ(record.pieces, 2);
  EXPECT_EQ(record.usage.prompt_tokens, 3);
  EXPECT_EQ(record.usage.completion_tokens, 2);
  EXPECT_GE(record.first_s, record.due_s);
  EXPECT_GE(record.end_s, record.last_s);
  EXPECT_EQ(run.gaps_ms.size(), 1u);
  EXPECT_GE(run.wall_s, record.end_s - record.due_s);
}

TEST(LoadRun, APlainAnswerIsCounted) {
  const ScriptedServer server({{Plain(
      R"({"choices":[{"text":"x","finish_reason":"stop"}],"usage":{"completion_tokens":9}})")}});

  const LoadRun run = RunOne(server, Prompts(false));

  ASSERT_EQ(run.records.size(), 1u);
  EXPECT_EQ(run.records[0].outcome, Outcome::kOk) << run.records[0].fault;
  EXPECT_EQ(run.records[0].usage.completion_tokens, 9);
  EXPECT_LT(run.records[0].first_s, 0);
}

TEST(LoadRun, EveryFaultIsCountedByItsKind) {
  const std::map<std::string, std::string> faults = {
      {"status 503", Plain(R"({"error":{"message":"full"}})", "503 Service Unavailable")},
      {"status 500", Plain("not json", "500 Internal Server Error")},
      {"error event", Stream(kText + "data: {\"error\":{\"message\":\"broke\"}}\n\n" + kEnd)},
      {"no finish", Stream(kText)},
      {"malformed answer", Stream("data: nonsense\n\n")},
      {"closed early", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"},
  };
  for (const auto& [fault, answer] : faults) {
    const ScriptedServer server({{answer}});

    const LoadRun run = RunOne(server, Prompts());

    ASSERT_EQ(run.records.size(), 1u);
    EXPECT_EQ(run.records[0].outcome, Outcome::kFailed);
    EXPECT_EQ(run.records[0].fault, fault);
  }
}

TEST(LoadRun, ARequestThatCrossedWithAClosingConnectionIsSentAgain) {
  const std::string plain = Plain(R"({"choices":[{"text":"x","finish_reason":"stop"}]})");
  // The first connection serves one request, although it announced keep-alive.
  const ScriptedServer server({{plain}, {plain, plain}});

  const LoadRun run = RunOne(server, Prompts(false), 3);

  ASSERT_EQ(run.records.size(), 3u);
  for (const RequestRecord& record : run.records) EXPECT_EQ(record.outcome, Outcome::kOk);
  EXPECT_EQ(run.connections, 2);
}

TEST(LoadRun, AConnectionThatServedNothingIsNotTriedAgain) {
  const ScriptedServer server({{""}});

  const LoadRun run = RunOne(server, Prompts(false));

  ASSERT_EQ(run.records.size(), 1u);
  EXPECT_EQ(run.records[0].fault, "closed early");
}

TEST(LoadRun, AClientThatLeavesIsNeitherAnsweredNorFailed) {
  const ScriptedServer server({{Stream(kText + kText + kEnd)}});

  const LoadRun run = RunOne(server, Prompts(true, 1.0));

  ASSERT_EQ(run.records.size(), 1u);
  EXPECT_EQ(run.records[0].outcome, Outcome::kAborted);
  EXPECT_EQ(run.records[0].pieces, 1);
}

TEST(LoadRun, AnOpenLoopSendsAtItsTimesWhateverIsInFlight) {
  const ScriptedServer server({{Stream(kText + kEnd)}, {Stream(kText + kEnd)}});
  LoadRunOptions options{.path = "/v1/completions", .arrivals = {0, 0.02}};

  const LoadRun run = RunLoad(server.target(), Prompts(), options);

  ASSERT_EQ(run.records.size(), 2u);
  for (const RequestRecord& record : run.records) {
    EXPECT_EQ(record.outcome, Outcome::kOk) << record.fault;
    EXPECT_GE(record.sent_s, record.due_s);
  }
  EXPECT_GE(run.records[1].due_s - run.records[0].due_s, 0.0199);
}

TEST(LoadRun, ASilentServerMeetsTheTimeout) {
  // The backlog accepts connections; nothing answers them.
  const Socket listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(listener.fd(), 4), 0);
  getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  const auto target =
      ParseTarget("http://127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "");

  const LoadRun run = RunLoad(target, Prompts(),
                              {.path = "/v1/completions",
                               .streams = 2,
                               .requests = 2,
                               .arrivals = {},
                               .request_timeout_s = 0.05});

  ASSERT_EQ(run.records.size(), 2u);
  for (const RequestRecord& record : run.records) EXPECT_EQ(record.fault, "timeout");
}

TEST(LoadRun, AServerThatIsGoneEndsTheRun) {
  try {
    RunLoad(ParseTarget("http://127.0.0.1:1", ""), Prompts(),
            {.path = "/v1/completions", .streams = 4, .duration_s = 60, .arrivals = {}});
    FAIL() << "nobody should answer on port 1";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  }
}

}  // namespace
}  // namespace tandem::bench
