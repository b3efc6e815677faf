#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http/options.h"

struct ssl_ctx_st;
struct ssl_st;
struct bio_st;

namespace tandem::server {

// A certificate chain with its key, ready for connections. Immutable. Sessions keep their context
// alive, so it can be replaced at any time.
class TlsContext {
 public:
  // Throws kInvalidArgument if the texts are not PEM or the key does not match the certificate.
  explicit TlsContext(const TlsPair& pair);

 private:
  friend class TlsSession;
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// The server's side of TLS for one connection: ciphertext in, plaintext out, and back. Knows no
// sockets: the connection handles raw bytes as without TLS.
class TlsSession {
 public:
  explicit TlsSession(const TlsContext& context);

  enum class State {
    kHandshake,
    kOpen,
    kEnded,      // the client has closed its sending side
    kPlainHttp,  // the client speaks HTTP without TLS
    kFailed,
  };
  // Processes received bytes and appends the decrypted ones to `plain`.
  State Receive(std::string_view bytes, std::string& plain);
  State state() const { return state_; }

  // REQUIRES: the handshake is complete.
  void Send(std::string_view plain);
  // Closes our sending side (close_notify).
  void SendEnd();
  // Returns the bytes to send to the client: data, handshake messages or alerts.
  std::string TakeOutput();

 private:
  State Fault(int result);

  struct Free {
    void operator()(ssl_st* session) const;
  };
  std::unique_ptr<ssl_st, Free> session_;
  bio_st* input_;   // owned by session_
  bio_st* output_;  // owned by session_
  State state_ = State::kHandshake;
  bool has_ended_ = false;
};

}  // namespace tandem::server
