#include "engine/hub/http_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "tests/engine/hub/hub_server.h"

namespace tandem::engine {
namespace {

using tests::HubReply;
using tests::HubRequest;
using tests::HubServer;
using tests::Reply;

HubOptions OptionsFor(const std::string& endpoint) {
  HubOptions options;
  options.endpoint = endpoint;
  return options;
}

HttpClient::Request Asking(const std::string& url) {
  HttpClient::Request request;
  request.url = *ParseUrl(url);
  return request;
}

std::string Body(HttpClient& client, const std::string& url) {
  client.SendFollowing(Asking(url));
  return client.ReadWholeBody(1 << 20);
}

// The server's reply; the test's thread may change it.
class Said {
 public:
  void operator=(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;  // guards text_
  std::string text_;
};

template <typename Function>
std::string Fault(ErrorCode code, const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "there was none";
  return {};
}

TEST(HttpClient, BytesBehindAnAnswerAreNotTheNextOnes) {
  std::atomic<int> n_asked{0};
  HubServer server([&](const HubRequest& request) {
    const bool is_first = n_asked++ == 0;
    const std::string reply = Reply(200, "", is_first ? "one" : "two", request.method == "HEAD");
    return HubReply{reply + (is_first ? Reply(200, "", "smuggled") : "")};
  });
  for (const char* method : {"GET", "HEAD"}) {
    n_asked = 0;
    HttpShared shared(OptionsFor(server.url()), {});
    HttpClient client(shared);
    HttpClient::Request request = Asking(server.url() + "/");
    request.method = method;
    client.Send(request);
    EXPECT_EQ(client.ReadWholeBody(100), request.method == "GET" ? "one" : "");

    EXPECT_EQ(Body(client, server.url() + "/"), "two");
  }
}

TEST(HttpClient, HeadsThatOnlyAnnounceAreSkipped) {
  const std::string hint = "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n";
  Said hints;
  HubServer server(
      [&](const HubRequest&) { return HubReply{hints.get() + Reply(200, "X: y\r\n", "body")}; });
  HttpShared shared(OptionsFor(server.url()), {});
  for (int n_hints = 0; n_hints < 8; ++n_hints) {
    HttpClient client(shared);
    const HttpHead head = client.Send(Asking(server.url() + "/"));
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.Find("x"), "y");
    EXPECT_EQ(head.Find("link"), "");
    EXPECT_EQ(client.ReadWholeBody(100), "body");
    hints = hints.get() + hint;
  }
  for (const std::string& bad :
       {hints.get() + hint + hint, std::string("HTTP/1.1 101 Switching Protocols\r\n\r\n")}) {
    hints = bad;
    HttpClient client(shared);
    const std::string what =
        Fault(ErrorCode::kDataLoss, [&] { client.Send(Asking(server.url() + "/")); });
    EXPECT_NE(what.find("unexpected status 10"), std::string::npos) << what;
  }
}

TEST(HttpClient, FaultsWithinABodyNameItsUrl) {
  Said reply;
  HubServer server([&](const HubRequest&) { return HubReply{reply.get(), true}; });
  HttpShared shared(OptionsFor(server.url()), {});
  const struct {
    std::string reply;
    ErrorCode code;
    const char* what;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n123", ErrorCode::kUnavailable,
       "the connection closed before the response was complete"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ErrorCode::kDataLoss,
       "not HTTP/1.1"},
      {Reply(200, "", "more than ten"), ErrorCode::kDataLoss, "larger than the limit of 10"},
  };
  for (const auto& c : cases) {
    reply = c.reply;
    HttpClient client(shared);
    client.Send(Asking(server.url() + "/a/file?signature=secret"));
    const std::string what = Fault(c.code, [&] { client.ReadWholeBody(10); });
    EXPECT_TRUE(what.starts_with(server.url() + "/a/file: ")) << what;
    EXPECT_NE(what.find(c.what), std::string::npos) << what;
  }
}

TEST(HttpClient, AProxyThatWantsAPasswordIsNamed) {
  HubServer proxy([](const HubRequest&) { return HubReply{Reply(407, "", "")}; });
  HubOptions options = OptionsFor("http://hub.example");
  options.http_proxy = proxy.url();
  options.http_proxy.insert(7, "user:secret@");
  HttpShared shared(options, {});
  HttpClient client(shared);
  const Url url = *ParseUrl("http://hub.example/x");

  const HttpHead head = client.Send(Asking("http://hub.example/x"));
  const std::string what =
      Fault(ErrorCode::kPermissionDenied, [&] { ThrowHttpStatus(head, url, options); });

  EXPECT_TRUE(what.starts_with("proxy " + proxy.url() + " requires a user name")) << what;
  EXPECT_EQ(what.find("secret"), std::string::npos) << what;
}

// ---- A public endpoint must not redirect into a private network

TEST(HttpClient, APublicEndpointMayNotSendUsHome) {
  HubServer server([&](const HubRequest& request) {
    if (request.target == "/home") return HubReply{Reply(200, "", "secrets")};
    const std::string port = request.fields.at("host").substr(request.fields.at("host").find(':'));
    return HubReply{Reply(302, "Location: http://localhost" + port + "/home\r\n", "")};
  });
  HttpShared shared(OptionsFor(server.url()), {});
  {
    HttpClient client(shared);
    EXPECT_EQ(Body(client, server.url() + "/"), "secrets") << "the endpoint is private itself";
    EXPECT_FALSE(shared.endpoint_is_public);
  }

  shared.endpoint_is_public = true;
  HttpClient client(shared);
  const std::string what =
      Fault(ErrorCode::kPermissionDenied, [&] { Body(client, server.url() + "/"); });

  EXPECT_NE(what.find("a private network"), std::string::npos) << what;
  EXPECT_EQ(server.requests().size(), 3);
}

TEST(HttpClient, NorMayOneBehindAProxy) {
  Said home;
  HubServer server([&](const HubRequest& request) {
    if (request.target == "/home") return HubReply{Reply(200, "", "secrets")};
    return HubReply{Reply(302, "Location: " + home.get() + "\r\n", "")};
  });
  HubOptions options = OptionsFor("http://hub.example");
  options.http_proxy = server.url();
  options.no_proxy = "127.0.0.1";
  // Directly, and through the proxy.
  for (const std::string& location : {server.url() + "/home", std::string("http://10.0.0.1/")}) {
    home = location;
    HttpShared shared(options, {});
    HttpClient client(shared);
    const std::string what =
        Fault(ErrorCode::kPermissionDenied, [&] { Body(client, "http://hub.example/"); });
    EXPECT_NE(what.find("a private network"), std::string::npos) << what;
  }
  for (const HubRequest& request : server.requests()) {
    EXPECT_EQ(request.target, "http://hub.example/");
  }

  // A hub with a private name may redirect into the private network.
  home = server.url() + "/home";
  options.endpoint = "http://hub.localhost";
  HttpShared shared(options, {});
  HttpClient client(shared);
  EXPECT_EQ(Body(client, "http://hub.localhost/"), "secrets");
}

}  // namespace
}  // namespace tandem::engine
