#include "server/http/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

struct BioFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct CertificateFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
struct KeyFree {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
using Bio = std::unique_ptr<BIO, BioFree>;
using Certificate = std::unique_ptr<X509, CertificateFree>;

// OpenSSL takes lengths as int; this bounds one call.
constexpr size_t kMaxSendBytes = size_t{1} << 30;

Bio ReaderOf(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(std::min(text.size(), kMaxSendBytes))));
}

// Refuses to ask for a pass phrase on the terminal.
int NoPassPhrase(char*, int, int, void*) { return -1; }

[[noreturn]] void Throw(const std::string& message) {
  std::array<char, 160> reason{};
  const unsigned long code = ERR_peek_last_error();
  if (code != 0) ERR_error_string_n(code, reason.data(), reason.size());
  ERR_clear_error();
  throw Error(ErrorCode::kInvalidArgument,
              message + (code != 0 ? std::string(" (") + reason.data() + ")" : std::string()));
}

// The first certificate is the server's own; the others lead to its issuer.
void UseChain(SSL_CTX* context, const std::string& pem) {
  const Bio reader = ReaderOf(pem);
  const Certificate own(PEM_read_bio_X509_AUX(reader.get(), nullptr, NoPassPhrase, nullptr));
  if (!own) Throw("--tls-cert has no PEM certificate");
  if (SSL_CTX_use_certificate(context, own.get()) != 1) Throw("--tls-cert is not usable");
  for (;;) {
    Certificate issuer(PEM_read_bio_X509(reader.get(), nullptr, NoPassPhrase, nullptr));
    if (!issuer) break;
    if (SSL_CTX_add0_chain_cert(context, issuer.get()) != 1) Throw("--tls-cert is not usable");
    static_cast<void>(issuer.release());
  }
  const unsigned long code = ERR_peek_last_error();
  if (code != 0 && ERR_GET_REASON(code) != PEM_R_NO_START_LINE) {
    Throw("--tls-cert has a broken certificate after the first");
  }
  ERR_clear_error();
}

void UseKey(SSL_CTX* context, const std::string& pem) {
  const Bio reader = ReaderOf(pem);
  const std::unique_ptr<EVP_PKEY, KeyFree> key(
      PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassPhrase, nullptr));
  if (!key) Throw("--tls-key has no PEM key, or its key has a pass phrase");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1 || SSL_CTX_check_private_key(context) != 1) {
    Throw("--tls-key does not belong to --tls-cert");
  }
}

// A client that offers protocols (ALPN) must offer http/1.1; most clients offer none.
int SelectProtocol(SSL*, const unsigned char** out, unsigned char* out_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* selected = nullptr;
  if (SSL_select_next_proto(&selected, out_bytes, kOurs, sizeof(kOurs) - 1, offered,
                            offered_bytes) != OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  }
  *out = selected;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

TlsContext::TlsContext(const TlsPair& pair) : context_(SSL_CTX_new(TLS_server_method())) {
  SSL_CTX* const context = context_.get();
  if (context == nullptr) Throw("TLS is not available");
  ERR_clear_error();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Idle connections release their record buffers. Sessions resume by tickets only, so that clients
  // cannot fill a cache here.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
  UseChain(context, pair.certificate_chain_pem);
  UseKey(context, pair.private_key_pem);
}

void TlsSession::Free::operator()(ssl_st* session) const { SSL_free(session); }

TlsSession::TlsSession(const TlsContext& context)
    : session_(SSL_new(context.context_.get())),
      input_(BIO_new(BIO_s_mem())),
      output_(BIO_new(BIO_s_mem())) {
  TANDEM_CHECK(session_ != nullptr && input_ != nullptr && output_ != nullptr);
  // An empty input means "no data yet", not "end of file".
  BIO_set_mem_eof_return(input_, -1);
  SSL_set_bio(session_.get(), input_, output_);
  SSL_set_accept_state(session_.get());
}

TlsSession::State TlsSession::Fault(int result) {
  switch (SSL_get_error(session_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return state_;
    case SSL_ERROR_ZERO_RETURN:
      return State::kEnded;
    default:
      break;
  }
  const int reason = ERR_GET_REASON(ERR_peek_error());
  ERR_clear_error();
  const bool is_http = reason == SSL_R_HTTP_REQUEST || reason == SSL_R_HTTPS_PROXY_REQUEST;
  return is_http ? State::kPlainHttp : State::kFailed;
}

TlsSession::State TlsSession::Receive(std::string_view bytes, std::string& plain) {
  if (state_ != State::kHandshake && state_ != State::kOpen) return state_;
  ERR_clear_error();
  BIO_write(input_, bytes.data(), static_cast<int>(bytes.size()));
  if (state_ == State::kHandshake) {
    const int result = SSL_do_handshake(session_.get());
    if (result != 1) return state_ = Fault(result);
    state_ = State::kOpen;
  }
  std::array<char, 16 << 10> buffer;
  for (;;) {
    const int n = SSL_read(session_.get(), buffer.data(), static_cast<int>(buffer.size()));
    if (n <= 0) return state_ = Fault(n);
    plain.append(buffer.data(), static_cast<size_t>(n));
  }
}

void TlsSession::Send(std::string_view plain) {
  ERR_clear_error();
  while (!plain.empty()) {
    const size_t wanted = std::min(plain.size(), kMaxSendBytes);
    const int n = SSL_write(session_.get(), plain.data(), static_cast<int>(wanted));
    if (n <= 0) {
      state_ = State::kFailed;
      return;
    }
    plain.remove_prefix(static_cast<size_t>(n));
  }
}

void TlsSession::SendEnd() {
  if (has_ended_ || (state_ != State::kOpen && state_ != State::kEnded)) return;
  has_ended_ = true;
  ERR_clear_error();
  SSL_shutdown(session_.get());
  ERR_clear_error();
}

std::string TlsSession::TakeOutput() {
  char* data = nullptr;
  const long n = BIO_get_mem_data(output_, &data);
  if (n <= 0) return {};
  std::string out(data, static_cast<size_t>(n));
  BIO_reset(output_);
  return out;
}

}  // namespace tandem::server
