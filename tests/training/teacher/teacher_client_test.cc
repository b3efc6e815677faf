// The client of a teacher's server: repetition, refusals, keys.

#include "training/teacher/teacher_client.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/training/teacher/stub_teacher.h"

namespace tandem::training {
namespace {

using namespace std::chrono_literals;

const std::vector<TeacherPrompt> kOnePrompt = {{5, {10, 11, 12}, {1, 2}}};

TeacherOptions OptionsOfStub(const StubTeacher& teacher) {
  return {.url = teacher.url(),
          .model = "stub",
          .key = "sk-secret",
          .limits = {3, 256},
          .max_attempts = 3,
          .first_backoff = 1ms};
}

template <class Action>
std::string ClientFault(ErrorCode code, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(std::string(error.what()).find("sk-secret"), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no fault";
  return "";
}

TEST(TeacherClientTest, AsksWithItsKeyBelowTheBase) {
  StubTeacher teacher;
  TeacherOptions options = OptionsOfStub(teacher);
  for (const char* end : {"", "/"}) {
    options.url = teacher.url() + end;
    TeacherClient client(options, {});
    const TeacherAnswer answer = client.Score(kOnePrompt);
    ASSERT_EQ(answer.samples.size(), 1u);
    EXPECT_EQ(answer.samples[0].ids.size(), 6u);
    EXPECT_EQ(answer.samples[0].ids[0], 11);
  }
  const auto request = teacher.requests().back();
  EXPECT_EQ(request.target, "/v1/completions");
  EXPECT_EQ(request.fields.at("authorization"), "Bearer sk-secret");
}

TEST(TeacherClientTest, TakesTheOnlyModelOfTheServer) {
  StubTeacher teacher;
  TeacherOptions options = OptionsOfStub(teacher);
  options.model.clear();
  TeacherClient client(options, {});
  EXPECT_EQ(client.model(), "stub");
}

TEST(TeacherClientTest, RepeatsWhatMayPass) {
  StubTeacher teacher;
  int n = 0;
  teacher.change = [&](const tests::HubRequest&, const std::string& body) -> tests::HubReply {
    if (n++ == 0) return {tests::Reply(503, "Retry-After: 0\r\n", "{}")};
    if (n == 2) return {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", true};
    return {tests::Reply(200, "", body)};
  };
  TeacherClient client(OptionsOfStub(teacher), {});
  EXPECT_EQ(client.Score(kOnePrompt).samples.size(), 1u);
  EXPECT_EQ(n, 3);
}

TEST(TeacherClientTest, GivesUpWithTheUrlAndTheServersWords) {
  StubTeacher teacher;
  int status = 500;
  teacher.change = [&](const tests::HubRequest&, const std::string&) -> tests::HubReply {
    return {tests::Reply(status, "", R"({"error":{"message":"no sk-secret today\u001b[2J"}})")};
  };
  TeacherClient client(OptionsOfStub(teacher), {});
  std::string fault = ClientFault(ErrorCode::kUnavailable, [&] { client.Score(kOnePrompt); });
  EXPECT_NE(fault.find(teacher.url() + "/completions: status 500 'no [key] today"),
            std::string::npos)
      << fault;
  EXPECT_NE(fault.find("3 attempts"), std::string::npos) << fault;
  EXPECT_EQ(fault.find('\x1b'), std::string::npos);
  EXPECT_EQ(teacher.requests().size(), 3u);

  status = 401;
  fault = ClientFault(ErrorCode::kUnauthenticated, [&] { client.Score(kOnePrompt); });
  EXPECT_NE(fault.find("TANDEM_TEACHER_KEY"), std::string::npos) << fault;
  status = 404;
  fault = ClientFault(ErrorCode::kNotFound, [&] { client.Score(kOnePrompt); });
  EXPECT_NE(fault.find("distill.teacher_model"), std::string::npos) << fault;
  status = 400;
  ClientFault(ErrorCode::kFailedPrecondition, [&] { client.Score(kOnePrompt); });
  status = 302;
  ClientFault(ErrorCode::kFailedPrecondition, [&] { client.Score(kOnePrompt); });
  EXPECT_EQ(teacher.requests().size(), 7u) << "refusals are not repeated";
}

TEST(TeacherClientTest, AServerThatVanishedIsUnavailable) {
  std::string url;
  {
    StubTeacher teacher;
    url = teacher.url();
  }
  TeacherClient client({.url = url,
                        .model = "stub",
                        .key = "",
                        .limits = {3, 256},
                        .max_attempts = 2,
                        .first_backoff = 1ms},
                       {});
  const std::string fault = ClientFault(ErrorCode::kUnavailable, [&] { client.Score(kOnePrompt); });
  EXPECT_NE(fault.find(url.substr(0, url.size() - 3)), std::string::npos) << fault;
}

TEST(TeacherClientTest, AStopEndsTheWait) {
  StubTeacher teacher;
  std::stop_source stop;
  teacher.change = [&](const tests::HubRequest&, const std::string&) -> tests::HubReply {
    stop.request_stop();
    return {tests::Reply(503, "", "{}")};
  };
  TeacherOptions options = OptionsOfStub(teacher);
  options.first_backoff = 600s;
  TeacherClient client(options, stop.get_token());
  ClientFault(ErrorCode::kCancelled, [&] { client.Score(kOnePrompt); });
}

TEST(TeacherClientTest, TellsTheTextOfTokensOrNothing) {
  StubTeacher teacher;
  TeacherClient client(OptionsOfStub(teacher), {});
  const std::vector<TokenId> tokens = {'a', 'b'};
  EXPECT_EQ(client.TextOf(tokens), "ab");
  teacher.change = [](const tests::HubRequest&, const std::string&) -> tests::HubReply {
    return {tests::Reply(404, "", "{}")};
  };
  EXPECT_EQ(client.TextOf(tokens), std::nullopt);
}

TEST(TeacherClientTest, BadUrlsAndKeysAreRefused) {
  const auto refuse = [](const std::string& url, const std::string& key) {
    TeacherOptions options;
    options.url = url;
    options.key = key;
    ClientFault(ErrorCode::kInvalidArgument, [&] { TeacherClient(options, {}); });
  };
  for (const char* url : {"", "ftp://a/v1", "http://me:pw@a/v1", "http://a/v1?key=1"}) {
    refuse(url, "");
  }
  refuse("http://a/v1", "sk-secret\r\nX: y");
}

}  // namespace
}  // namespace tandem::training
