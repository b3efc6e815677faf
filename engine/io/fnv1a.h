#pragma once

#include <cstdint>
#include <string_view>

namespace tandem::engine {

// FNV-1a with 64 bits (draft-eastlake-fnv): a fast hash whose values are the same everywhere. Not
// for input that an attacker may choose to make hashes collide.
class Fnv1a {
 public:
  // Adds one unit: a byte, or a larger number where no other program compares the hash.
  constexpr void Add(uint64_t unit) { hash_ = (hash_ ^ unit) * 0x100000001b3; }
  constexpr void AddBytes(std::string_view bytes) {
    for (const char c : bytes) Add(static_cast<unsigned char>(c));
  }
  constexpr uint64_t value() const { return hash_; }

  static constexpr uint64_t Of(std::string_view bytes) {
    Fnv1a hash;
    hash.AddBytes(bytes);
    return hash.value();
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace tandem::engine
