#include "server/http/tls.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <memory>
#include <random>
#include <string>

#include "engine/base/error.h"
#include "server/http/http_server.h"
#include "server/http/response_writer.h"
#include "tests/server/http/raw_client.h"
#include "tests/server/http/test_certificate.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

// The client's side of a session, in memory. Trusts every certificate.
class TlsClient {
 public:
  explicit TlsClient(int max_version = 0, std::string protocols = "")
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
    SSL_CTX_set_security_level(context_.get(), 0);  // otherwise old versions cannot be offered
    if (max_version != 0) {
      SSL_CTX_set_min_proto_version(context_.get(), max_version);
      SSL_CTX_set_max_proto_version(context_.get(), max_version);
    }
    session_.reset(SSL_new(context_.get()));
    if (!protocols.empty()) {
      SSL_set_alpn_protos(session_.get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned int>(protocols.size()));
    }
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(in_, -1);
    SSL_set_bio(session_.get(), in_, out_);
    SSL_set_connect_state(session_.get());
  }

  // Processes bytes from the server; true once the handshake is over.
  bool Shake(const std::string& bytes) {
    BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    return SSL_do_handshake(session_.get()) == 1;
  }
  std::string TakeOutput() {
    std::string out = TextOf(out_);
    BIO_reset(out_);
    return out;
  }
  void Write(const std::string& plain) {
    SSL_write(session_.get(), plain.data(), static_cast<int>(plain.size()));
  }
  void End() { SSL_shutdown(session_.get()); }
  // Decrypts the bytes; sets has_end() at the server's close_notify.
  std::string Read(const std::string& bytes) {
    BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    std::string plain;
    char buffer[4096];
    for (;;) {
      const int n = SSL_read(session_.get(), buffer, sizeof(buffer));
      if (n <= 0) {
        has_end_ = SSL_get_error(session_.get(), n) == SSL_ERROR_ZERO_RETURN;
        return plain;
      }
      plain.append(buffer, static_cast<size_t>(n));
    }
  }
  bool has_end() const { return has_end_; }
  std::string version() const { return SSL_get_version(session_.get()); }
  std::string ServerName() const {
    const std::unique_ptr<X509, decltype(&X509_free)> peer(
        SSL_get1_peer_certificate(session_.get()), X509_free);
    if (!peer) return "";
    char name[100] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(peer.get()), NID_commonName, name,
                              sizeof(name));
    return name;
  }

 private:
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
  std::unique_ptr<SSL, decltype(&SSL_free)> session_{nullptr, SSL_free};
  BIO* in_;
  BIO* out_;
  bool has_end_ = false;
};

// Exchanges messages, `piece` bytes at a time, until both are done or one fails.
bool Handshake(TlsClient& client, TlsSession& server, size_t piece = 1 << 20) {
  std::string plain;
  bool client_done = client.Shake("");
  for (int i = 0; i < 10 && !(client_done && server.state() == TlsSession::State::kOpen); ++i) {
    const std::string hello = client.TakeOutput();
    for (size_t at = 0; at < hello.size(); at += piece) {
      server.Receive(std::string_view(hello).substr(at, piece), plain);
    }
    if (server.state() == TlsSession::State::kFailed) return false;
    client_done = client.Shake(server.TakeOutput());
  }
  return client_done && server.state() == TlsSession::State::kOpen;
}

TEST(TlsSession, CarriesBytesBothWaysInBothVersions) {
  const TlsContext context(MakeCertificate("here"));
  for (const auto& [version, name] :
       {std::pair(TLS1_2_VERSION, "TLSv1.2"), {TLS1_3_VERSION, "TLSv1.3"}}) {
    for (const size_t piece : {size_t{1}, size_t{1} << 20}) {
      TlsSession server(context);
      TlsClient client(version);
      ASSERT_TRUE(Handshake(client, server, piece)) << name;
      EXPECT_EQ(client.version(), name);
      EXPECT_EQ(client.ServerName(), "here");

      const std::string large(300'000, 'x');
      client.Write("question");
      std::string plain;
      EXPECT_EQ(server.Receive(client.TakeOutput(), plain), TlsSession::State::kOpen);
      server.Send(large);
      EXPECT_EQ(plain, "question");
      EXPECT_EQ(client.Read(server.TakeOutput()), large);

      client.End();
      EXPECT_EQ(server.Receive(client.TakeOutput(), plain), TlsSession::State::kEnded);
      server.SendEnd();
      client.Read(server.TakeOutput());
      EXPECT_TRUE(client.has_end());
    }
  }
}

TEST(TlsSession, RefusesOldVersionsAndForeignProtocols) {
  const TlsContext context(MakeCertificate("here"));
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION}) {
    TlsSession server(context);
    TlsClient client(version);
    EXPECT_FALSE(Handshake(client, server));
  }
  TlsSession old_server(context);
  TlsClient h2_only(0, "\x02h2");
  EXPECT_FALSE(Handshake(h2_only, old_server));
  EXPECT_FALSE(old_server.TakeOutput().empty());  // the alert

  TlsSession server(context);
  TlsClient both(0, "\x02h2\x08http/1.1");
  EXPECT_TRUE(Handshake(both, server));
}

TEST(TlsSession, NoticesHttpWithoutTlsAndGarbage) {
  const TlsContext context(MakeCertificate("here"));
  std::string plain;
  TlsSession http(context);
  EXPECT_EQ(http.Receive("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", plain),
            TlsSession::State::kPlainHttp);

  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::string bytes(600, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    // Half of them begin like a handshake record.
    if (seed % 2 == 0) bytes.replace(0, 5, std::string("\x16\x03\x01\x01\x00", 5));
    TlsSession garbage(context);
    EXPECT_EQ(garbage.Receive(bytes, plain), TlsSession::State::kFailed) << "seed " << seed;
  }
  EXPECT_EQ(plain, "");
}

TEST(TlsSession, DamagedRecordsEndTheSessionAndNothingElse) {
  const TlsContext context(MakeCertificate("here"));
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    TlsSession server(context);
    TlsClient client;
    ASSERT_TRUE(Handshake(client, server));
    client.Write("secret");
    std::string bytes = client.TakeOutput();
    bytes[5 + random() % (bytes.size() - 5)] ^= static_cast<char>(1 + random() % 255);
    std::string plain;

    EXPECT_EQ(server.Receive(bytes, plain), TlsSession::State::kFailed) << "seed " << seed;
    EXPECT_EQ(plain, "");
  }
}

TEST(TlsContext, RefusesPairsThatCannotServe) {
  const TlsPair good = MakeCertificate("a");
  const TlsPair other = MakeCertificate("b");
  const TlsPair bad[] = {
      {good.certificate_chain_pem, other.private_key_pem},
      {good.certificate_chain_pem, ""},
      {"", good.private_key_pem},
      {"no PEM", good.private_key_pem},
      {good.certificate_chain_pem, "no PEM"},
      {good.private_key_pem, good.certificate_chain_pem},
      {good.certificate_chain_pem.substr(0, 300), good.private_key_pem},
      {good.certificate_chain_pem +
           "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
       good.private_key_pem},
  };
  for (const TlsPair& pair : bad) {
    EXPECT_THROW(TlsContext{pair}, Error)
        << pair.certificate_chain_pem << pair.private_key_pem.size();
  }
  EXPECT_NO_THROW(TlsContext{good});
}

// Connections behave the same with TLS.
class TlsServerTest : public testing::Test {
 protected:
  void StartServer(HttpOptions options = {}) {
    options.port = 0;
    options.tls = MakeCertificate("first");
    HttpPolicy policy;
    policy.refusal = [](int status, std::string_view code, std::string_view) {
      return Response{status, std::string(code), "application/json", {}};
    };
    std::vector<Route> routes;
    routes.push_back(
        {"POST", "/echo",
         [](Request request, ResponseWriter writer) { writer.Json(200, request.body); },
         Access::kOpen});
    server_ = std::make_unique<HttpServer>(options, std::move(routes), policy);
    server_->Start();
  }

  // Connects and returns the name in the certificate.
  std::string ServerName() {
    RawClient raw(server_->port());
    TlsClient client;
    bool done = client.Shake("");
    raw.Send(client.TakeOutput());
    while (!done && raw.ReadSome()) {
      done = client.Shake(raw.TakeInput());
      raw.Send(client.TakeOutput());
    }
    return client.ServerName();
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(TlsServerTest, AnswersAndSaysGoodbye) {
  StartServer();
  RawClient raw(server_->port());
  TlsClient client;
  bool done = client.Shake("");
  raw.Send(client.TakeOutput());
  while (!done && raw.ReadSome()) {
    done = client.Shake(raw.TakeInput());
    raw.Send(client.TakeOutput());
  }
  const std::string body(400'000, 'b');

  client.Write(
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
      "400000\r\n\r\n");
  client.Write(body);
  raw.Send(client.TakeOutput());
  std::string answer;
  while (!client.has_end() && raw.ReadSome()) answer += client.Read(raw.TakeInput());

  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answer.ends_with("\r\n\r\n" + body));
  EXPECT_TRUE(client.has_end());
}

TEST_F(TlsServerTest, ShowsANewCertificateAndKeepsTheOldOneWhenTheNewIsBroken) {
  StartServer();
  EXPECT_EQ(ServerName(), "first");

  server_->ReplaceCertificate(MakeCertificate("second"));
  EXPECT_EQ(ServerName(), "second");

  TlsPair broken = MakeCertificate("third");
  broken.private_key_pem = MakeCertificate("fourth").private_key_pem;
  EXPECT_THROW(server_->ReplaceCertificate(broken), Error);
  EXPECT_EQ(ServerName(), "second");
}

TEST_F(TlsServerTest, TellsPlainHttpWhatIsWrong) {
  StartServer();
  RawClient client(server_->port());

  client.Send("GET /echo HTTP/1.1\r\nHost: localhost\r\n\r\n");

  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.IsClosedByServer());
}

TEST_F(TlsServerTest, DoesNotWaitForHandshakesThatDoNotEnd) {
  HttpOptions options;
  options.handshake_timeout = 20ms;
  StartServer(options);
  RawClient silent(server_->port());
  RawClient half(server_->port());
  TlsClient client;
  client.Shake("");

  half.Send(client.TakeOutput().substr(0, 50));

  EXPECT_TRUE(silent.IsClosedByServer());
  EXPECT_TRUE(half.IsClosedByServer());
}

TEST_F(TlsServerTest, GarbageEndsTheConnection) {
  StartServer();
  RawClient client(server_->port());

  client.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");

  client.ReadSome();  // an alert perhaps
  client.TakeInput();
  EXPECT_TRUE(client.IsClosedByServer());
}

}  // namespace
}  // namespace tandem::server
