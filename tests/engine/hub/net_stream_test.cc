#include "engine/hub/net_stream.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/engine/hub/hub_server.h"

namespace tandem::engine {
namespace {

constexpr NetTimeouts kTimeouts{std::chrono::seconds(20), std::chrono::seconds(20)};

tests::HubReply Silence(const tests::HubRequest&) { return {""}; }

TEST(NetStream, PrivateAddressesAreRefusedWhereTheyAreForbidden) {
  tests::HubServer server(Silence);
  const TlsClientContext tls;
  const StopEvent stop{std::stop_token()};
  const std::string port = std::to_string(ParseUrl(server.url())->port);
  for (const std::string host :
       {"127.0.0.1", "localhost", "127.1.2.3", "[::ffff:127.0.0.1]", "10.0.0.1", "172.31.0.1",
        "192.168.1.1", "169.254.169.254", "[::1]", "[fe80::1]", "[fd00::1]", "0.0.0.0"}) {
    try {
      const NetStream stream({*ParseUrl("http://" + host + ":" + port), std::nullopt, true}, tls,
                             kTimeouts, stop);
      ADD_FAILURE() << host;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPermissionDenied) << host << ": " << error.what();
    }
  }

  const NetStream stream({*ParseUrl(server.url()), std::nullopt, false}, tls, kTimeouts, stop);
  EXPECT_TRUE(stream.is_private());
}

TEST(NetStream, SomeHostsArePrivateByTheirNames) {
  for (const char* host :
       {"localhost", "hub.localhost", "127.0.0.1", "10.1.2.3", "::1", "fd00::1"}) {
    EXPECT_TRUE(IsPrivateHost(host)) << host;
  }
  for (const char* host : {"hub.example", "8.8.8.8", "2001:4860:4860::8888", "localhost.example"}) {
    EXPECT_FALSE(IsPrivateHost(host)) << host;
  }
}

TEST(NetStream, AProxyIsNotAskedForPrivateAddressesEither) {
  tests::HubServer proxy(Silence);
  const TlsClientContext tls;
  const StopEvent stop{std::stop_token()};
  for (const char* url : {"http://10.0.0.1/", "https://localhost/"}) {
    try {
      const NetStream stream({*ParseUrl(url), ParseUrl(proxy.url()), true}, tls, kTimeouts, stop);
      ADD_FAILURE() << url;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPermissionDenied) << error.what();
    }
  }
}

TEST(NetStream, AStopEndsAWait) {
  tests::HubServer server(Silence);
  const TlsClientContext tls;
  std::stop_source source;
  const StopEvent stop(source.get_token());
  NetStream stream({*ParseUrl(server.url()), std::nullopt, false}, tls, kTimeouts, stop);
  std::thread stopper([&] { source.request_stop(); });

  std::array<char, 16> buffer;
  try {
    stream.Read(buffer);
    ADD_FAILURE() << "nothing was sent";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
  }
  stopper.join();
}

TEST(NetStream, SilenceIsBorneForATime) {
  tests::HubServer server(Silence);
  const TlsClientContext tls;
  const StopEvent stop{std::stop_token()};
  NetStream stream({*ParseUrl(server.url()), std::nullopt, false}, tls,
                   {std::chrono::seconds(20), std::chrono::milliseconds(10)}, stop);

  std::array<char, 16> buffer;
  try {
    stream.Read(buffer);
    ADD_FAILURE() << "nothing was sent";
  } catch (const TransientFault& fault) {
    EXPECT_EQ(fault.code(), ErrorCode::kDeadlineExceeded);
  }
}

TEST(NetStream, WhoSpeaksNoTlsIsNotTalkedTo) {
  tests::HubServer server([](const tests::HubRequest&) {
    return tests::HubReply{"HTTP/1.1 200 OK\r\n\r\n", true};
  });
  const TlsClientContext tls;
  const StopEvent stop{std::stop_token()};
  Url url = *ParseUrl(server.url());
  url.is_https = true;
  EXPECT_THROW(NetStream({url, std::nullopt, false}, tls,
                         {std::chrono::milliseconds(200), std::chrono::seconds(20)}, stop),
               TransientFault);
}

}  // namespace
}  // namespace tandem::engine
