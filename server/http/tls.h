#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http/options.h"

struct ssl_ctx_st;
struct ssl_st;
struct bio_st;

namespace tandem::server {

// A certificate chain with its key, ready for connections. Immutable; sessions that were begun with
// one keep it alive, so it can be replaced at any time.
class TlsContext {
 public:
  // Throws kInvalidArgument when the texts are no PEM, or when the key is not the certificate's.
  explicit TlsContext(const TlsPair& pair);

 private:
  friend class TlsSession;
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  std::unique_ptr<ssl_ctx_st, Free> context_;
};

// The server's side of TLS for one connection: ciphertext in, plaintext out, and back. Knows no
// sockets, so the connection reads, writes, counts and times raw bytes as it does without TLS.
class TlsSession {
 public:
  explicit TlsSession(const TlsContext& context);

  enum class State {
    kHandshake,
    kOpen,
    kEnded,      // the client has said that it sends nothing more
    kPlainHttp,  // it speaks HTTP without TLS
    kFailed,
  };
  // Takes what has arrived and appends what it means to `plain`.
  State Receive(std::string_view bytes, std::string& plain);
  State state() const { return state_; }

  // REQUIRES: the handshake is over.
  void Send(std::string_view plain);
  // Tells the client that nothing follows.
  void SendEnd();
  // What the client must be sent, be it data, handshake or alert.
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
