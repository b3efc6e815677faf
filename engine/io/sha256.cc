#include "engine/io/sha256.h"

#include <openssl/evp.h>

#include "engine/base/check.h"

namespace tandem::engine {

struct Sha256::State {
  struct Free {
    void operator()(EVP_MD_CTX* unused) const { EVP_MD_CTX_free(unused); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};

  void Begin() {
    TANDEM_CHECK(context != nullptr);
    TANDEM_CHECK(EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  }
};

Sha256::Sha256() : state_(std::make_unique<State>()) { state_->Begin(); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(std::span<const std::byte> bytes) {
  TANDEM_CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1);
}

void Sha256::Update(std::string_view text) { Update(std::as_bytes(std::span(text))); }

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  TANDEM_CHECK(EVP_DigestFinal_ex(state_->context.get(), digest.data(), nullptr) == 1);
  state_->Begin();
  return digest;
}

Sha256Digest Sha256Of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.Finish();
}

std::string ToHex(const Sha256Digest& digest) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const uint8_t byte : digest) {
    hex.push_back(kDigits[byte >> 4]);
    hex.push_back(kDigits[byte & 15]);
  }
  return hex;
}

}  // namespace tandem::engine
