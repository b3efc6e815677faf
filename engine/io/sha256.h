#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tandem::engine {

// FIPS 180-4 SHA-256, by libcrypto.
using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  void Update(std::string_view text);
  // Returns the digest of all updates and resets the object.
  Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256Digest Sha256Of(std::span<const std::byte> bytes);
std::string ToHex(const Sha256Digest& digest);

}  // namespace tandem::engine
