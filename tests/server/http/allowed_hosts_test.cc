#include "server/http/allowed_hosts.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"
#include "tests/server/http/http_server_fixture.h"

namespace tandem::server {
namespace {

HttpOptions On(const std::string& host, std::vector<std::string> allowed = {}) {
  HttpOptions options;
  options.host = host;
  options.allowed_hosts = std::move(allowed);
  return options;
}

TEST(AllowedHosts, ThisMachineIsCalledByItsOwnNamesOnly) {
  const AllowedHosts hosts(On("127.0.0.1"));
  for (const char* own :
       {"localhost", "localhost:8080", "LocalHost.", "a.localhost:1", "127.0.0.1", "127.0.0.1:80",
        "127.8.9.1", "[::1]", "[::1]:8080", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", ""}) {
    EXPECT_TRUE(hosts.Allows(own)) << own;
  }
  for (const char* foreign :
       {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example",
        "evillocalhost", "192.168.1.7", "0.0.0.0", "[::]", "[::2]:80", "127.1", "2130706433",
        "localhost:80:80", "localhost:http", "[::1", "[::1]x", "x[::1]", ":8080"}) {
    EXPECT_FALSE(hosts.Allows(foreign)) << foreign;
  }
}

TEST(AllowedHosts, ABoundAddressIsAName) {
  const AllowedHosts v4(On("192.168.1.7"));
  EXPECT_TRUE(v4.Allows("192.168.1.7:8080"));
  EXPECT_TRUE(v4.Allows("localhost"));
  EXPECT_FALSE(v4.Allows("192.168.1.8"));

  const AllowedHosts v6(On("2001:db8::7"));
  EXPECT_TRUE(v6.Allows("[2001:DB8:0::7]:8080"));
  EXPECT_FALSE(v6.Allows("[2001:db8::8]"));
}

TEST(AllowedHosts, OnEveryAddressAnyAddressIsAllowedAndNoOtherName) {
  for (const char* any : {"0.0.0.0", "::"}) {
    const AllowedHosts hosts(On(any));
    EXPECT_TRUE(hosts.Allows("10.1.2.3:8080"));
    EXPECT_TRUE(hosts.Allows("[2001:db8::7]"));
    EXPECT_FALSE(hosts.Allows("box.evil.example"));
  }
}

TEST(AllowedHosts, ListedNamesAreAllowedAndAStarIsEveryName) {
  const AllowedHosts hosts(On("127.0.0.1", {"Tandem.Example", "[2001:db8::1]"}));
  EXPECT_TRUE(hosts.Allows("tandem.example:443"));
  EXPECT_TRUE(hosts.Allows("[2001:db8::1]:80"));
  EXPECT_FALSE(hosts.Allows("www.tandem.example"));
  EXPECT_TRUE(AllowedHosts(On("127.0.0.1", {"*"})).Allows("evil.example"));
}

TEST(AllowedHosts, WhereEveryCallerNeedsAKeyOnlyAListRestricts) {
  HttpOptions options = On("127.0.0.1");
  options.requires_key = true;
  EXPECT_TRUE(AllowedHosts(options).Allows("tandem.example"));
  options.allowed_hosts = {"tandem.example"};
  EXPECT_TRUE(AllowedHosts(options).Allows("tandem.example"));
  EXPECT_FALSE(AllowedHosts(options).Allows("evil.example"));
}

TEST(ListenHost, WhatIsNoAddressIsNamedAsSuch) {
  for (const char* bad : {"300.1.1.1", "127.evil.example", "[::1]", "", "localhost:80"}) {
    try {
      ParseListenHost(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("must be an IP address"), std::string::npos);
    }
  }
  EXPECT_TRUE(ParseListenHost("127.4.5.6").is_loopback);
  EXPECT_TRUE(ParseListenHost("localhost").is_loopback);
  EXPECT_FALSE(ParseListenHost("0.0.0.0").is_loopback);
}

// ---- over a connection

TEST_F(HttpServerTest, AForeignHostReachesNoHandlerWhateverTheMethod) {
  StartServer();
  for (const char* line : {"GET /health", "HEAD /health", "POST /echo", "DELETE /v1/models/a",
                           "OPTIONS /echo", "OPTIONS *", "GET /nowhere"}) {
    const auto reply = Ask(std::string(line) +
                           " HTTP/1.1\r\nHost: evil.example:8080\r\nContent-Length: 0\r\n\r\n");
    EXPECT_EQ(reply.status, 421) << line;
    EXPECT_FALSE(reply.headers.contains("access-control-allow-origin")) << line;
  }
  const auto told = Ask("GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n");
  EXPECT_NE(told.body.find("host_not_allowed"), std::string::npos);
  EXPECT_NE(told.body.find("--allowed-host"), std::string::npos);
  EXPECT_EQ(Ask("GET /health HTTP/1.0\r\n\r\n").status, 200) << "HTTP/1.0 needs no Host";
  EXPECT_EQ(Ask("GET /health HTTP/1.1\r\nHost: [::1]:9\r\n\r\n").status, 200);
}

TEST_F(HttpServerTest, ABodyForAForeignHostIsNotKept) {
  StartServer();
  RawClient client(server_->port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: evil.example\r\nExpect: 100-continue\r\n"
      "Content-Length: 5\r\n\r\n");
  EXPECT_EQ(client.Read().status, 421);
}

TEST_F(HttpServerTest, PagesOfOtherOriginsAreRefusedWhateverTheMethod) {
  StartServer();
  for (const char* origin : {"https://evil.example", "null", "http://localhost.evil.example"}) {
    for (const char* line : {"GET /health", "POST /echo"}) {
      const auto reply =
          Ask(std::string(line) + " HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
              "\r\nContent-Length: 0\r\n\r\n");
      EXPECT_EQ(reply.status, 403) << line << origin;
      EXPECT_NE(reply.body.find("origin_not_allowed"), std::string::npos);
    }
  }
  const std::string head = "POST /echo HTTP/1.1\r\nContent-Length: 0\r\n";
  EXPECT_EQ(Ask(head + "Host: localhost\r\nOrigin: http://localhost:3000\r\n\r\n").status, 200);
  EXPECT_EQ(Ask(head + "Host: localhost\r\n\r\n").status, 200) << "no browser";
}

TEST_F(HttpServerTest, PagesOfInstalledProgramsMaySendAndOtherSchemesMayNot) {
  StartServer();
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n";
  for (const std::string origin :
       {"app://obsidian.md", "tauri://localhost", "vscode-file://x", "vscode-webview://0a1b"}) {
    const auto reply = Ask(head + "Origin: " + origin + "\r\n\r\n");
    EXPECT_EQ(reply.status, 200) << origin;
    EXPECT_EQ(reply.headers.at("access-control-allow-origin"), origin);
  }
  for (const char* origin : {"app", "apps://x", "chrome-extension://x", "file://", "https://app"}) {
    EXPECT_EQ(Ask(head + "Origin: " + origin + "\r\n\r\n").status, 403) << origin;
  }
}

TEST_F(HttpServerTest, APageOfTheServersOwnHostIsNoForeignPage) {
  HttpOptions options;
  options.allowed_hosts = {"ui.example"};
  StartServer(options);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: ui.example\r\nContent-Length: 0\r\n";

  EXPECT_EQ(Ask(head + "Origin: https://UI.example\r\n\r\n").status, 200);
  EXPECT_EQ(Ask(head + "Origin: https://ui.example.evil.example\r\n\r\n").status, 403);
}

TEST_F(HttpServerTest, AConfiguredOriginIsTheOneThatMaySend) {
  HttpOptions options;
  options.cors_origin = "https://app.example";
  StartServer(options);
  const std::string head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n";
  EXPECT_EQ(Ask(head + "Origin: https://app.example\r\n\r\n").status, 200);
  EXPECT_EQ(Ask(head + "Origin: http://localhost:3000\r\n\r\n").status, 403);

  options.cors_origin = "*";
  StartServer(options);
  EXPECT_EQ(Ask(head + "Origin: https://evil.example\r\n\r\n").status, 200);
}

}  // namespace
}  // namespace tandem::server
